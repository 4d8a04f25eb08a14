"""Choose the settings of tiny-imagenet-rn18-best: loss weights, and maps that keep every logit but change cosines.

    python benchmarks/tiny_imagenet_maps.py --data DIR

Each row has, for one nested model trained on nine tenths of the training images, the top-1 accuracy of its heads on the
rest, that of heads averaged over dims, and 1-NN and mAP@10 under every map, at every dim. The images are decoded once
and shared by --jobs processes.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
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
K = 10
ENDS, FEW, LEAST = "0.2,0.1,0.1,0.1,0.1,0.2,1", "0.2,0.03,0.03,0.03,0.03,0.05,1", "0.1,0.02,0.02,0.02,0.02,0.03,1"
FIRST, PAPER = "0.4,0.03,0.03,0.03,0.03,0.05,1", "0.5,0.25,0.25,0.25,0.25,0.5,1"
# Kind and shrinkage of each map; the shrinkage goes towards a multiple of the identity, or towards the diagonal.
MAPS = (
    ("none", 0.0), ("centre", 0.0), ("standardise", 0.0), ("total-equal", 0.1), ("total-equal", 0.3),
    ("total-equal", 0.9), ("total-diagonal", 0.5), ("within-equal", 0.1), ("within-equal", 0.3), ("within-equal", 0.5),
    ("within-equal", 0.9), ("within-diagonal", 0.1), ("within-diagonal", 0.5),
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One training."""

    recipe: str
    model: str
    seed: int
    changed: tuple[str, ...] = ()
    validate: float = 0.0

    @property
    def settings(self) -> dict[str, str]:
        """The recipe fields that are changed."""
        return dict(item.split("=", 1) for item in self.changed)

    def is_in(self, rows: list[Row]) -> bool:
        """Whether a row of this training is stored."""
        wanted = (self.model, self.settings, self.validate)
        return any(
            row.kind == "maps" and row.seed == self.seed and row.subject.startswith(f"{self.recipe} ")
            and (row.figures["model"], row.figures["changed"], row.figures["validate"]) == wanted
            for row in rows
        )  # fmt: skip


def candidates() -> Iterator[Job]:
    """The trainings, the most important first."""
    own = ("encoder.neck=none", "head.self_distil=0.5", "head.weigh=encoder")
    for weights in (FEW, ENDS):
        yield Job(BEST, "separate", 0, (*own, f"head.weights={weights}"), 0.1)
    yield Job(BEST, "separate", 0, (*own[:2], f"head.weights={PAPER}"), 0.1)
    for weights in (LEAST, FIRST):
        yield Job(BEST, "separate", 0, (*own, f"head.weights={weights}"), 0.1)
    yield Job(BEST, "separate", 0, (own[0], own[2], f"head.weights={FEW}"), 0.1)   # with the recipe's distillation
    yield Job(BEST, "separate", 1, (*own, f"head.weights={FEW}"), 0.1)


def measured(job: Job, dataset: Dataset, extra: list[str]) -> Row:
    """The row of one training."""
    test = "validation" if job.validate else "val"
    kind, _, dim = job.model.partition(":")
    fields = {"head.kind": kind, "head.dims": dim, "loop.seed": str(job.seed), "data.test": test, **job.settings}
    fields |= dict(item.split("=", 1) for item in extra)
    recipe = load_recipe(job.recipe, {name: value for name, value in fields.items() if value})
    with tempfile.TemporaryDirectory() as scratch:
        row = RunFolder(train(recipe, dataset, Path(scratch) / "run", progress=False)).row
        figures = measure(Path(scratch) / "run", dataset, test)
    about = {"model": job.model, "changed": job.settings, "validate": job.validate, "split": test}
    stored = {"top1": next(iter(row.figures["top1"].values())), "seconds": row.figures["seconds"], **figures, **about}
    return dataclasses.replace(row, kind="maps", figures=stored)


@torch.inference_mode()
def measure(run: Path, dataset: Dataset, test: str) -> dict[str, Any]:
    """1-NN and mAP@10 under every map, and the top-1 of heads that are averaged over the smaller dims."""
    model = load(run)
    (z, labels), (queries, wanted) = (vectors(model, dataset, name) for name in ("train", test))
    moments = Moments.of(z.double(), labels)
    dims = model.nesting.dims
    if len(dims) == 1:   # its prefixes are measured too, as a baseline
        dims = tuple(dim for dim in (8, 16, 32, 64, 128, 256, 512) if dim <= dims[0])
    figures: dict[str, Any] = {"1-NN": {}, "map@10": {}}
    for kind, shrink in MAPS:
        name = f"{kind} {shrink:g}" if shrink else kind
        weight, bias = triangular(moments, kind, shrink)
        mapped = [part.double() @ weight.T + bias for part in (z, queries)]
        for dim in dims:
            nearest, precise = neighbours(*(truncate(part.float(), dim) for part in mapped), labels, wanted)
            figures["1-NN"].setdefault(name, {})[dim] = nearest
            figures["map@10"].setdefault(name, {})[dim] = precise
    if len(model.nesting) > 1:
        figures["averaged heads"] = averaged_heads(model.network.head.logits(queries), model.nesting.dims, wanted)
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
    parts = list(model.embed(dataset.split(split), batch=2000, workers=0))
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
    """Run the jobs of a stage that have no row yet, several at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train_*.npz, val_*.npz and meta.json")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/tiny-imagenet.jsonl"))
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="trainings at a time")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no training after this many minutes")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="for every job: does it run?")
    parser.add_argument("--first", type=int, metavar="N", help="only the first images of each split: does it run?")
    args = parser.parse_args()
    begin = time.monotonic()
    rows = read_rows(args.rows) if args.rows.exists() else []
    dataset = shared(args)
    waiting = [job for job in candidates() if not job.is_in(rows)]
    context = multiprocessing.get_context("fork")   # the images are shared; nothing has used the GPU yet
    queue = context.SimpleQueue()
    for job in waiting:
        queue.put(job)
    for _ in range(args.jobs):
        queue.put(None)
    print(f"{time.monotonic() - begin:4.0f} s  {len(waiting)} trainings", flush=True)
    workers = [context.Process(target=work, args=(queue, dataset, args, begin)) for _ in range(args.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit(any(worker.exitcode for worker in workers))


def shared(args: argparse.Namespace) -> Dataset:
    """The dataset, decoded, with a tenth of the training images held out."""
    dataset = open_dataset("packed", args.data)
    if args.first:
        some = {name: split.subset(np.arange(len(split)) % (len(split) // args.first) == 0)
                for name, split in dataset.splits.items()}
        dataset = dataclasses.replace(dataset, splits=some)
    return hold_out(decoded(dataset), 0.1)


def work(queue: Any, dataset: Dataset, args: argparse.Namespace, begin: float) -> None:
    """Take jobs until none is left or time is short."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.jobs))
    while (job := queue.get()) is not None:
        now = time.monotonic() - begin
        if now > 60 * args.minutes:
            print(f"{now:4.0f} s  skipped {job}", flush=True)
            continue
        try:
            row = measured(job, dataset, args.set)
        except Exception:
            print(f"failed: {job}\n{traceback.format_exc()[-2500:]}", flush=True)
            continue
        append_rows(args.rows, [row])
        top1 = "  ".join(f"{dim}:{100 * value:.2f}" for dim, value in row.figures["top1"].items())
        print(f"{time.monotonic() - begin:4.0f} s  {job.model} {job.changed} seed {job.seed}: {top1}", flush=True)


if __name__ == "__main__":
    main()
