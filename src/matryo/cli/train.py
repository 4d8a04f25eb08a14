"""Train a nested model by a recipe, into a run folder.

Stopped at any moment, the same command goes on from the last checkpoint. Any recipe field is a flag:
`matryo train demo --optim.lr 0.01 --head.dims 8,32,256`. On several GPUs: `torchrun --nproc-per-node 8 -m matryo
train RECIPE …`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from matryo.results import Row
from matryo.training.recipe.load import bundled_recipes, load_recipe, recipe_fields
from matryo.training.run.paths import RunFolder

__all__ = ["add_arguments", "print_run", "run", "run_row"]

_NAMES = {"top1": "head top-1", "masked_top1": "masked words", "masked_loss": "their loss", "distil_loss": "divergence"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE, --data, --out, and a flag for every field of a recipe."""
    names = ", ".join(bundled_recipes())
    parser.usage = "matryo train RECIPE [--data DIR] [--out RUN] [--quiet] [--SECTION.FIELD VALUE …]"
    parser.add_argument("recipe", metavar="RECIPE", help=f"a bundled recipe ({names}) or a .toml file")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the dataset (bundled ones need none)")
    parser.add_argument("--out", type=Path, metavar="RUN", help="run folder (default: runs/RECIPE)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    group = parser.add_argument_group("recipe fields, with their defaults where a recipe does not set them")
    for field in recipe_fields():
        about = f"{field.help} [{_shown(field.default)}]"
        group.add_argument(f"--{field.name}", metavar=_metavar(field.type), help=about)


def run(args: argparse.Namespace) -> None:
    """Train."""
    given = {f.name: value for f in recipe_fields() if (value := getattr(args, f.name)) is not None}
    recipe = load_recipe(args.recipe, given)
    out = args.out or Path("runs") / recipe.name

    from matryo.data import open_dataset
    from matryo.training import train

    complete = RunFolder(out).complete
    train(recipe, open_dataset(recipe.data.source, args.data), out, progress=not args.quiet)
    if os.environ.get("RANK", "0") == "0":
        if complete:
            print(f"{out} was complete already, and is left as it is")
        print_run(out)
        print(f"next: matryo encode {out}" + (f" --data {args.data}" if args.data else ""))


def print_run(out: Path) -> None:
    """How the training went, in a line for each figure on each test split."""
    figures = run_row(out).figures
    items, speed = next((name, value) for name, value in figures.items() if name.endswith("_per_second"))
    rate = f"{speed:,.{speed < 10:d}f} {items.removesuffix('_per_second')}/s"
    print(f"{out}: trained in {figures['seconds']:.0f} s at {rate}" if speed else f"{out}: the encoder as it came")
    for name, by_split in figures.items():
        for split, by_dim in by_split.items() if isinstance(by_split, dict) else ():
            shown = "{:.3f}" if name.endswith("loss") else "{:.1%}"
            line = "  ".join(f"{dim}: {shown.format(value)}" for dim, value in by_dim.items())
            print(f"  {_NAMES.get(name, name)} on {split}  {line}")


def run_row(out: Path) -> Row:
    """The result row of a complete run."""
    return RunFolder(out).row


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if get_origin(kind) is tuple:
        return f"{get_args(kind)[0].__name__.upper()},…"
    return "true|false" if kind is bool else str(kind.__name__).upper()


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or "empty"
    if isinstance(default, bool):
        return str(default).lower()
    return str(default).replace("%", "%%") or "empty"
