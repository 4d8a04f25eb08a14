"""Reproduce tables of the paper: train what they need, measure, and judge each claim.

Without NAME, every table and figure of the paper is listed. `all` is every table that the scale allows. Trainings are
kept in --runs and shared between tables; if interrupted, run the same command again to resume. The tables, beside the
paper's numbers and with a verdict on each claim, are written to RUNS/paper.md and their rows to RUNS/tables.jsonl.
"""

from __future__ import annotations

import argparse
from pathlib import Path

SCALE_NAMES = ("small", "paper")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """NAME …, the scale, the data and the folder of runs."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="tables to reproduce, or all; none lists them")
    parser.add_argument(
        "--scale", choices=SCALE_NAMES, default="small",
        help="small: bundled data and small networks, minutes per table; paper: ImageNet and GPUs [small]",
    )  # fmt: skip
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with imagenet/train, imagenet/val, … (paper)")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="folder of the runs [runs/reproduce-SCALE]")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs per model, with seeds 0, 1, … [small 1, paper 3]")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> None:
    """List the tables, or reproduce some and print their verdicts."""
    from matryo.errors import InputError
    from matryo.reproduce import chosen_tables, listing, reproduce, scale_of
    from matryo.reproduce.write import check_page, write_page

    scale = scale_of(args.scale)
    if not args.names:
        print(listing(scale))
        return
    if args.seeds is not None and args.seeds < 1:
        raise InputError("--seeds must be at least 1", got=args.seeds, cure="leave it out for the scale's own number")
    runs = args.runs or Path("runs") / f"reproduce-{args.scale}"
    tables = chosen_tables(args.names, scale)
    check_page(runs)
    rows = reproduce(tables, scale, runs, data=args.data, seeds=args.seeds, progress=not args.quiet)
    title = "emoji" if args.scale == "small" else "ImageNet"
    chosen = {table.name for table in tables}
    for row in rows:
        if row.figures["table"] in chosen:
            for one in row.figures["claims"]:
                print(f"{row.figures['table']}: {one['claim']}: {one['verdict']} ({one['shown']})")
    print(f"page: {write_page(rows, runs, title)}")
