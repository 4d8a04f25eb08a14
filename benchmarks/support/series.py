"""A series of trainings that are compared: every model with every seed, by one recipe, each in a run folder."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from matryo.data import Dataset
from matryo.results import Row
from matryo.training import load_recipe, train
from matryo.training.recipe.fields import Recipe
from matryo.training.run.paths import RunFolder

__all__ = ["Member", "add_arguments", "members", "row_of", "settle"]


@dataclass(frozen=True)
class Member:
    """One training of a series."""

    model: str
    """nested, tied, separate, or fixed:DIM."""
    seed: int
    recipe: Recipe
    changed: dict[str, str]
    """The recipe fields that were changed for the whole series."""
    folder: Path
    alone: bool = True
    """Whether nobody else used the device."""


def add_arguments(parser: argparse.ArgumentParser, *, recipe: str, rows: str, models: str, seeds: list[int]) -> None:
    """The options of every series."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the dataset")
    parser.add_argument("--recipe", default=recipe)
    parser.add_argument("--models", nargs="+", metavar="MODEL", help=f"nested kinds, or fixed:DIM (default: {models})")
    parser.add_argument("--seeds", nargs="+", type=int, default=seeds)
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="recipe fields to override")
    parser.add_argument("--rows", "--out", type=Path, help=f"append the rows here [docs/results/{rows}]")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="keep the runs here; those there are not run again")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no training after this many minutes")
    parser.add_argument("--shared", action="store_true", help="others use the device too: the seconds mean nothing")
    parser.add_argument("--quick", action="store_true", help="tiny models on made-up or few data: does it run?")


def settle(args: argparse.Namespace, rows: str, quick: Sequence[str]) -> None:
    """Where the rows go, unless told: a quick try is no result."""
    if args.quick:
        args.set = [*args.set, *quick]
    args.rows = args.rows or (Path(tempfile.gettempdir()) if args.quick else Path("docs/results")) / rows


def members(
    args: argparse.Namespace, models: list[str], dataset: Dataset, fields: Callable[[str], dict[str, str]]
) -> Iterator[Member]:
    """Train them one after the other, seed by seed; each is given as soon as it is there.

    ``fields`` gives the recipe fields that make a model; all others are the recipe's, or those of --set.
    """
    begin = time.monotonic()
    given = dict(item.split("=", 1) for item in args.set)
    with contextlib.ExitStack() as stack:
        place = args.runs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for seed in args.seeds:
            for model in models:
                if time.monotonic() - begin > 60 * args.minutes:
                    print(f"{args.minutes:g} minutes are over: skipped {model}, seed {seed}", flush=True)
                    continue
                recipe = load_recipe(args.recipe, {**given, **fields(model), "loop.seed": str(seed)})
                folder = place / f"seed{seed}" / f"{recipe.name}-{model.replace(':', '-')}"
                train(recipe, dataset, folder)
                yield Member(model, seed, recipe, given, folder, not args.shared)


def row_of(one: Member, kind: str, *, quick: bool = False) -> Row:
    """The row of a training as one of its series: under the series' kind, with what tells it from the others."""
    row = RunFolder(one.folder).row
    about = {"model": one.model, "recipe": one.recipe.name, "changed": one.changed, "alone": one.alone, "quick": quick}
    return dataclasses.replace(row, kind=kind, figures={**row.figures, **about})
