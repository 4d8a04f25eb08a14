"""Fit on a cluster: a rotation from merged covariances, and k-means, from vectors that no machine reads alone.

The sample that compares maps has the rows that one process would draw. Moments are sums in float64 of the same
products, added in another order, so that axes agree to about 10⁻⁶.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import as_integer
from matryo.errors import InputError
from matryo.progress import tqdm
from matryo.ray.cluster import Cluster
from matryo.ray.parts import Parts
from matryo.retrieve.guides.partition.means import Means
from matryo.retrofit import Retrofit
from matryo.retrofit.fitting import Statistics, directions, sample_size
from matryo.retrofit.moments import Moments

if TYPE_CHECKING:
    from matryo.arrays import Array, Floats, Integers

__all__ = ["fit", "fit_means"]

_RANGE_BYTES = 256 << 20
_STEP_BYTES = 64 << 20
_DRAWN = 1 << 24   # random keys at a time
_ROUNDS, _APART = 7, 1e-3   # as of the k-means of one process


class _Reader:
    """A worker: the vectors, opened once."""

    def __init__(self, vectors: str) -> None:
        self.parts = Parts.open(vectors)
        self.kept: dict[tuple[int, int], Floats] = {}

    def run(self, task: str, *arguments: Any) -> Any:
        """Run the method that ``task`` names."""
        return getattr(self, task)(*arguments)

    def moments(self, first: int, count: int, unit: bool, chosen: Integers) -> tuple[dict[str, Array], int, Floats]:
        """The moments of some rows, the number of rows of zeros, and the vectors of the ``chosen`` rows."""
        moments, zeros = Moments(self.parts.dim), 0
        sample = np.empty((len(chosen), self.parts.dim), np.float32)
        for start, rows in self._steps(first, count):
            here = (chosen >= start) & (chosen < start + len(rows))
            sample[here] = rows[chosen[here] - start]
            alive = rows[rows.any(axis=1)]
            zeros += len(rows) - len(alive)
            moments.add(directions(alive, unit=unit))
        return moments.arrays(), zeros, sample

    def rows(self, first: int, count: int, chosen: Integers) -> Floats:
        """The vectors of the ``chosen`` rows of a range."""
        return self.moments(first, count, False, chosen)[2] if len(chosen) else np.empty((0, self.parts.dim), "f4")

    def assign(self, first: int, count: int, chosen: Integers, means: Floats, unit: bool) -> tuple[Array, Integers]:
        """The sums and the sizes of the vectors nearest to each mean, among the ``chosen`` rows of a range."""
        if (first, count) not in self.kept:
            self.kept[first, count] = directions(self._taken(first, count, chosen), unit=unit)
        rows = self.kept[first, count]
        sums, sizes = np.zeros(means.shape), np.zeros(len(means), np.int64)
        if len(rows):
            near = Means(means, round_=unit).nearest(rows)[:, 0]
            np.add.at(sums, near, rows)
            sizes = np.bincount(near, minlength=len(means))
        return sums, sizes

    def _taken(self, first: int, count: int, chosen: Integers) -> Floats:
        parts = [rows[chosen[(chosen >= start) & (chosen < start + len(rows))] - start]
                 for start, rows in self._steps(first, count)]  # fmt: skip
        return np.concatenate(parts)

    def _steps(self, first: int, count: int) -> Any:
        step = max(1, _STEP_BYTES // (4 * self.parts.dim))
        for start, part in self.parts.batches(first, count):
            for low in range(0, len(part), step):
                yield start + low, np.asarray(part[low : low + step], np.float32)


@dataclass(frozen=True)
class _Sample:
    """Rows that were drawn at random, as :class:`matryo.retrofit.reading.Reservoir` gives them."""

    rows: Integers
    vectors: Floats
    seen: int

    def sample(self) -> tuple[Integers, Floats]:
        return self.rows, self.vectors


@dataclass(frozen=True)
class _OnCluster(Statistics):
    """The statistics of vectors, collected by workers."""

    parts: Parts
    cluster: Cluster
    range_rows: int | None
    progress: bool

    def collect(self, unit: bool, wanted: Integers, rng: np.random.Generator) -> tuple[Moments, Any, int]:
        """Merge the moments of all ranges in the order of their rows."""
        parts = self.parts
        if len(wanted) and int(wanted.max()) >= parts.count:
            raise InputError(f"rows must be below {parts.count}", got=int(wanted.max()), cure="check relevance, labels")
        chosen = np.union1d(_drawn(parts.count, sample_size(parts.dim), rng), wanted).astype(np.int64)
        ranges = _ranges(parts, self.range_rows)
        each = [chosen[(chosen >= first) & (chosen < first + count)] for first, count in ranges]
        jobs = [("moments", first, count, unit, rows) for (first, count), rows in zip(ranges, each, strict=True)]
        moments, zeros = Moments(parts.dim), 0
        waiting: dict[int, dict[str, Array]] = {}
        vectors: list[Any] = [None] * len(jobs)
        merged = 0
        with tqdm(desc="fit", total=parts.count, unit="row", unit_scale=True, delay=2,
                  disable=not self.progress) as bar:  # fmt: skip
            for number, (arrays, none, vectors[number]) in self.cluster.run(_Reader, (parts.place.url,), jobs):
                waiting[number] = arrays
                zeros += none
                bar.update(ranges[number][1])
                while merged in waiting:   # in order, so that the sums do not depend on which worker was faster
                    moments.merge(Moments.of_arrays(waiting.pop(merged)))
                    merged += 1
        return moments, _Sample(chosen, np.concatenate(vectors), parts.count), zeros


def fit(
    vectors: Any, *, cluster: Cluster | None = None, range_rows: int | None = None, progress: bool = True,
    **settings: Any,
) -> Retrofit:  # fmt: skip
    """:meth:`matryo.Retrofit.fit`, with the vectors at a path or a URL read by the workers of a cluster."""
    parts = Parts.open(vectors)
    with cluster or Cluster() as running:
        return Retrofit.fit(_OnCluster(parts, running, range_rows, progress), progress=progress, **settings)


def fit_means(
    vectors: Any, count: int, *, unit: bool, cluster: Cluster | None = None, sample: int | None = None,
    range_rows: int | None = None, seed: int = 0,
) -> Floats:  # fmt: skip
    """Find ``count`` means of a ``sample`` of the vectors (k-means, Lloyd's algorithm); on the unit sphere if ``unit``.

    Workers keep their part of the sample, by default 40 rows per mean, and add up the vectors nearest to each mean.
    """
    parts = Parts.open(vectors)
    as_integer(count, "count", 1, parts.count)
    rng = np.random.default_rng(seed)
    chosen = _drawn(parts.count, min(sample or 40 * count, parts.count), rng)
    ranges = _ranges(parts, range_rows)
    each = [chosen[(chosen >= first) & (chosen < first + size)] for first, size in ranges]
    starts = np.sort(rng.choice(chosen, count, replace=False))
    with cluster or Cluster() as running:
        first_of = [starts[(starts >= first) & (starts < first + size)] for first, size in ranges]
        jobs: list[tuple[Any, ...]] = [("rows", *one, rows) for one, rows in zip(ranges, first_of, strict=True)]
        found = dict(running.run(_Reader, (parts.place.url,), jobs))
        means = directions(np.concatenate([found[number] for number in range(len(jobs))]), unit=unit)
        for _ in range(_ROUNDS):
            shared = running.share(means)
            jobs = [("assign", *one, rows, shared, unit) for one, rows in zip(ranges, each, strict=True)]
            sums, sizes = np.zeros(means.shape), np.zeros(count, np.int64)
            parts_of = dict(running.run(_Reader, (parts.place.url,), jobs))
            for number in range(len(jobs)):
                sums, sizes = sums + parts_of[number][0], sizes + parts_of[number][1]
            means = _moved(means, sums, sizes, rng)
            means = directions(means, unit=unit)
    return means


def _moved(means: Floats, sums: Array, sizes: Integers, rng: np.random.Generator) -> Floats:
    """The means of what is nearest to each; one without vectors goes beside one with the most."""
    moved = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], means).astype(np.float32)
    unused = np.flatnonzero(sizes == 0)
    crowded = moved[np.argsort(-sizes, kind="stable")[: len(unused)]]
    lengths = np.linalg.norm(crowded, axis=1, keepdims=True) * np.float32(_APART / means.shape[1] ** 0.5)
    moved[unused] = crowded + lengths * rng.standard_normal(crowded.shape, np.float32)
    return moved


def _ranges(parts: Parts, rows: int | None) -> list[tuple[int, int]]:
    return parts.ranges(rows or max(1, _RANGE_BYTES // (4 * parts.dim)))


def _drawn(count: int, most: int, rng: np.random.Generator) -> Integers:
    """The rows that a :class:`matryo.retrofit.reading.Reservoir` of ``most`` rows would keep, in order."""
    keys, rows = np.empty(0), np.empty(0, np.int64)
    for start in range(0, count, _DRAWN):
        new = rng.random(min(_DRAWN, count - start))
        every = np.concatenate([keys, new])
        numbers = np.concatenate([rows, np.arange(start, start + len(new))])
        stay = np.sort(np.argsort(every, kind="stable")[:most])
        keys, rows = every[stay], numbers[stay]
    return rows
