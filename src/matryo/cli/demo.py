"""Train a nested and a fixed model on the bundled emoji, encode, measure them side by side, and draw a report.

A few minutes on two CPU cores, most of it training. Everything lands in --out; run again, it goes on where it
was stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments", "run"]

NESTED, FIXED = "demo-nested", "demo-fixed"
# All but the slowest (the linear probe) and what emoji do not have.
PROTOCOLS = "evaluate,few-shot,robustness,superclass,trends,disagreement,similarity,cascade?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to put the runs."""
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder for both runs [runs]")
    parser.add_argument("--epochs", type=int, metavar="N", help="train shorter or longer than the recipe says")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, another pair of models [0]")
    parser.add_argument("--force", action="store_true", help="overwrite DIR/demo.jsonl whatever it holds")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> None:
    """The whole way in one go: train, encode, evaluate, report."""
    from matryo.cli.evaluate import measure_folders, open_subjects, to_rows
    from matryo.cli.report import write_report
    from matryo.cli.train import print_run
    from matryo.data import open_dataset
    from matryo.errors import MissingExtra
    from matryo.evaluation import Evaluation, table
    from matryo.files import check_may_write
    from matryo.inference import encode_split, load
    from matryo.results import append_rows, holds_rows
    from matryo.training import load_recipe, train
    from matryo.training.run.paths import RunFolder

    stored = args.out / "demo.jsonl"
    check_may_write(stored, force=args.force, is_ours=holds_rows)
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
    folders = [args.out / name for name in recipes]
    found = measure_folders(open_subjects(folders, progress=progress), PROTOCOLS, "pca,random")
    evaluated = [one.result for one in found if isinstance(one.result, Evaluation)]
    print("\n" + table([(one.model, one) for one in evaluated], show=("1-NN",)) + "\n")
    rows = [*(RunFolder(folder).row for folder in folders), *to_rows(found)]
    stored.unlink(missing_ok=True)
    append_rows(stored, rows)
    try:
        page = f"open {write_report(rows, folders, args.out / 'report', title='The demo: emoji at every dim')}"
    except MissingExtra as error:
        page = f"not drawn: {error}"
    nested, fixed = (next(one for one in evaluated if (one.model, one.split) == (name, "flat")) for name in recipes)
    full = nested.rows[-1]
    print(f"""On drawings in a style that training did not see ("flat"), 1-NN accuracy:
  {full.top1:.1%} with all {full.dim} dimensions, {nested.at(16).top1:.1%} with the first 16
  {nested.at(8).top1:.1%} with the first 8, where an ordinary model cut to 8 has {fixed.at(8).top1:.1%}
runs in {args.out / NESTED} and {args.out / FIXED}, rows in {stored}
the report, with every figure: {page}""")
