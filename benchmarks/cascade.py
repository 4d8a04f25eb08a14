"""Cascades of one model: the curve of every strategy, and how often the promise on accuracy is kept.

    python benchmarks/cascade.py runs/tiny-imagenet-rn18 --split val --rows docs/results/cascade.jsonl

For the promise, the split stands for all the rows there are: hold-outs are drawn from it with replacement, so that the
true loss of each certified cascade is known, and it is counted how many lose at most what they promised.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from matryo import EmbeddingSet
from matryo.classify import cascade_curve
from matryo.classify.labels import class_names, to_columns
from matryo.classify.outcomes import Outcomes
from matryo.classify.rows import read_rows
from matryo.classify.thresholds.risk import fewest_rows, risk_thresholds
from matryo.classify.walk import ask_all
from matryo.results import append_rows, stamp


@dataclass(frozen=True)
class Promise:
    """How a promise of at most ``max_loss`` fared over ``resamples`` hold-outs."""

    max_loss: float
    confidence: float
    holdout: int
    resamples: int
    kept: int
    """Hold-outs whose cascade truly loses at most ``max_loss``."""
    certified: int
    """Hold-outs that certified a cascade at all; the others use the last dim, and lose nothing."""
    loss: float
    """The true loss, on average."""
    expected_dim: float
    expected_dim_sd: float
    full_dim: int


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a run folder with embeddings, or a folder of embeddings folders")
    parser.add_argument("--split", default="val")
    parser.add_argument("--holdouts", type=int, default=30)
    parser.add_argument("--fraction", type=float, default=0.5, help="of the rows in a hold-out (the paper: 0.2)")
    parser.add_argument("--losses", type=float, nargs="+", default=[0.005, 0.01, 0.02])
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, default=Path("docs/results/cascade.jsonl"))
    args = parser.parse_args()
    inside = args.folder / "embeddings" if (args.folder / "embeddings").is_dir() else args.folder
    embeddings = EmbeddingSet.open(inside / args.split)
    subject = " ".join(filter(None, (args.folder.name, embeddings.manifest.dataset, args.split)))
    model = embeddings.manifest.model
    seed = None if isinstance(model, str) else model.get("seed")   # of the run; that of the hold-outs is in the command
    for strategy in ("greedy", "budget", "risk"):
        curve = cascade_curve(
            embeddings, strategy=strategy, holdouts=args.holdouts, fraction=args.fraction, seed=args.seed
        )
        for point in zip(curve.stop, curve.accuracy, curve.accuracy_sd, curve.expected_dim, strict=True):
            print("{} {:g}: {:.2%} ± {:.2%} at {:.1f}".format(strategy, *point), flush=True)
        append_rows(args.rows, [stamp(curve.kind, subject, curve.to_figures(), seed=seed)])
    everyone = all_outcomes(embeddings)
    holdout = round(args.fraction * everyone.count)
    for max_loss in (loss for loss in args.losses if fewest_rows(loss, 0.95) <= holdout):
        found = promise(everyone, max_loss, holdout, args.resamples, args.seed)
        print(f"at most {max_loss:.1%} lost: kept {found.kept} of {found.resamples} times, at {found.expected_dim:.1f}")
        append_rows(args.rows, [stamp("cascade-promise", subject, asdict(found), seed=seed)])


def all_outcomes(embeddings: EmbeddingSet) -> Outcomes:
    """The logits of every labelled row at every dim."""
    rows = read_rows(embeddings, None, None)
    return ask_all(rows, to_columns(embeddings, None, class_names(None, rows.classes), rows.count))


def promise(everyone: Outcomes, max_loss: float, holdout: int, resamples: int, seed: int) -> Promise:
    """Certify on hold-outs drawn from ``everyone``, and look at what is true of ``everyone``."""
    full, confidence, last = float(everyone.correct[-1].mean()), 0.95, everyone.dims[-1]
    losses, dims, certified = [], [], 0
    for turn in range(resamples):
        drawn = np.random.default_rng([seed, turn]).integers(everyone.count, size=holdout)
        thresholds = risk_thresholds(everyone.select(drawn), max_loss, confidence, seed=turn)
        truth = None if thresholds is None else everyone.measure(thresholds)
        certified += truth is not None
        losses.append(0.0 if truth is None else full - truth.accuracy)
        dims.append(float(last) if truth is None else truth.expected_dim)
    kept = sum(loss <= max_loss for loss in losses)
    return Promise(
        max_loss, confidence, holdout, resamples, kept, certified, mean(losses), mean(dims), stdev(dims), last
    )


if __name__ == "__main__":
    main()
