"""Train nested and fixed models on Tiny-ImageNet over several seeds and store one row a run.

    python benchmarks/tiny_imagenet.py --data DIR --recipe tiny-imagenet-rn18 \
        --models separate tied fixed:8 fixed:16 fixed:32 fixed:64 fixed:512 --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path

from matryo.cli.train import run_row
from matryo.data import Dataset, decode_all, open_dataset
from matryo.data.arrays import ArrayImages
from matryo.results import append_rows
from matryo.training import load_recipe, train


def main() -> None:
    """Every model with every seed; rows are appended as they come, so an interrupted series keeps its start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train_*.npz, val_*.npz and meta.json")
    parser.add_argument("--recipe", default="tiny-imagenet-rn18")
    parser.add_argument("--models", nargs="+", default=["separate", "tied", "fixed:8", "fixed:512"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=Path, default=Path("docs/results/tiny-imagenet.jsonl"))
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="recipe fields to override")
    args = parser.parse_args()
    dataset = decoded(open_dataset("packed", args.data))
    changes = dict(item.split("=", 1) for item in args.set)
    for seed in args.seeds:
        for model in args.models:
            kind, _, dim = model.partition(":")
            fields = {"head.kind": kind, "head.dims": dim, "loop.seed": str(seed), **changes}
            recipe = load_recipe(args.recipe, {name: value for name, value in fields.items() if value})
            with tempfile.TemporaryDirectory() as folder:
                row = run_row(train(recipe, dataset, Path(folder) / model.replace(":", "-"), progress=False))
            append_rows(args.rows, [row])
            top1 = row.figures["top1"]["val"]
            shown = " ".join(f"{dim}:{100 * value:.2f}" for dim, value in top1.items())
            print(f"{args.recipe} {model} seed {seed}: {row.figures['seconds']:.0f} s  {shown}", flush=True)


def decoded(dataset: Dataset) -> Dataset:
    """The same dataset with its images decoded once, for all runs."""
    splits = {name: ArrayImages(decode_all(split), split.labels) for name, split in dataset.splits.items()}
    return dataclasses.replace(dataset, splits=splits)


if __name__ == "__main__":
    main()
