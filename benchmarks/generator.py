"""A generator of labelled nested embeddings, fitted to real ones, for databases of any size.

What it takes from the real embeddings, for the database and the queries apart where they differ (a network knows the
images it was trained on better than others):

- The **class means**: their mean and covariance. Means of any number of classes are drawn from that Gaussian; those of
  the queries lie nearer to the common mean, by a share a block.
- **Confusion**: some vectors look like another class than their own, at every dim alike, which is why longer prefixes
  do not make a classifier perfect. How many do, and how near the other class is to their own, is counted.
- The **covariance within** what looks like one class, pooled over classes.
- **Rectification**: where the real vectors are pooled outputs of a ReLU, negative coordinates become 0.

Such a model has the shape of the data, but its mAP@10 is some points off, as no class is a Gaussian. So the spread
within each block is scaled by one factor, and the share of the database that is confused by another, found by bisection
so that mAP@10 at every dim is that of the real embeddings. The row that ``fit`` stores holds both, the factors, and how
often a prefix finds the neighbours of the full dim, to which nothing was fitted.

    python benchmarks/generator.py fit --database emb/train --queries emb/val --model model.safetensors
    python benchmarks/generator.py draw --model model.safetensors --count 1281167 --classes 1000 --out drawn
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
from tqdm import tqdm

from matryo import EmbeddingSet, Nesting
from matryo.embeddings import EmbeddingWriter
from matryo.evaluation.knn.search import search
from matryo.metrics import mean_average_precision, relevance
from matryo.results import append_rows, stamp

Floats = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

BATCH = 8192   # vectors drawn at a time
RANK = 1024   # axes of the covariance that are kept whole; the rest counts column by column
FACTORS = (0.5, 1.5)   # what the spread of a block may be scaled by
NEAR = 0.002   # mAP@10 that is near enough for a factor to stay 1
ASKED = BATCH   # queries that the factors are found with,
TRIALS = 2   # draws
SIDES = ("database", "queries")


@dataclass(frozen=True, eq=False)
class Generator:
    """A fitted model; of pairs the first is for the database, the second for the queries."""

    title: str
    nesting: Nesting
    centre: Floats
    """[2, d]: the mean of the class means."""
    between: Floats
    """[axes, d]: class means are standard normal numbers times this, around the centre."""
    pull: Floats
    """[2, d]: the share of that which remains."""
    within: Floats
    """[2, axes, d]: the same for vectors around what they look like."""
    rest: Floats
    """[2, d]: the deviation of what those axes leave out."""
    confused: tuple[float, float]
    """The share that looks like another class."""
    nearness: Floats
    """[2, quantiles]: which class that is: the share of the other classes that are nearer."""
    factors: tuple[float, ...]
    """The scale of the spread within classes, per block."""
    rectified: bool

    def means(self, classes: int, seed: int) -> Floats:
        """The class means of one draw, around 0."""
        drawn = np.random.default_rng([seed, 0]).standard_normal((classes, len(self.between)))
        if classes > len(self.between):   # enough for their own covariance to be made the fitted one: less chance
            drawn -= drawn.mean(0)
            left, _, right = np.linalg.svd(drawn, full_matrices=False)
            drawn = np.sqrt(classes) * left @ right
        return drawn.astype(np.float32) @ self.between

    def draw(self, side: int, count: int, means: Floats, seed: int) -> Iterator[tuple[Floats, Integers]]:
        """Vectors and labels, batch by batch. A longer draw begins with what a shorter one has."""
        nearest = neighbours(means)
        for number, start in enumerate(range(0, count, BATCH)):
            rng, size = np.random.default_rng([seed, 1 + side, number]), min(BATCH, count - start)
            labels, look, noise = self.parts(side, size, nearest, rng)
            yield self.assemble(side, means, look, noise), labels

    def parts(self, side: int, count: int, nearest: Integers, rng: np.random.Generator) -> tuple[Any, Any, Any]:
        """Labels, what each vector looks like, and its distance from that, which no factor has scaled yet."""
        classes, most = nearest.shape
        # Shares are met in every batch, not on average: what is left to chance is where, so that draws differ less.
        labels, rank, confused = (rng.permutation(BATCH)[:count] for _ in range(3))
        labels %= classes
        place = self.nearness[side][rank % self.nearness.shape[1]] * most
        other = nearest[labels, np.minimum(place.astype(np.int64), most - 1)]
        look = np.where(confused < self.confused[side] * BATCH, other, labels)
        noise = rng.standard_normal((count, self.within.shape[1]), np.float32) @ self.within[side]
        if self.rest.any():
            noise += rng.standard_normal((count, self.nesting.dim), np.float32) * self.rest[side]
        return labels, look, noise

    def assemble(self, side: int, means: Floats, look: Integers, noise: Floats, dim: int | None = None) -> Floats:
        """The vectors, or their first columns."""
        centres = (self.centre[side] + self.pull[side] * means)[:, :dim]
        vectors = centres[look] + noise[:, :dim] * by_column(self.nesting, self.factors)[:dim]
        return np.asarray(np.maximum(vectors, 0) if self.rectified else vectors, np.float32)

    def save(self, path: Path) -> None:
        """As safetensors, the large arrays in half precision."""
        about = {
            "title": self.title, "dims": self.nesting.dims, "confused": self.confused, "factors": self.factors,
            "rectified": self.rectified,
        }  # fmt: skip
        arrays = {name: getattr(self, name) for name in ("centre", "pull", "rest", "nearness")}
        arrays |= {name: getattr(self, name).astype(np.float16) for name in ("between", "within")}
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}   # bytes are written as they lie
        save_file(arrays, path, {"generator": json.dumps(about)})

    @classmethod
    def load(cls, path: Path) -> Generator:
        """Read what :meth:`save` wrote."""
        with safe_open(path, "numpy") as file:
            about = json.loads(file.metadata()["generator"])
            arrays = {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}  # noqa: SIM118
        fields: dict[str, Any] = {name: tuple(about.pop(name)) for name in ("confused", "factors")}
        return cls(nesting=Nesting(about.pop("dims")), **about, **fields, **arrays)


# ── fitting ───────────────────────────────────────────────────────────────────────────────────────────────────


def fit(database: EmbeddingSet, queries: EmbeddingSet) -> Generator:
    """The model before it is scaled: all factors are 1."""
    sides = [(np.asarray(one.vectors, np.float32), np.asarray(one.labels)) for one in (database, queries)]
    classes, nesting = int(sides[0][1].max()) + 1, database.nesting
    own = class_means(*sides[0], classes)
    looks = [look_like(vectors, own) for vectors, _ in sides]
    means = [class_means(vectors, look, classes) for (vectors, _), look in zip(sides, looks, strict=True)]
    centre = np.stack([one.mean(0) for one in means])
    around = means[0] - centre[0], means[1] - centre[1]
    pull = np.ones((2, nesting.dim), np.float32)
    for low, high in nesting.blocks:
        block = around[0][:, low:high]
        pull[1, low:high] = (block * around[1][:, low:high]).sum() / np.square(block).sum()
    nearest = neighbours(own)
    spreads, shares, nearness = [], [], []
    for side, ((vectors, labels), look) in enumerate(zip(sides, looks, strict=True)):
        spreads.append(axes_of(vectors - (centre[side] + pull[side] * around[0])[look]))
        wrong = look != labels
        place = (nearest[labels[wrong]] == look[wrong, None]).argmax(1) / nearest.shape[1]
        shares.append(float(wrong.mean()))
        nearness.append(np.quantile(place, np.linspace(0, 1, 256)))
    within, rest = (np.stack(arrays) for arrays in zip(*spreads, strict=True))
    between, _ = axes_of(around[0])
    return Generator(
        queries.manifest.title, nesting, centre, between, pull, within, rest, (shares[0], shares[1]),
        np.stack(nearness).astype(np.float32), (1.0,) * len(nesting), all(v.min() >= 0 for v, _ in sides),
    )  # fmt: skip


def class_means(vectors: Floats, labels: Integers, classes: int) -> Floats:
    """The mean of each class; of one that nothing looks like, the common mean."""
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=classes))[:-1]
    groups = [vectors[rows] for rows in np.split(order, ends)]
    return np.stack([group.mean(0) if len(group) else vectors.mean(0) for group in groups])


def look_like(vectors: Floats, means: Floats) -> Integers:
    """The class whose mean is nearest by the cosine."""
    to = (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    parts = [(vectors[start : start + BATCH] @ to).argmax(1) for start in range(0, len(vectors), BATCH)]
    return np.concatenate(parts)


def neighbours(means: Floats) -> Integers:
    """The other classes of each class, nearest first."""
    scores = means @ means.T
    squares = np.diag(scores)
    distances = squares[:, None] + squares - 2 * scores
    np.fill_diagonal(distances, -np.inf)
    return np.argsort(distances, axis=1, kind="stable")[:, 1:]


def axes_of(vectors: Floats) -> tuple[Floats, Floats]:
    """Axes [axes, d] and deviations [d], so that normal numbers times both have the covariance of ``vectors``."""
    count, dim = vectors.shape
    moved = vectors - vectors.mean(0)
    covariance = (moved.T @ moved).astype(np.float64) / count
    values, turned = np.linalg.eigh(covariance)
    kept = min(RANK, dim, count - 1)
    axes = (turned[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0)))[:, :kept].T
    left = np.maximum(np.diag(covariance) - np.square(axes).sum(0), 0)
    left = np.where(left < 1e-6 * np.diag(covariance), 0, left)   # rounding
    return axes.astype(np.float32), np.sqrt(left).astype(np.float32)


def by_column(nesting: Nesting, values: tuple[float, ...]) -> Floats:
    """Expand one value per block to one value per column."""
    widths = [high - low for low, high in nesting.blocks]
    return np.repeat(np.array(values, np.float32), widths)


# ── scaling ───────────────────────────────────────────────────────────────────────────────────────────────────


class Trial:
    """One draw whose random numbers are kept, so that what changes from setting to setting is due to it alone."""

    def __init__(self, model: Generator, counts: tuple[int, int], classes: int, seed: int) -> None:
        self.means, self.counts, self.seed = model.means(classes, seed), counts, seed
        self.nearest = neighbours(self.means)
        self.sides = [self.parts(model, side) for side in (0, 1)]

    def parts(self, model: Generator, side: int) -> list[Any]:
        """Labels, looks and noise of one side."""
        starts = range(0, self.counts[side], BATCH)
        found = [
            model.parts(side, min(BATCH, self.counts[side] - start), self.nearest,
                        np.random.default_rng([self.seed, 1 + side, number]))
            for number, start in enumerate(starts)
        ]  # fmt: skip
        return [np.concatenate(arrays) for arrays in zip(*found, strict=True)]

    def confuse(self, model: Generator) -> None:
        """Draw the looks of the database again."""
        self.sides[0][1] = self.parts(model, 0)[1]

    def map10(self, model: Generator, dim: int) -> float:
        """mAP@10 at one dim."""
        (known, look, noise), (asked, seen, apart) = self.sides
        database = model.assemble(0, self.means, look, noise, dim)
        queries = model.assemble(1, self.means, seen, apart, dim)
        return graded(search(database, queries, (dim,), 10)[dim], known, asked)


def calibrate(model: Generator, goal: dict[int, float], trials: list[Trial]) -> Generator:
    """The model whose mAP@10, in the mean over the trials, is ``goal`` at every dim.

    First the confusion of the database, which decides what the last dim can reach; then the factor of each block.
    """
    last = model.nesting.dim
    bar = tqdm(total=1 + len(model.nesting), desc="calibrate", unit="setting")

    def found(one: Generator, dim: int) -> float:
        return float(np.mean([trial.map10(one, dim) for trial in trials]))

    def at_factor(at: Callable[[float], Generator], dim: int, factor: float) -> float:
        return found(at(factor), dim)

    def at_confusion(share: float) -> float:
        one = replace(model, confused=(share, model.confused[1]))
        for trial in trials:
            trial.confuse(one)
        return found(one, last)

    share = bisect(at_confusion, 0.0, 0.5, goal[last], steps=7)
    at_confusion(share)
    model = replace(model, confused=(share, model.confused[1]))
    bar.update()
    for block, dim in enumerate(model.nesting.dims):
        # At long dims mAP hardly depends on the spread.
        if abs(found(model, dim) - goal[dim]) > NEAR:
            at = partial(scaled, model, block)
            model = at(bisect(partial(at_factor, at, dim), *FACTORS, goal[dim], steps=6))
        bar.update()
    return model


def scaled(model: Generator, block: int, factor: float) -> Generator:
    """The model with another factor for one block."""
    return replace(model, factors=(*model.factors[:block], factor, *model.factors[block + 1 :]))


def bisect(falling: Callable[[float], float], low: float, high: float, goal: float, steps: int) -> float:
    """Where a falling function has the value ``goal``, or the end that comes nearest.

    >>> bisect(lambda x: 1 - x, 0, 1, goal=0.25, steps=20)
    0.75
    """
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > goal else (low, middle)
    return (low + high) / 2


# ── comparing ─────────────────────────────────────────────────────────────────────────────────────────────────


def graded(found: Integers, known: Integers, asked: Integers) -> float:
    """mAP@10; queries whose class the database lacks are excluded."""
    totals = np.bincount(known, minlength=int(asked.max()) + 1)[asked]
    used = totals > 0
    return mean_average_precision(relevance(known[found[used]], asked[used]), totals[used], 10)


def compared(database: Floats, known: Integers, queries: Floats, asked: Integers, nesting: Nesting) -> dict[str, Any]:
    """By dim: mAP@10, and the share of the ten nearest at full dim that are among the first 10 and 200 at this one."""
    found = search(database, queries, nesting.dims, 200, progress=True)
    full = np.sort(found[nesting.dim][:, :10], axis=1)

    def overlap(hits: Integers) -> float:
        return float((hits[:, :, None] == full[:, None, :]).any(1).mean())

    return {
        "map@10": {str(dim): graded(hits[:, :10], known, asked) for dim, hits in found.items()},
        "recall@10 of 10": {str(dim): overlap(hits[:, :10]) for dim, hits in found.items()},
        "recall@10 of 200": {str(dim): overlap(hits) for dim, hits in found.items()},
    }


def drawn_arrays(model: Generator, counts: tuple[int, int], classes: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Vectors and labels of the database and of the queries, in memory."""
    means = model.means(classes, seed)
    sides = [zip(*model.draw(side, counts[side], means, seed), strict=True) for side in (0, 1)]
    (vectors, labels), (queries, asked) = (map(np.concatenate, side) for side in sides)
    return vectors, labels, queries, asked


