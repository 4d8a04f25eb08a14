"""Train a nested model from a recipe, into a run folder.

`matryo recipes` lists the bundled recipes. Every recipe field is also an option:
`matryo train demo --optim.lr 0.01 --head.dims 8,32,256`. If interrupted, run the same command again to resume from the
last checkpoint. To continue a complete run, add --extend with a larger --loop.epochs. On several GPUs:
`torchrun --nproc-per-node 8 -m matryo train RECIPE …`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from matryo.data.open import BUNDLED, SOURCES
from matryo.errors import InputError
from matryo.training.recipe.load import bundled_recipes, load_recipe, recipe_fields
from matryo.training.run.paths import RunFolder

_NAMES = {
    "top1": "head top-1", "masked_top1": "masked-token accuracy", "masked_loss": "masked-token loss",
    "distil_loss": "distillation loss",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE, --data, --out, and an option for every field of a recipe."""
    names = ", ".join(bundled_recipes())
    parser.usage = "matryo train RECIPE [--data DIR] [--out RUN] [--extend] [--quiet] [--SECTION.FIELD VALUE …]"
    parser.add_argument("recipe", metavar="RECIPE", help=f"a bundled recipe ({names}) or a .toml file")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the dataset; not for bundled data")
    parser.add_argument("--out", type=Path, metavar="RUN", help="run folder (default: runs/RECIPE)")
    parser.add_argument(
        "--extend", action="store_true", help="continue a run to more --loop.epochs or --loop.steps than it has"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    group = parser.add_argument_group("recipe fields", "In brackets: the value if the recipe does not set the field.")
    for field in recipe_fields():
        about = f"{field.help} [{_shown(field.default)}]"
        group.add_argument(f"--{field.name}", metavar=_metavar(field.type), help=about)


def run(args: argparse.Namespace) -> None:
    """Train, then print the figures and the next command."""
    changes = {f.name: value for f in recipe_fields() if (value := getattr(args, f.name)) is not None}
    recipe = load_recipe(args.recipe, changes)
    check_data_is_used(recipe.data.source, args.data, "--data.source")
    out = args.out or Path("runs") / recipe.name

    from matryo.data import open_dataset
    from matryo.training import train

    complete = RunFolder(out).complete and not args.extend
    train(recipe, open_dataset(recipe.data.source, args.data), out, extend=args.extend, progress=not args.quiet)
    if os.environ.get("RANK", "0") == "0":
        if complete:
            print(f"{out} was already complete; nothing was trained")
        print_run(out)
        print(f"next: matryo encode {out}" + (f" --data {args.data}" if args.data else ""))


def check_data_is_used(source: str, data: Path | None, option: str) -> None:
    """Raise if ``data`` is given for a bundled source, which would ignore it; ``option`` sets another source."""
    if source in BUNDLED and data is not None:
        others = [name for name in SOURCES if name not in (*BUNDLED, "folder")]
        raise InputError(
            f"the data source {source} is bundled and reads no folder",
            got=f"--data {data}" + ("" if data.exists() else ", which does not exist"),
            cure=f"add {option} folder (or {', '.join(others)}), or drop --data",
        )


def print_run(out: Path) -> None:
    """Print how the training went: one line per figure and test split."""
    figures = RunFolder(out).row.figures
    items, speed = next((name, value) for name, value in figures.items() if name.endswith("_per_second"))
    rate = f"{speed:,.{speed < 10:d}f} {items.removesuffix('_per_second')}/s"
    print(f"{out}: trained in {figures['seconds']:.0f} s at {rate}" if speed else f"{out}: the encoder, not trained")
    for name, by_split in figures.items():
        for split, by_dim in by_split.items() if isinstance(by_split, dict) else ():
            shown = "{:.3f}" if name.endswith("loss") else "{:.1%}"
            line = "  ".join(f"{dim}: {shown.format(value)}" for dim, value in by_dim.items())
            print(f"  {_NAMES.get(name, name)} on {split}  {line}")


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
