"""Fit the rungs of the ladder to vectors, and let held-out queries choose between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.embeddings.rows import UNKNOWN, as_labels
from matryo.errors import EmbeddingsError, InputError, MissingExtra
from matryo.nesting import Nesting, truncate
from matryo.progress import tqdm
from matryo.retrofit import rungs
from matryo.retrofit.choice import SIMPLE, Taken, choose
from matryo.retrofit.held_out import Held, Rung
from matryo.retrofit.moments import Moments
from matryo.retrofit.reading import Reservoir, batches_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matryo.arrays import Doubles, Floats, Integers
    from matryo.retrofit.held_out import Metric

_SAMPLE, _SAMPLE_NUMBERS = 16_384, 1 << 25   # rows that held-out queries search, and the most numbers in them
_TESTS = 1000   # held-out queries
_TUNING = 1 / 3   # of the labelled held-out queries: they choose how much labels weigh, the others test
_MOST_LABELLED = 20_000


@dataclass(frozen=True)
class Options:
    """The settings of a fit."""

    nesting: Nesting | None = None
    trained: Nesting | None = None
    """The dims that the vectors were trained at, whose prefixes keep their span in the rung ``blocks``."""
    metric: Metric = "cosine"
    k: int = 10
    shortlist: int = 100
    learn: bool = False
    adapt: bool = False
    confidence: float = 0.95
    seed: int = 0
    progress: bool = True


@dataclass(eq=False)
class Fit:
    """The state of a fit."""

    options: Options
    moments: Moments = field(default_factory=lambda: Moments(1))
    rungs: dict[str, Rung] = field(default_factory=dict)
    table: tuple[Taken, ...] = ()
    whole: str = "identity"
    quality: str = "recall"
    zeros: int = 0
    """Rows that are all zeros, which have no direction."""

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.options.seed)

    @property
    def unit(self) -> bool:
        """Whether vectors are compared by direction."""
        return self.options.metric == "cosine"

    def run(self, vectors: Any, queries: Any, relevance: Any, labels: Any) -> Fit:
        """Read the vectors once, fit every rung, and choose."""
        numbers = None if labels is None else np.asarray(as_labels(labels, len(labels)))
        asked = None if queries is None else self._as_queries(queries)
        pairs = None if relevance is None else _as_relevance(relevance, asked)
        self._read(vectors, _wanted(numbers, pairs, self.rng))
        rows, sample = self.sample
        if numbers is not None and len(numbers) != self.reservoir.seen:
            rule = f"labels must have one entry for each of the {self.reservoir.seen} vectors"
            raise InputError(rule, got=len(numbers), cure="write −1, or None for a name, where it is unknown")
        if asked is not None and asked.shape[1] != self.moments.dim:
            rule = f"queries must have {self.moments.dim} columns, as the vectors have"
            raise InputError(rule, got=asked.shape[1], cure="encode both with one model")
        self.nesting = _nesting(self.options.nesting, self.moments.dim)
        self.dims = self._tested_dims()
        if pairs is not None:
            self._by_pairs(asked, pairs, rows, sample)
        elif numbers is not None and np.count_nonzero(numbers != UNKNOWN):
            self._by_labels(numbers, rows, sample)
        else:
            self._by_recall(asked, sample)
        return self

    def _as_queries(self, queries: Any) -> Floats:
        vectors = np.concatenate(list(batches_of(queries)))
        return vectors[vectors.any(axis=1)] if self.unit else vectors

    def _read(self, vectors: Any, wanted: Integers) -> None:
        if isinstance(vectors, Statistics):
            self.moments, self.reservoir, self.zeros = vectors.collect(self.unit, wanted, self.rng)
        else:
            self._read_batches(vectors, wanted)
        count, dim = self.moments.count, self.moments.dim
        if count < dim or count < 2:
            got = f"{count}" + (f", and {self.zeros} of zeros" if self.zeros else "")
            raise EmbeddingsError(
                f"a rotation of {dim} dims needs at least {max(2, dim)} vectors",
                got=got,
                cure="pass more vectors of this model; those of another corpus serve, too",
            )
        spread = float(np.trace(self.moments.covariance))
        if not spread > 1e-9 * float(np.square(self.moments.mean).sum()):
            raise EmbeddingsError("vectors must differ", got=f"{count} equal ones", cure="check how they were encoded")
        self.sample = self.reservoir.sample()

    def _read_batches(self, vectors: Any, wanted: Integers) -> None:
        bar = tqdm(desc="retrofit", unit="row", unit_scale=True, delay=2, disable=not self.options.progress)
        with bar:
            for batch in batches_of(vectors):
                if self.moments.count == 0 and self.zeros == 0:
                    dim = batch.shape[1]
                    self.moments = Moments(dim)
                    self.reservoir = Reservoir(sample_size(dim), wanted, self.rng)
                self.reservoir.add(batch)
                alive = batch[batch.any(axis=1)]
                self.zeros += len(batch) - len(alive)
                self.moments.add(directions(alive, unit=self.unit))
                bar.update(len(batch))

    def _directions(self, vectors: Floats) -> Floats:
        return directions(vectors, unit=self.unit)

    def _tested_dims(self) -> tuple[int, ...]:
        trained = self.options.trained
        between = () if trained is None else trained.between()
        return tuple(m for m in sorted({*self.nesting.dims, *between}) if m < self.moments.dim)

    # ── what held-out queries measure ─────────────────────────────────────────────────────────────────────────

    def _by_recall(self, asked: Floats | None, sample: Floats) -> None:
        """Queries of the caller, half of which are held out; otherwise held-out rows."""
        sample = sample[sample.any(axis=1)]
        if asked is not None and len(asked) >= 2:
            order = self.rng.permutation(len(asked))
            own, test = asked[order[len(order) // 2 :]], asked[order[: len(order) // 2]][:_TESTS]
        else:
            own, (test, sample) = None, self._hold_out(sample)
        held = self._held_by_recall(sample, test)
        self._fit_simple()
        if own is not None:
            second = Moments(self.moments.dim)
            second.add(self._directions(own))
            self._add("queries", rungs.query_aware(self.moments.second, second.second, self.nesting))
        self._learn(sample, None, None)
        self._choose(held)

    def _hold_out(self, sample: Floats) -> tuple[Floats, Floats]:
        """Rows that serve as queries, which no rung is fitted to, and the other rows of the sample."""
        most = max(0, min(_TESTS, len(sample) // 8, self.moments.count - self.moments.dim))
        order = self.rng.permutation(len(sample))
        test, rest = sample[order[:most]], sample[order[most:]]
        self.moments.remove(self._directions(test))
        return test, rest

    def _held_by_recall(self, sample: Floats, test: Floats) -> Held:
        options = self.options
        shortlist = min(options.shortlist, max(options.k, len(sample) // 20))
        return Held.by_recall(sample, test, options.metric, options.k, shortlist)

    def _by_labels(self, numbers: Integers, rows: Integers, sample: Floats) -> None:
        """Labelled rows, 40 % of which are held out."""
        self.quality = "labels"
        known = np.flatnonzero((numbers[rows] != UNKNOWN) & sample.any(axis=1))
        order = known[self.rng.permutation(len(known))]
        most = min(_TESTS, round(0.4 * len(order)))
        test, own = order[:most], order[most:]
        labels = numbers[rows]
        prior = self._fit_simple_and_compare(sample)
        right = labels[test][:, None] == labels[own][None]
        k = min(self.options.k, max(1, int(np.median(np.bincount(labels[own])[labels[own]]))) if len(own) else 1)
        held = Held.by_relevance(sample[own], sample[test], self.options.metric, k, right, "labels")
        vectors = self._directions(sample[own]).astype(np.float64)
        signal = partial(rungs.between_classes, vectors, labels[own], self.moments.mean)
        if len(np.unique(labels[own])) < len(own):
            held = self._weighed("classes", signal(), held)
        self._learn(sample, (self._directions(sample[own]), labels[own]), None)
        self._choose(held, prior)

    def _by_pairs(
        self, asked: Floats | None, pairs: list[Integers], rows: Integers, sample: Floats
    ) -> None:
        """Queries with relevant rows, half of which are held out."""
        assert asked is not None
        self.quality = "ndcg"
        if any(len(some) and some.max() >= self.reservoir.seen for some in pairs):
            rule = f"relevance must list rows below {self.reservoir.seen}"
            raise InputError(rule, got=max(int(some.max()) for some in pairs if len(some)), cure="check the numbers")
        order = self.rng.permutation(np.flatnonzero([len(some) > 0 for some in pairs]))
        test, own = order[: len(order) // 2][:_TESTS], order[len(order) // 2 :]
        prior = self._fit_simple_and_compare(sample)
        right = np.array([np.isin(rows, pairs[query]) for query in test], np.bool_).reshape(len(test), len(rows))
        held = Held.by_relevance(sample, asked[test], self.options.metric, self.options.k, right, "ndcg")
        at = [np.searchsorted(rows, pairs[query]) for query in own]
        if own.size:
            left = self._directions(asked[np.repeat(own, [len(some) for some in at])])
            found = self._directions(sample[np.concatenate(at)])
            signal = rungs.of_pairs(left.astype(np.float64), found.astype(np.float64))
            held = self._weighed("pairs", signal, held)
            self._learn(sample, None, (left, found))
        self._choose(held, prior)

    # ── rungs ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, name: str, axes: Doubles, mean: Doubles | None = None) -> None:
        self.rungs[name] = Rung(name, axes, mean)

    def _fit_simple(self) -> None:
        second = self.moments.second
        self._add("identity", np.eye(self.moments.dim))
        self._add("pca", rungs.leading(second))
        self._add("centred", rungs.leading(self.moments.covariance), self.moments.mean)
        trained = self.options.trained
        if trained is not None and len(trained) > 1:
            self._add("blocks", rungs.within_blocks(second, whole_nesting(trained, self.moments.dim)))

    def _fit_simple_and_compare(self, sample: Floats) -> dict[str, Doubles] | None:
        """Fit the simple rungs, and return what they keep of the nearest rows: few labels say less than that."""
        test, rest = self._hold_out(sample[sample.any(axis=1)])
        self._fit_simple()
        if not self.dims or not len(test) or not len(rest):
            return None
        held = self._held_by_recall(rest, test)
        return {name: held.worth(self.rungs[name], self.dims) for name in SIMPLE}

    def _weighed(self, name: str, signal: Doubles, held: Held) -> Held:
        """Add the rung of labels with the best weight on some held-out queries, and return the other queries."""
        order = self.rng.permutation(held.count)
        tuning, test = np.sort(order[: round(_TUNING * len(order))]), np.sort(order[round(_TUNING * len(order)) :])
        if not len(tuning) or not self.dims or not signal.any():
            return held
        some = held.part(tuning)
        candidates = [Rung(name, rungs.mixed(self.moments.second, signal, weight)) for weight in rungs.MIXES]
        self.rungs[name] = max(candidates, key=lambda rung: float(some.worth(rung, self.dims).mean()))
        return held.part(test)

    def _learn(self, sample: Floats, labelled: Any, pairs: Any) -> None:
        """Add the rungs that need torch, as the options say."""
        options, alive = self.options, sample[sample.any(axis=1)]
        if not self.dims or not (options.learn or options.adapt):
            return
        given = {"labelled": labelled, "pairs": pairs, "seed": options.seed, "progress": options.progress}
        axes = self.rungs["pca"].axes
        with MissingExtra.unless_installed("torch", "train"):
            from matryo.retrofit.adapting import learned_correction
            from matryo.retrofit.learning import learned_axes
        if options.learn:
            self._add("learned", learned_axes(self._directions(alive), axes, self.dims, metric=options.metric,
                                               **given))  # fmt: skip
        if options.adapt:
            made = learned_correction(self._directions(alive), axes, self.dims, **given)
            self.rungs["adaptor"] = Rung("adaptor", axes, None, made)

    def _choose(self, held: Held, prior: dict[str, Doubles] | None = None) -> None:
        if not self.dims or not held.count or not len(held.database):
            self.whole = "pca" if self.dims else "identity"
            return
        worth = {name: held.worth(rung, self.dims) for name, rung in self.rungs.items()}
        self.held = held
        self.table, self.whole = choose(worth, self.dims, self.options.confidence, prior)


class Statistics(ABC):
    """The statistics of vectors that another program reads: on a cluster, for example."""

    @abstractmethod
    def collect(self, unit: bool, wanted: Integers, rng: np.random.Generator) -> tuple[Moments, Any, int]:
        """Return the moments, a :class:`Reservoir` or what has its ``seen`` and ``sample``, and the rows of zeros."""


def sample_size(dim: int) -> int:
    """The number of rows that are kept to compare maps."""
    return max(512, min(_SAMPLE, _SAMPLE_NUMBERS // dim))


def directions(vectors: Floats, *, unit: bool) -> Floats:
    """``vectors`` as their moments count them: with norm 1 if they are compared by direction."""
    return truncate(vectors, vectors.shape[1]) if unit else vectors


def _wanted(numbers: Integers | None, pairs: list[Integers] | None, rng: np.random.Generator) -> Integers:
    """The rows that must be in the sample: labelled and relevant ones."""
    if pairs is not None:
        return np.concatenate([*pairs, np.empty(0, np.int64)])
    known = np.empty(0, np.int64) if numbers is None else np.flatnonzero(numbers != UNKNOWN)
    return np.sort(rng.permutation(known)[:_MOST_LABELLED])


def _as_relevance(relevance: Any, queries: Floats | None) -> list[Integers]:
    """The relevant rows of each query."""
    cure = "pass a list with the row numbers that are relevant to each query"
    if queries is None:
        raise InputError("relevance needs queries", got="none", cure="pass queries=…")
    try:
        each = [np.asarray([*some], np.int64).ravel() for some in relevance]
    except (TypeError, ValueError) as error:
        raise InputError("relevance must list row numbers per query", got=error, cure=cure) from None
    if len(each) != len(queries):
        rule = f"relevance must have one entry for each of the {len(queries)} queries"
        raise InputError(rule, got=len(each), cure=cure)
    if any(len(some) and some.min() < 0 for some in each):
        raise InputError("relevance must list row numbers of at least 0", got="a negative one", cure=cure)
    return each


def _nesting(given: Nesting | None, dim: int) -> Nesting:
    if given is None:
        return sensible_nesting(dim)
    given.check_fits(dim)
    return whole_nesting(given, dim)


def whole_nesting(nesting: Nesting, dim: int) -> Nesting:
    """``nesting`` with ``dim`` as its last dim."""
    return nesting if nesting.dim == dim else Nesting([*nesting.dims, dim])


def sensible_nesting(dim: int) -> Nesting:
    """The powers of two from 8 on below ``dim``, and ``dim``.

    >>> sensible_nesting(100).dims
    (8, 16, 32, 64, 100)
    """
    powers: Iterable[int] = (2**power for power in range(3, dim.bit_length()))
    return Nesting([*(m for m in powers if m < dim), dim])


def share_kept(matrix: Doubles, axes: Doubles, dims: Sequence[int]) -> dict[int, float]:
    """The share of the squared norm that the first m outputs keep, by dim, given a second moment."""
    energies = np.einsum("ij,ij->j", axes, matrix @ axes)
    whole = max(float(energies.sum()), np.finfo(float).tiny)
    return {m: float(energies[:m].sum() / whole) for m in dims}


__all__ = ["Fit", "Options", "sensible_nesting", "share_kept", "whole_nesting"]

