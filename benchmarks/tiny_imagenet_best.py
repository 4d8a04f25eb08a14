"""Compare one nested ResNet18 with a fixed one per dim on Tiny-ImageNet: choose its settings, then report them once.

    python benchmarks/tiny_imagenet_best.py choose --data DIR     # on a tenth of the training images, one seed
    python benchmarks/tiny_imagenet_best.py report --data DIR     # on the test split, three seeds
    python benchmarks/tiny_imagenet_best.py others --data DIR     # ResNet50 and a ViT with these settings, one seed

Each training is one call of benchmarks/tiny_imagenet.py in a process of its own, --jobs of them at a time on one GPU.
Jobs that --rows already holds are skipped, so an interrupted stage is continued by the same command.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from matryo.results import Row, read_rows

PLAIN, BEST = "tiny-imagenet-rn18", "tiny-imagenet-rn18-best"
DIMS = (8, 16, 32, 64, 128, 256, 512)
# What each candidate changes in the recipe BEST: one ingredient removed, weakened or strengthened.
HALF, LARGE = "head.self_distil=0.5", "head.weights=0.25,0.125,0.125,0.125,0.125,0.25,1"
SMALL = "head.weights=0.15,0.08,0.08,0.08,0.08,0.15,1"
CANDIDATES: tuple[tuple[str, ...], ...] = (
    (LARGE,),
    (LARGE, HALF),
    ("encoder.neck=none", LARGE, HALF),
    ("encoder.neck=linear+batch", LARGE, HALF),
    (SMALL,),
    ("encoder.neck=none", SMALL),
)


@dataclass(frozen=True)
class Job:
    """One training."""

    recipe: str
    model: str
    seed: int
    settings: tuple[str, ...] = ()
    validate: float = 0.0

    @property
    def words(self) -> list[str]:
        """The options of benchmarks/tiny_imagenet.py."""
        words = ["--recipe", self.recipe, "--models", self.model, "--seeds", f"{self.seed}", "--shared", "--measure"]
        words += ["--set", *self.settings] if self.settings else []
        return words + (["--validate", f"{self.validate:g}"] if self.validate else [])

    def is_in(self, rows: Sequence[Row]) -> bool:
        """Whether a row of this training is stored."""
        kind, _, dim = self.model.partition(":")
        changed = dict(item.split("=", 1) for item in self.settings)
        return any(
            row.kind == "train" and row.subject == f"{self.recipe} {kind}" and row.seed == self.seed
            and row.figures.get("changed") == changed and row.figures.get("validate", 0.0) == self.validate
            and (not dim or list(next(iter(row.figures["top1"].values()))) == [dim])
            for row in rows
        )  # fmt: skip


def fixed(dim: int, seed: int, recipe: str = BEST, validate: float = 0.0) -> Job:
    """A fixed model, with the neck of the recipe BEST or without (PLAIN); at 8 dims with less regularisation."""
    smoothing = 0.0 if dim == 8 else 0.1
    own = [f"optim.label_smoothing={smoothing:g}"] if recipe == PLAIN else [f"head.smoothing={smoothing:g}"]
    return Job(recipe, f"fixed:{dim}", seed, (*["optim.weight_decay=5e-4"] * (dim == 8), *own), validate)


def stage(name: str) -> Iterator[Job]:
    """The trainings of a stage, the most important first."""
    if name == "choose":
        yield from (fixed(dim, 0, PLAIN, 0.1) for dim in (512, 8))
        yield from (Job(BEST, "separate", 0, settings, 0.1) for settings in CANDIDATES)
    elif name == "report":
        yield from (Job(BEST, "separate", seed) for seed in range(3))
        yield from (fixed(dim, seed) for seed in range(3) for dim in (512, 8, 64))
        yield from (fixed(dim, seed) for seed in range(3) for dim in (256, 16, 32, 128))
    else:
        for recipe, dims in (("tiny-imagenet-rn50", (8, 64, 2048)), ("tiny-imagenet-vit", (12, 48, 192))):
            ingredients = ("encoder.neck=batch", "head.balance=ends", "head.self_distil=0.7")
            yield Job(recipe, "separate", 0, ingredients)
            yield from (Job(recipe, f"fixed:{dim}", 0, ("encoder.neck=batch",)) for dim in dims)


def main() -> None:
    """Run the jobs of a stage that have no row yet, several at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("choose", "report", "others"))
    parser.add_argument("--data", type=Path, required=True, help="folder with train_*.npz, val_*.npz and meta.json")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/tiny-imagenet.jsonl"))
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="trainings at a time")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no training after this many minutes")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="for every job: does it run?")
    parser.add_argument("--print", action="store_true", help="only print the commands")
    args = parser.parse_args()
    stored, begin = read_rows(args.rows) if args.rows.exists() else [], time.monotonic()
    jobs = [replace(job, settings=(*job.settings, *args.set)) for job in stage(args.stage)]
    jobs = [job for job in jobs if not job.is_in(stored)]
    threads = {"OMP_NUM_THREADS": f"{max(1, (os.cpu_count() or 1) // args.jobs)}"}

    def run(job: Job) -> str:
        program = Path(__file__).with_name("tiny_imagenet.py")
        command = [sys.executable, str(program), "--data", str(args.data), "--rows", str(args.rows), *job.words]
        if args.print:
            return " ".join(command)
        if time.monotonic() - begin > 60 * args.minutes:
            return f"skipped {job.recipe} {job.model} seed {job.seed}: {args.minutes:g} minutes are over"
        done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **threads})
        return done.stdout.strip() if not done.returncode else f"failed: {job}\n{done.stderr[-1500:]}"

    failed = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for text in pool.map(run, jobs):
            print(f"{time.monotonic() - begin:4.0f} s  {text}", flush=True)
            failed += text.startswith("failed")
    if failed:
        raise SystemExit(f"{failed} of {len(jobs)} trainings failed")


if __name__ == "__main__":
    main()
