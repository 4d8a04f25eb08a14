"""Compare one nested ResNet18 with a fixed one per dim on Tiny-ImageNet; tiny_imagenet_maps.py chose the settings.

    python benchmarks/tiny_imagenet_best.py report --data DIR     # on the test split, three seeds
    python benchmarks/tiny_imagenet_best.py others --data DIR     # ResNet50 and a ViT with these settings, one seed

Each training is one call of benchmarks/tiny_imagenet.py, in --jobs processes on one GPU that share the decoded images.
Jobs that --rows already holds are skipped, so an interrupted stage is continued by the same command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from support.forked import run_jobs
from tiny_imagenet import decoded, parse, run_one

from matryo.data import Dataset, open_dataset
from matryo.results import Row, read_rows

BEST = "tiny-imagenet-rn18-best"


@dataclass(frozen=True)
class Job:
    """One training."""

    recipe: str
    model: str
    seed: int
    settings: tuple[str, ...] = ()

    @property
    def changed(self) -> dict[str, str]:
        """The recipe fields that are changed."""
        return dict(item.split("=", 1) for item in self.settings)

    @property
    def words(self) -> list[str]:
        """The options of benchmarks/tiny_imagenet.py."""
        words = ["--recipe", self.recipe, "--models", self.model, "--seeds", f"{self.seed}", "--shared", "--measure"]
        return words + (["--set", *self.settings] if self.settings else [])

    def is_in(self, rows: Sequence[Row]) -> bool:
        """Whether a row of this training is stored."""
        kind, _, dim = self.model.partition(":")
        return any(
            row.kind == "train" and row.subject == f"{self.recipe} {kind}" and row.seed == self.seed
            and row.figures.get("changed") == self.changed and not row.figures.get("validate")
            and (not dim or list(next(iter(row.figures["top1"].values()))) == [dim])
            for row in rows
        )  # fmt: skip


def fixed(dim: int, seed: int) -> Job:
    """A fixed model with the map of the recipe BEST; at 8 dims with less regularisation."""
    own = ["head.weights=1", f"head.smoothing={0.0 if dim == 8 else 0.1:g}"]
    return Job(BEST, f"fixed:{dim}", seed, (*["optim.weight_decay=5e-4"] * (dim == 8), *own))


def stage(name: str) -> Iterator[Job]:
    """The trainings of a stage, the most important first."""
    if name == "report":
        yield from (Job(BEST, "separate", seed) for seed in range(3))
        yield from (fixed(dim, seed) for dim in (512, 256, 64, 128, 8, 16, 32) for seed in range(3))
    else:
        ingredients = ("encoder.whiten=within", "head.self_distil=0.7", "head.blend=0.5")
        for recipe, dims in (("tiny-imagenet-rn50", (8, 64, 2048)), ("tiny-imagenet-vit", (12, 48, 192))):
            yield Job(recipe, "separate", 0, (*ingredients, "head.balance=ends"))
            yield from (Job(recipe, f"fixed:{dim}", 0, ingredients[:1]) for dim in dims)


def main() -> None:
    """Run the jobs of a stage that have no row yet, several at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("report", "others"))
    parser.add_argument("--data", type=Path, required=True, help="folder with train_*.npz, val_*.npz and meta.json")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/tiny-imagenet.jsonl"))
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="trainings at a time")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no training after this many minutes")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="for every job: does it run?")
    parser.add_argument("--print", action="store_true", help="only print the commands")
    args = parser.parse_args()
    stored = read_rows(args.rows) if args.rows.exists() else []
    jobs = [replace(job, settings=(*job.settings, *args.set)) for job in stage(args.stage)]
    jobs = [job for job in jobs if not job.is_in(stored)]
    if args.print:
        print(*(" ".join(job.words) for job in jobs), sep="\n")
        return
    dataset = decoded(open_dataset("packed", args.data))
    work = partial(run, args.data, args.rows)
    for line in run_jobs(work, jobs, dataset, processes=args.jobs, minutes=args.minutes):
        print(line, flush=True)


def run(data: Path, rows: Path, job: Job, dataset: Dataset) -> str:
    """Train and measure one model in this process."""
    program = str(Path(__file__).with_name("tiny_imagenet.py"))
    sys.argv = [program, "--data", str(data), "--rows", str(rows), *job.words]   # the command of the rows
    return run_one(parse(), job.model, job.seed, job.changed, dataset, dataset)


if __name__ == "__main__":
    main()
