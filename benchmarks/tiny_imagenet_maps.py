"""Choose the settings of tiny-imagenet-rn18-best: loss weights, and maps that keep every logit but change cosines.

    python benchmarks/tiny_imagenet_maps.py --data DIR

Each row has, for one nested model trained on nine tenths of the training images, the top-1 accuracy of its heads on the
rest, that of heads averaged over dims, and 1-NN and mAP@10 under every map, at every dim. The images are decoded once
and shared by --jobs processes.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.forked import run_jobs
from tiny_imagenet import decoded
from torch import Tensor

from matryo.data import Dataset, hold_out, open_dataset
from matryo.inference import load
from matryo.metrics.ranking import mean_average_precision
from matryo.nesting import truncate
from matryo.results import Row, append_rows, read_rows
from matryo.training import load_recipe, train
from matryo.training.run.paths import RunFolder

BEST = "tiny-imagenet-rn18-best"
TEST, HELD, K = "validation", 0.1, 10
ENDS, FEW, LEAST = "0.2,0.1,0.1,0.1,0.1,0.2,1", "0.2,0.03,0.03,0.03,0.03,0.05,1", "0.1,0.02,0.02,0.02,0.02,0.03,1"
FIRST, LARGE = "0.4,0.03,0.03,0.03,0.03,0.05,1", "0.5,0.25,0.25,0.25,0.25,0.5,1"
# Kind and shrinkage of each map; the shrinkage goes towards a multiple of the identity, or towards the diagonal.
MAPS = (
    ("none", 0.0), ("centre", 0.0), ("standardise", 0.0), ("total-equal", 0.1), ("total-equal", 0.3),
    ("total-equal", 0.9), ("total-diagonal", 0.5), ("within-equal", 0.1), ("within-equal", 0.3), ("within-equal", 0.5),
    ("within-equal", 0.9), ("within-diagonal", 0.1), ("within-diagonal", 0.5),
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One training of the recipe BEST, with some fields changed."""

    seed: int
    changed: dict[str, str]

    def is_in(self, rows: list[Row]) -> bool:
        """Whether a row of this training is stored."""
        kept = [row for row in rows if row.kind == "maps" and row.seed == self.seed]
        return any(row.figures["changed"] == self.changed for row in kept)


def candidates() -> Iterator[Job]:
    """The trainings."""
    own = {"encoder.neck": "none", "head.self_distil": "0.5"}
    alone = {**own, "head.weigh": "encoder"}
    for weights in (FEW, ENDS):
        yield Job(0, {**alone, "head.weights": weights})
    yield Job(0, {**own, "head.weights": LARGE})
    for weights in (LEAST, FIRST):
        yield Job(0, {**alone, "head.weights": weights})
    yield Job(0, {"encoder.neck": "none", "head.weigh": "encoder", "head.weights": FEW})   # self_distil of the recipe
    yield Job(1, {**alone, "head.weights": FEW})


def run(rows: Path, extra: list[str], job: Job, dataset: Dataset) -> str:
    """Train and measure one model, append its row, and return a line about it."""
    fields = {"encoder.whiten": "none", "head.blend": "0", "data.test": TEST, "loop.seed": f"{job.seed}", **job.changed}
    recipe = load_recipe(BEST, fields | dict(item.split("=", 1) for item in extra))
    with tempfile.TemporaryDirectory() as scratch:
        row = RunFolder(train(recipe, dataset, Path(scratch) / "run", progress=False)).row
        figures = measure(Path(scratch) / "run", dataset)
    top1 = row.figures["top1"][TEST]
    figures |= {"top1": top1, "seconds": row.figures["seconds"], "model": "separate", "changed": job.changed}
    append_rows(rows, [dataclasses.replace(row, kind="maps", figures={**figures, "validate": HELD, "split": TEST})])
    shares = "  ".join(f"{dim}:{100 * value:.2f}" for dim, value in top1.items())
    return f"{job.changed} seed {job.seed}: {shares}"


@torch.inference_mode()
def measure(run: Path, dataset: Dataset) -> dict[str, Any]:
    """1-NN and mAP@10 under every map, and the top-1 of heads that are averaged over the smaller dims."""
    model = load(run)
    (z, labels), (queries, wanted) = (vectors(model, dataset, name) for name in ("train", TEST))
    moments = Moments.of(z.double(), labels)
    dims = model.nesting.dims
    head: Any = model.network.head
    averaged = averaged_heads(head.logits(queries), dims, wanted)
    figures: dict[str, Any] = {"1-NN": {}, "map@10": {}, "averaged heads": averaged}
    for kind, shrink in MAPS:
        name = f"{kind} {shrink:g}" if shrink else kind
        weight, bias = triangular(moments, kind, shrink)
        mapped = [part.double() @ weight.T + bias for part in (z, queries)]
        for dim in dims:
            database, shortened = (truncate(part.float(), dim) for part in mapped)
            nearest, precise = neighbours(database, shortened, labels, wanted)
            figures["1-NN"].setdefault(name, {})[dim] = nearest
            figures["map@10"].setdefault(name, {})[dim] = precise
    return figures