def write(
    model: Generator, counts: tuple[int, int], classes: int, seed: int, out: Path, dtype: str = "float16"
) -> tuple[Path, Path]:
    """Two embeddings folders in ``out``, written batch by batch; those that are there already stay."""
    means = model.means(classes, seed)
    places = tuple(out / f"{name}-{count}" for name, count in zip(SIDES, counts, strict=True))
    for side, place in enumerate(places):
        if place.exists():
            continue
        writer = EmbeddingWriter(
            place, dim=model.nesting.dim, dtype=dtype, overwrite=True, nesting=model.nesting,
            model=f"{model.title}, generated, {classes:,} classes", dataset=f"{classes} classes",
        )  # fmt: skip
        with writer:
            bar = tqdm(total=counts[side], desc=SIDES[side], unit="vector", delay=2)
            for vectors, labels in model.draw(side, counts[side], means, seed):
                writer.append(vectors, labels)
                bar.update(len(vectors))
    return places[0], places[1]


def main() -> None:
    """Fit and compare, or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    fitting = verbs.add_parser("fit", help="fit to real embeddings, compare with them, store a row")
    fitting.add_argument("--database", type=EmbeddingSet.open, required=True, metavar="EMB")
    fitting.add_argument("--queries", type=EmbeddingSet.open, required=True, metavar="EMB")
    fitting.add_argument("--seeds", type=int, default=3, help="draws to compare, none of which was fitted to")
    fitting.add_argument("--rows", type=Path, default=Path("docs/results/generator.jsonl"))
    drawing = verbs.add_parser("draw", help="write embeddings folders")
    drawing.add_argument("--count", type=int, required=True, help="vectors in the database")
    drawing.add_argument("--asked", type=int, default=10_000, help="queries")
    drawing.add_argument("--classes", type=int, default=1000)
    drawing.add_argument("--out", type=Path, required=True)
    for verb in (fitting, drawing):
        verb.add_argument("--model", type=Path, required=True, help="a .safetensors file")
        verb.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.verb == "draw":
        write(Generator.load(args.model), (args.count, args.asked), args.classes, args.seed, args.out)
        return
    fit_and_compare(args)


def fit_and_compare(args: argparse.Namespace) -> None:
    """The verb ``fit``."""
    sets: tuple[EmbeddingSet, EmbeddingSet] = args.database, args.queries
    counts, classes = (sets[0].count, sets[1].count), int(np.asarray(sets[0].labels).max()) + 1
    (database, known), (queries, asked) = ((np.asarray(one.vectors), np.asarray(one.labels)) for one in sets)
    real = compared(database, known, queries, asked, sets[0].nesting)
    goal = {int(dim): value for dim, value in real["map@10"].items()}
    model = fit(*sets)
    few = counts[0], min(counts[1], ASKED)
    trials = [Trial(model, few, classes, (1 << 32) - 1 - trial) for trial in range(TRIALS)]
    model = calibrate(model, goal, trials)
    model.save(args.model)
    model = Generator.load(args.model)   # as others will have it
    seeds = range(args.seed, args.seed + args.seeds)
    drawn = [compared(*drawn_arrays(model, counts, classes, seed), model.nesting) for seed in seeds]
    for name, by_dim in real.items():
        print(name)
        for dim, value in by_dim.items():
            print(f"  {dim:>5}  real {100 * value:6.2f}  drawn", *(f"{100 * one[name][dim]:6.2f}" for one in drawn))
    figures = {
        "database": counts[0], "queries": counts[1], "classes": classes, "dims": model.nesting.dims, "real": real,
        "drawn": drawn, "factors": model.factors, "confused": model.confused, "bytes": args.model.stat().st_size,
    }  # fmt: skip
    append_rows(args.rows, [stamp("generator", model.title, figures, seed=args.seed)])


if __name__ == "__main__":
    main()
