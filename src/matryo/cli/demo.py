"""Train a nested and a fixed model on the bundled emoji, compare them at every dim, and write a report.

The demo takes a few minutes on two CPU cores, most of it training. Everything is written to --out. If interrupted, run
the same command again to resume. With --serve it then serves both models and their drawings, with a page to explore
them in a browser; runs that are complete are not measured again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

NESTED, FIXED = "demo-nested", "demo-fixed"
# All but the linear probe, which is slow, and the protocols that emoji have no data for.
PROTOCOLS = "evaluate,few-shot,robustness,superclass,trends,disagreement,similarity,cascade?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The output folder and the size of the training."""
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder for both runs [runs]")
    parser.add_argument("--epochs", type=int, metavar="N", help="epochs of training (default: the recipe's)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of both models [0]")
    parser.add_argument("--force", action="store_true", help="overwrite DIR/demo.jsonl whatever it holds")
    parser.add_argument("--serve", action="store_true", help="serve the models and their drawings afterwards, "
                        "with a page to explore them")  # fmt: skip
    parser.add_argument("--port", type=int, default=8080, metavar="N", help="with --serve: port; 0 chooses one [8080]")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> None:
    """Train, encode, evaluate, report; with --serve, serve."""
    if not args.serve:
        _measure(args)
        return
    from matryo.cli.parts.demo_index import check_server, is_encoded, serve_drawings

    check_server(args.port)   # before the training
    folders = [args.out / name for name in (NESTED, FIXED)]
    if not all(map(is_encoded, folders)):
        _measure(args)
    serve_drawings(folders, args.out / "explorer", args.port, quiet=args.quiet)


def _measure(args: argparse.Namespace) -> None:
    from matryo.cli import evaluate
    from matryo.cli.report import write_report
    from matryo.evaluation import Evaluation, table
    from matryo.files import check_may_write
    from matryo.report import check_out
    from matryo.results import holds_rows, write_rows
    from matryo.training.run.paths import RunFolder

    stored = args.out / "demo.jsonl"
    check_may_write(stored, force=args.force, is_ours=holds_rows)
    check_out(args.out / "report", overwrite=True)   # before the training, which takes minutes
    folders = _train_and_encode(args)
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    words = [*map(str, folders), "--protocols", PROTOCOLS, "--baselines", "pca,random", *["--quiet"] * args.quiet]
    measured = evaluate.measure_folders(parser.parse_args(words))
    evaluations = [result for result, _ in measured if isinstance(result, Evaluation)]
    print("\n" + table(evaluations, show=["1-NN"]) + "\n")
    rows = [*(RunFolder(folder).row for folder in folders), *(row for _, row in measured)]
    write_rows(stored, rows)
    page = write_report(rows, folders, args.out / "report", title="The demo: emoji at every dim")
    flat = {result.model: result for result in evaluations if result.split == "flat"}
    nested, fixed = flat[NESTED], flat[FIXED]
    full = nested.rows[-1]
    print(f"""1-NN accuracy on drawings in a style that was not used in training ("flat"):
  {full.top1:.1%} with all {full.dim} dimensions, {nested.at(16).top1:.1%} with the first 16
  {nested.at(8).top1:.1%} with the first 8; an ordinary model truncated to 8 has {fixed.at(8).top1:.1%}
runs: {args.out / NESTED} and {args.out / FIXED}; result rows: {stored}
open the report in a browser: {page}""")


def _train_and_encode(args: argparse.Namespace) -> list[Path]:
    """Train both models, encode all splits with each, and return the run folders."""
    from matryo.cli.train import print_run
    from matryo.data import open_dataset
    from matryo.inference import encode_split, load
    from matryo.training import load_recipe, train

    dataset, progress, folders = open_dataset("emoji"), not args.quiet, []
    changes = {"loop.seed": str(args.seed)} | ({"loop.epochs": str(args.epochs)} if args.epochs is not None else {})
    count = sum(len(split) for split in dataset.splits.values())
    print(f"{count:,} drawings of emoji; two models are trained on {len(dataset.split('train')):,} of them")
    for name, own in ((NESTED, {}), (FIXED, {"head.kind": "fixed"})):
        recipe = load_recipe("demo", {**changes, **own})
        out = train(recipe, dataset, args.out / name, progress=progress)
        folders.append(out)
        print_run(out)
        model = load(out)
        for split in (recipe.data.train, *recipe.data.test):
            encode_split(model, dataset, split, out / "embeddings" / split, progress=progress)
    return folders