@dataclass(frozen=True)
class Moments:
    """The mean of vectors, and their covariance: in total, and within classes."""

    mean: Tensor
    total: Tensor
    within: Tensor

    @classmethod
    def of(cls, z: Tensor, labels: Tensor) -> Moments:
        """The moments of vectors [n, d] with labels [n]."""
        means = torch.stack([z[labels == label].mean(0) for label in range(int(labels.max()) + 1)])
        rest = z - means[labels]
        return cls(z.mean(0), torch.cov(z.T, correction=0), rest.T @ rest / len(z))


def triangular(moments: Moments, kind: str, shrink: float) -> tuple[Tensor, Tensor]:
    """Weight [d, d], lower-triangular, and bias [d] of a map."""
    mean = moments.mean
    eye = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
    if kind == "none":
        return eye, torch.zeros_like(mean)
    if kind == "centre":
        return eye, -mean
    floor = 1e-6 * moments.total.diagonal().mean()   # some columns are always 0
    if kind == "standardise":
        weight = (moments.total.diagonal() + floor).rsqrt().diag()
        return weight, -weight @ mean
    which, target = kind.split("-")
    covariance = moments.total if which == "total" else moments.within
    diagonal = covariance.diagonal() if target == "diagonal" else covariance.diagonal().mean().expand(len(mean))
    shrunk = (1 - shrink) * covariance + (shrink * diagonal + floor).diag()
    weight = torch.linalg.solve_triangular(torch.linalg.cholesky(shrunk), eye, upper=False)
    return weight, -weight @ mean


def vectors(model: Any, dataset: Dataset, split: str) -> tuple[Tensor, Tensor]:
    """All vectors and labels of a split, on the model's device."""
    parts = list(model.embed(dataset.split(split), batch=2000))
    z, labels = (torch.from_numpy(np.concatenate(items)).to(model.device) for items in zip(*parts, strict=True))
    return z, labels


def neighbours(database: Tensor, queries: Tensor, labels: Tensor, wanted: Tensor) -> tuple[float, float]:
    """1-NN accuracy and mAP@10, by cosine."""
    totals = torch.bincount(labels, minlength=int(wanted.max()) + 1)[wanted].cpu().numpy()
    found = torch.cat([labels[(part @ database.T).topk(K, 1).indices] for part in queries.split(2000)])
    relevant = (found == wanted[:, None]).cpu().numpy()
    return float(relevant[:, 0].mean()), mean_average_precision(relevant, totals, K)


def averaged_heads(logits: Tensor, dims: tuple[int, ...], wanted: Tensor) -> dict[str, dict[int, float]]:
    """The top-1 at every dim if its logits are averaged with those of smaller dims, which read fewer columns."""
    figures: dict[str, dict[int, float]] = {}
    for name, first, own in (("all", 0, 0.0), ("two", -2, 0.0), ("three", -3, 0.0), ("half own", 0, 0.5)):
        for number, dim in enumerate(dims):
            low = 0 if first == 0 else max(0, number + 1 + first)
            mixed = (1 - own) * logits[low : number + 1].mean(0) + own * logits[number]
            figures.setdefault(name, {})[dim] = float((mixed.argmax(-1) == wanted).float().mean())
    return figures


def main() -> None:
    """Run the trainings that have no row yet, several at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train_*.npz, val_*.npz and meta.json")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/tiny-imagenet.jsonl"))
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="trainings at a time")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no training after this many minutes")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="for every job: does it run?")
    parser.add_argument("--first", type=int, metavar="N", help="only the first images of each split: does it run?")
    args = parser.parse_args()
    stored = read_rows(args.rows) if args.rows.exists() else []
    jobs = [job for job in candidates() if not job.is_in(stored)]
    dataset = open_dataset("packed", args.data)
    if args.first:
        some = {name: split.subset(np.arange(args.first)) for name, split in dataset.splits.items()}
        dataset = dataclasses.replace(dataset, splits=some)
    dataset = hold_out(decoded(dataset), HELD)
    work = partial(run, args.rows, args.set)
    for line in run_jobs(work, jobs, dataset, processes=args.jobs, minutes=args.minutes):
        print(line, flush=True)


if __name__ == "__main__":
    main()
