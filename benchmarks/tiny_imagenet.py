"""Train nested and fixed models on Tiny-ImageNet over several seeds and store one row per run.

    python benchmarks/tiny_imagenet.py --data DIR --recipe tiny-imagenet-rn18 \
        --models separate tied fixed:8 fixed:16 fixed:32 fixed:64 fixed:512 --seeds 0 1 2

With --runs DIR the run folders stay, with embeddings of both splits, for `matryo evaluate`. --novel N trains without
N of the classes, whose images stay in the query split. --validate 0.1 trains without a tenth of the training images and
tests on these alone, to choose settings. --measure adds the rows of `matryo evaluate` and of cascades, so that no
embeddings need to be kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from matryo import Nesting
from matryo.cli import evaluate
from matryo.data import Dataset, decode_all, hold_out, open_dataset
from matryo.data.images.arrays import ArrayImages
from matryo.inference import encode_split, load
from matryo.reproduce.splits import hidden_classes, without
from matryo.results import Row, append_rows
from matryo.training import load_recipe, train
from matryo.training.run.paths import RunFolder


def main() -> None:
    """Every model with every seed; rows are appended as they come, so an interrupted series keeps its start."""
    args = parse()
    dataset = decoded(open_dataset("packed", args.data))
    shown = without(dataset, hidden_classes(np.arange(len(dataset.classes)), args.novel)) if args.novel else dataset
    if args.validate:
        dataset = shown = hold_out(shown, args.validate)
    tuned = {model: fields for model, *fields in args.tune}
    for seed in args.seeds:
        for model in args.models:
            changed = dict(item.split("=", 1) for item in [*args.set, *tuned.get(model, ())])
            print(run_one(args, model, seed, changed, dataset, shown), flush=True)


def run_one(
    args: argparse.Namespace, model: str, seed: int, changed: dict[str, str], dataset: Dataset, shown: Dataset
) -> str:
    """Train and measure one model, append its rows, and return a line about it."""
    kind, _, dim = model.partition(":")
    fields = {"head.kind": kind, "head.dims": dim, "loop.seed": str(seed), **changed}
    fields |= {"data.test": "validation"} if args.validate else {}
    recipe = load_recipe(args.recipe, {name: value for name, value in fields.items() if value})
    with tempfile.TemporaryDirectory() as scratch:
        series = args.recipe + (f"-novel{args.novel}" if args.novel else "")
        folder = (args.runs or Path(scratch)) / f"seed{seed}" / f"{series}-{model.replace(':', '-')}"
        row = RunFolder(train(recipe, shown, folder, progress=False)).row
        if args.runs or args.measure:
            encode(folder, shown, dataset)
        measured = measure(folder) if args.measure else []
    extra = {"changed": changed, "alone": not args.shared, **({"novel": args.novel} if args.novel else {})}
    if args.validate:   # several settings share a folder name, so their figures belong into the row
        extra, measured = {**extra, "validate": args.validate, **nearest(measured)}, []
    append_rows(args.rows, [dataclasses.replace(row, figures={**row.figures, **extra}), *measured])
    [(split, top1)] = row.figures["top1"].items()
    shares = "  ".join(f"{dim}:{100 * value:.2f}" for dim, value in top1.items())
    return f"{args.recipe} {model} seed {seed} {split}: {row.figures['seconds']:.0f} s  {shares}"


def measure(run: Path) -> list[Row]:
    """The rows of `matryo evaluate`: with cascades of a nested model, with PCA and SVD of one fixed at full dim."""
    model = load(run, device="cpu")
    dims = model.nesting.dims
    encoder: Any = model.network.encoder
    whole = dims == (encoder.dim,)
    shown = Nesting.halving(dims[0]).dims if whole else dims
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    words = ["--dims", ",".join(map(str, shown)), "--baselines", "pca,svd" if whole else "none", "--quiet"]
    words += ["--protocols", "evaluate" if len(dims) == 1 else "evaluate,cascade"]
    return [row for _, row in evaluate.measure_folders(parser.parse_args([str(run), *words]))]


def nearest(rows: list[Row]) -> dict[str, dict[str, dict[int, float]]]:
    """1-NN and mAP@10 by split and dim, as a training row holds its figures."""
    evaluated = [row for row in rows if row.kind == "evaluate" and "+" not in row.subject]
    titles = {"1-NN": "top1", "map@10": "map@10"}
    return {
        title: {row.figures["split"]: row.by_dim()[name] for row in evaluated} for title, name in titles.items()
    }


def encode(run: Path, shown: Dataset, dataset: Dataset) -> None:
    """Embeddings of the training split and of all query splits; for a slimmable model, at each width."""
    recipe = load(run).recipe
    slimmable, test = recipe.head.kind == "slimmable", "validation" if "validation" in dataset.splits else "val"
    for width in recipe.encoder.widths if slimmable else (1.0,):
        model = load(run, width=width)
        folder = run.with_name(f"{run.name}-{model.nesting.dim}") if slimmable else run
        for split, images in (("train", shown), (test, dataset)):
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
    parser.add_argument("--validate", type=float, default=0.0, metavar="SHARE", help="test on these, not on val")
    parser.add_argument("--measure", action="store_true", help="store the rows of matryo evaluate as well")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="recipe fields to override")
    parser.add_argument(
        "--tune", nargs="+", action="append", default=[], metavar="MODEL FIELD=VALUE", help="the same for one model"
    )
    return parser.parse_args()


def decoded(dataset: Dataset) -> Dataset:
    """The dataset with its images decoded once, for all runs, by several processes."""
    images: Any = dataset.splits
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        splits = {name: ArrayImages(_pixels(split, pool), split.labels) for name, split in images.items()}
    return dataclasses.replace(dataset, splits=splits)


def _pixels(split: Any, pool: ProcessPoolExecutor) -> Any:
    parts = np.array_split(np.arange(len(split)), os.cpu_count() or 1)
    return np.concatenate(list(pool.map(partial(decode_all, split, progress=False), parts)))


if __name__ == "__main__":
    main()
