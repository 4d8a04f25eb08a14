"""Compare settings of the demo's recipe on vendors held out of its training split; one row per run.

    python benchmarks/demo_settings.py --setting "" --setting head.self_distil=0.5 --seeds 0 1 2

Each model is trained on three of the four training vendors and tested on the drawings of the fourth, so that the test
splits of the demo choose nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from matryo.data import Dataset, open_dataset
from matryo.evaluation import Evaluation, evaluate
from matryo.inference import encode_split, load
from matryo.results import append_rows, stamp
from matryo.training import load_recipe, train

VENDORS = ("noto", "noto-v1", "fluent-emoji", "emojione")
HELD_OUT = "held-out"


def main() -> None:
    """Every vendor and setting with every seed; rows are appended as they come."""
    args = parse()
    for seed in args.seeds:
        for vendor in args.vendors:
            dataset = without_vendor(open_dataset("emoji"), vendor)
            for setting in args.setting:
                changed = dict(item.split("=", 1) for item in setting.split())
                fields = {"data.test": HELD_OUT, "loop.seed": str(seed), **changed}
                if args.epochs:
                    fields["loop.epochs"] = str(args.epochs)
                begin = time.perf_counter()
                measured = trained_and_measured(dataset, fields)
                figures: dict[str, Any] = {"held_out": vendor, "changed": changed}
                figures |= {"1-NN": {line.dim: line.top1 for line in measured.rows}}
                figures |= {"map@10": {line.dim: line.map_at[10] for line in measured.rows}}
                figures |= {"head": {line.dim: line.head_top1 for line in measured.rows}}
                append_rows(args.rows, [stamp("settings", "demo", figures, seed=seed)])
                shown = "  ".join(f"{line.dim}:{100 * line.top1:.2f}" for line in measured.rows)
                seconds = time.perf_counter() - begin
                print(f"{vendor} seed {seed} {setting or '(recipe)'}: {seconds:.0f} s  {shown}", flush=True)


def trained_and_measured(dataset: Dataset, fields: dict[str, str]) -> Evaluation:
    """Train the demo's nested model with these fields and measure it on the vendor that was held out."""
    with tempfile.TemporaryDirectory() as scratch:
        run = train(load_recipe("demo", fields), dataset, Path(scratch) / "demo", progress=False)
        model, sets = load(run), {}
        for split in ("train", HELD_OUT):
            sets[split] = encode_split(model, dataset, split, run / split, progress=False)
        return evaluate(sets["train"], sets[HELD_OUT], progress=False)


def without_vendor(dataset: Dataset, vendor: str) -> Dataset:
    """The training split less one vendor, whose drawings of emoji that are still trained become the test split."""
    split = dataset.split("train")
    theirs = np.array([split.name(i).startswith(f"{vendor}/") for i in range(len(split))])
    known = np.isin(split.labels, split.labels[~theirs])
    splits = {"train": split.subset(~theirs), HELD_OUT: split.subset(theirs & known)}
    return dataclasses.replace(dataset, splits=splits, roles={})


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", action="append", metavar="FIELD=VALUE …", help="fields to change; repeat it")
    parser.add_argument("--vendors", nargs="+", choices=VENDORS, default=list(VENDORS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=0, help="epochs of each training (default: the recipe's)")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/demo-settings.jsonl"))
    args = parser.parse_args()
    args.setting = args.setting or [""]
    return args


if __name__ == "__main__":
    main()
