"""Train a nested and a fixed model on the bundled emoji, encode, and measure them side by side.

A few minutes on two CPU cores, most of it training. Everything lands in --out; run again, it goes on where it
was stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments", "run"]

NESTED, FIXED = "demo-nested", "demo-fixed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to put the runs."""
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder for both runs [runs]")
    parser.add_argument("--epochs", type=int, metavar="N", help="train shorter or longer than the recipe says")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, another pair of models [0]")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> None:
    """The spine in one go: train, encode, evaluate."""
    from matryo.cli.evaluate import evaluate_folders, to_rows
    from matryo.cli.train import print_run, run_row
    from matryo.data import open_dataset
    from matryo.evaluation import table
    from matryo.results import append_rows
    from matryo.training import encode_split, load, load_recipe, train

    dataset, progress = open_dataset("emoji"), not args.quiet
    changes = {"loop.seed": str(args.seed)} | ({"loop.epochs": str(args.epochs)} if args.epochs is not None else {})
    recipes = {
        NESTED: load_recipe("demo", changes),
        FIXED: load_recipe("demo", {**changes, "head.kind": "fixed"}),
    }
    pictures = sum(len(split) for split in dataset.splits.values())
    print(f"{pictures:,} drawings of emoji; training on {len(dataset.split('train')):,} of them, two models in turn")
    for name, recipe in recipes.items():
        out = train(recipe, dataset, args.out / name, progress=progress)
        print_run(out)
        model = load(out)
        for split in (recipe.data.train, *recipe.data.test):
            encode_split(model, dataset, split, out / "embeddings" / split, progress=progress)
    found = evaluate_folders([args.out / name for name in recipes], progress=progress)
    print("\n" + table([(one.name, one.evaluation) for one in found], show=("1-NN", "mAP@10")) + "\n")
    rows = args.out / "demo.jsonl"
    rows.unlink(missing_ok=True)
    append_rows(rows, [*(run_row(args.out / name) for name in recipes), *to_rows(found)])
    nested, fixed = (next(o.evaluation for o in found if (o.name, o.evaluation.split) == (n, "flat")) for n in recipes)
    full = nested.rows[-1]
    print(f"""On drawings in a style that training did not see ("flat"), 1-NN accuracy:
  {full.top1:.1%} with all {full.dim} dimensions, {nested.at(16).top1:.1%} with the first 16
  {nested.at(8).top1:.1%} with the first 8, where an ordinary model cut to 8 has {fixed.at(8).top1:.1%}
runs in {args.out / NESTED} and {args.out / FIXED}, rows in {rows}""")
