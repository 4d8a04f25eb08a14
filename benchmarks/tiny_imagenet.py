"""Train nested and fixed models on Tiny-ImageNet over several seeds and store one row per run.

    python benchmarks/tiny_imagenet.py --data DIR --recipe tiny-imagenet-rn18 \
        --models separate tied fixed:8 fixed:16 fixed:32 fixed:64 fixed:512 --seeds 0 1 2

With --runs DIR the run folders stay, with embeddings of both splits, for `matryo evaluate`. --novel N trains without
N of the classes, whose images stay in the query split.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from matryo.data import Dataset, decode_all, open_dataset
from matryo.data.images.arrays import ArrayImages
from matryo.inference import encode_split, load
from matryo.reproduce.splits import hidden_classes, without
from matryo.results import append_rows
from matryo.training import load_recipe, train
from matryo.training.run.paths import RunFolder


def main() -> None:
    """Every model with every seed; rows are appended as they come, so an interrupted series keeps its start."""
    args = parse()
    dataset = decoded(open_dataset("packed", args.data))
    shown = without(dataset, hidden_classes(np.arange(len(dataset.classes)), args.novel)) if args.novel else dataset
    tuned = {model: fields for model, *fields in args.tune}
    for seed in args.seeds:
        for model in args.models:
            kind, _, dim = model.partition(":")
            changed = dict(item.split("=", 1) for item in [*args.set, *tuned.get(model, ())])
            fields = {"head.kind": kind, "head.dims": dim, "loop.seed": str(seed), **changed}
            recipe = load_recipe(args.recipe, {name: value for name, value in fields.items() if value})
            with tempfile.TemporaryDirectory() as scratch:
                series = args.recipe + (f"-novel{args.novel}" if args.novel else "")
                folder = (args.runs or Path(scratch)) / f"seed{seed}" / f"{series}-{model.replace(':', '-')}"
                row = RunFolder(train(recipe, shown, folder, progress=False)).row
                if args.runs:
                    encode(folder, shown, dataset)
            extra = {"changed": changed, "alone": not args.shared, **({"novel": args.novel} if args.novel else {})}
            append_rows(args.rows, [dataclasses.replace(row, figures={**row.figures, **extra})])
            top1 = "  ".join(f"{dim}:{100 * value:.2f}" for dim, value in row.figures["top1"]["val"].items())
            print(f"{args.recipe} {model} seed {seed}: {row.figures['seconds']:.0f} s  {top1}", flush=True)


def encode(run: Path, shown: Dataset, dataset: Dataset) -> None:
    """Embeddings of the training split and of all query splits; for a slimmable model, at each width."""
    recipe = load(run).recipe
    slimmable = recipe.head.kind == "slimmable"
    for width in recipe.encoder.widths if slimmable else (1.0,):
        model = load(run, width=width)
        folder = run.with_name(f"{run.name}-{model.nesting.dim}") if slimmable else run
        for split, images in (("train", shown), ("val", dataset)):
            encode_split(model, images, split, folder / "embeddings" / split, dtype="float16", progress=False)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train_*.npz, val_*.npz and meta.json")
    parser.add_argument("--recipe", default="tiny-imagenet-rn18")
    parser.add_argument("--models", nargs="+", default=["separate", "tied", "fixed:8", "fixed:512"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=Path, default=Path("docs/results/tiny-imagenet.jsonl"))
    parser.add_argument("--runs", type=Path, metavar="DIR", help="keep the runs here, with their embeddings")
    parser.add_argument("--shared", action="store_true", help="others use the device too: the seconds mean nothing")
    parser.add_argument("--novel", type=int, default=0, metavar="N", help="classes that training is not shown")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="recipe fields to override")
    parser.add_argument(
        "--tune", nargs="+", action="append", default=[], metavar="MODEL FIELD=VALUE", help="the same for one model"
    )
    return parser.parse_args()


def decoded(dataset: Dataset) -> Dataset:
    """The dataset with its images decoded once, for all runs."""
    images: Any = dataset.splits
    splits = {name: ArrayImages(decode_all(split), split.labels) for name, split in images.items()}
    return dataclasses.replace(dataset, splits=splits)


if __name__ == "__main__":
    main()
