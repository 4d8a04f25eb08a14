"""A small vision transformer on Tiny-ImageNet: nested, with separate and with tied heads, against one for each dim.

    python benchmarks/vit.py --data DIR --seeds 0
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from support.series import add_arguments, members, row_of, settle
from tiny_imagenet import decoded

from matryo.data import Dataset, open_dataset
from matryo.encoders import build_encoder
from matryo.results import append_rows
from matryo.training import load_recipe
from matryo.training.recipe.fields import Recipe

QUICK = ("encoder.name=vit-ti8", "head.dims=12,48,192", "data.test=flat", "loop.steps=2", "loop.batch=8",
         "loop.device=cpu", "loop.precision=fp32", "loop.compile=false", "optim.warmup=1")  # fmt: skip


def main() -> None:
    """Every model with every seed; rows are appended as they come, so that a run that is cut keeps its start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, recipe="tiny-imagenet-vit", rows="vit.jsonl", models="separate, tied, fixed ones", seeds=[0])
    parser.add_argument("--epochs", type=int, default=12, help="of each training")
    args = parser.parse_args()
    args.set = [f"loop.epochs={args.epochs}", *args.set]
    settle(args, "vit.jsonl", QUICK)
    if not args.data and not args.quick:
        parser.error("--data DIR, or --quick")
    dataset = few(open_dataset("emoji")) if args.quick else decoded(open_dataset("packed", args.data))
    models = args.models or models_of(load_recipe(args.recipe, dict(item.split("=", 1) for item in args.set)))
    for one in members(args, models, dataset, fields_of):
        row = row_of(one, "vit", quick=args.quick)
        append_rows(args.rows, [row])
        for split, top1 in row.figures["top1"].items():
            shown = "  ".join(f"{dim}:{100 * value:.2f}" for dim, value in top1.items())
            print(f"{one.model} seed {one.seed} {split}: {row.figures['seconds']:.0f} s  {shown}", flush=True)


def models_of(recipe: Recipe) -> list[str]:
    """Both nested kinds, and a fixed one for each dim."""
    encoder: Any = build_encoder(recipe.encoder.name, dim=recipe.encoder.dim, size=recipe.data.size)
    return ["separate", "tied", *(f"fixed:{dim}" for dim in recipe.nesting(encoder.dim).dims)]


def few(dataset: Dataset, count: int = 64) -> Dataset:
    """The first items of each split."""
    splits: Any = dataset.splits
    return replace(dataset, splits={name: split.subset(range(count)) for name, split in splits.items()})


def fields_of(model: str) -> dict[str, str]:
    """The key of a model within the series."""
    kind, _, dim = model.partition(":")
    return {"head.kind": kind, **({"head.dims": dim} if dim else {})}


if __name__ == "__main__":
    main()
