"""FLUID-style stream: predict each example, then learn it; classes are known or novel, frequent or rare.

This follows the paper's appendix "FLUID" (Wallingford et al., 2020). A class is the direction of the mean of its unit
prefixes. Known classes start with the vectors of the database, novel classes with none. Each example is assigned to
the nearest class seen so far, then added to the mean of its true class. The first example of a novel class is
therefore always wrong, as in the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from matryo.arguments import checked
from matryo.embeddings import UNKNOWN
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation.checks import check_finite, check_pair, chosen_dims, labels_of
from matryo.evaluation.draws import shuffled_by_class
from matryo.evaluation.protocol import Protocol
from matryo.nesting import truncate
from matryo.progress import tqdm
from matryo.results import SplitResult
from matryo.tables import Metric

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.arrays import Bools, Doubles, Floats, Integers
    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.subject import Subject
    from matryo.nesting import Nesting

_GROUPS = ("pretrain-head", "novel-head", "pretrain-tail", "novel-tail", "mean per class", "overall")
_TAIL_BELOW = 50   # the paper's


@dataclass(frozen=True)
class Stream(SplitResult):
    """Accuracy over a long-tailed stream, by dim, averaged over draws of the stream."""

    kind: ClassVar[str] = "stream"
    draws: int
    length: int
    """Examples per stream."""
    tail_below: int
    """A class with fewer examples in the stream than this is tail."""
    dims: tuple[int, ...]
    groups: tuple[str, ...]
    """("pretrain-head", "novel-head", "pretrain-tail", "novel-tail", "mean per class", "overall")."""
    accuracy: tuple[tuple[float | None, ...], ...]
    """[groups, dims]; None for a group without examples."""
    sd: tuple[tuple[float | None, ...], ...]
    """[groups, dims], over the draws."""

    @property
    def about(self) -> str:
        """The length of the stream."""
        return f"stream of {self.length:,} examples, mean of {self.draws} draws"

    def metrics(self) -> list[Metric]:
        """Return the accuracy by dim of each group."""
        rows = zip(self.groups, self.accuracy, strict=True)
        return [Metric(group, dict(zip(self.dims, row, strict=True))) for group, row in rows]


@checked
def stream(
    database: EmbeddingSet,
    queries: EmbeddingSet,
    *,
    novel: Sequence[int],
    draws: int = 5,
    tail_below: int | None = None,
    zipf: float | None = None,
    dims: Sequence[int] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Stream:
    """Stream ``queries`` past the class means of ``database``, which holds every class except the ``novel`` ones.

    In each of the ``draws`` the classes are ranked at random. The class at rank r sends ``1 / r ** zipf`` times the
    size of the largest class: at least one example and at most all of its own, without replacement, in random order.
    By default ``zipf`` is 1, or the exponent that leaves the rarest class 5 examples if that is less, because nothing
    can be learned from a single one. Every accuracy but the overall one is the mean over the classes of its group. A
    class is tail if the stream holds fewer than ``tail_below`` examples of it. The default is the paper's 50; if fewer
    than a twentieth of the classes have as many, it is the median number, but at least 2.
    """
    check_pair(database, queries, ("database", "queries"))
    _check_options(draws, tail_below, zipf)
    nesting, sides = chosen_dims(queries, dims), _Classes.of(database, queries, novel)
    rng = np.random.default_rng(seed)
    drawn = [_draw(sides.asked, zipf, rng) for _ in range(draws)]
    tail_below = tail_below or _tail_below(np.concatenate([np.bincount(sides.asked[rows]) for rows in drawn]))
    accuracies = np.empty((len(_GROUPS), len(nesting), draws))
    with tqdm(desc="stream", total=len(nesting) * draws, unit="stream", delay=2, disable=not progress) as bar:
        for place, sums in enumerate(_sums(database, sides, nesting)):
            vectors = queries.at(nesting.dims[place])
            check_finite(vectors, np.arange(len(vectors)), "queries")
            for number, rows in enumerate(drawn):
                right = _run(vectors[rows], sides.asked[rows], sums, sides.known)
                accuracies[:, place, number] = _accuracies(right, sides.asked[rows], sides.known, tail_below)
                bar.update()
    length = round(sum(map(len, drawn)) / draws)
    return Stream(*queries.manifest.origin, draws, length, tail_below, nesting.dims, _GROUPS, *_over_draws(accuracies))


@dataclass(frozen=True, eq=False)
class _Classes:
    """The classes of both sides, numbered from 0, and which of them are known from the start."""

    names: Integers
    """[classes]: the labels."""
    known: Bools
    """[classes]."""
    database: Integers
    """[n]: the class of each vector of the database, −1 where it is not used."""
    asked: Integers
    """[n]: the class of each query, −1 where unknown."""

    @classmethod
    def of(cls, database: EmbeddingSet, queries: EmbeddingSet, novel: Sequence[int]) -> _Classes:
        taught, asked = labels_of(database, "database"), labels_of(queries, "queries")
        new = np.unique(np.asarray(novel, np.int64))
        pretrain = np.setdiff1d(taught, [UNKNOWN, *new])
        there = np.setdiff1d(asked, [UNKNOWN])
        if len(strange := np.setdiff1d(new, there)):
            raise InputError(
                "novel classes must occur in the queries", got=strange.tolist(), cure="list classes of the queries"
            )
        if len(strange := np.setdiff1d(there, [*pretrain, *new])):
            raise InputError(
                "each class of the queries must be in the database or in novel",
                got=f"{len(strange)} in neither, such as {strange[0]}",
                cure="add them to novel=…",
            )
        names = np.union1d(pretrain, new)
        if len(names) < 2 or len(there) == 0:
            raise EmbeddingsError(
                "a stream needs labelled queries and at least two classes",
                got=f"{len(there)} classes in the queries, {len(names)} in all",
                cure="label more vectors",
            )
        return cls(names, np.isin(names, pretrain), _places(taught, pretrain, names), _places(asked, there, names))


def _measure(subject: Subject) -> Iterator[Stream]:
    for queries in subject.with_repeated_classes():
        novel = subject.novel(queries)
        yield stream(subject.database, queries, novel=novel, dims=subject.dims, progress=subject.progress)


PROTOCOL = Protocol("stream", _measure)


def _places(labels: Integers, used: Integers, names: Integers) -> Integers:
    return np.where(np.isin(labels, used), np.searchsorted(names, labels), UNKNOWN)


def _draw(asked: Integers, zipf: float | None, rng: np.random.Generator) -> Integers:
    """Return the rows of the queries in the order of one stream."""
    among = np.flatnonzero(asked != UNKNOWN)
    order, places = shuffled_by_class(asked[among], rng)
    rows = among[order]
    available = np.bincount(asked[rows])
    ranked = rng.permutation(np.flatnonzero(available))
    steep = _zipf(int(available.max()), len(ranked)) if zipf is None else float(zipf)
    wanted = np.zeros_like(available)
    with np.errstate(over="ignore"):   # a steep law asks for 0 of every class but the first
        wanted[ranked] = np.maximum(np.rint(available.max() / np.arange(1, len(ranked) + 1) ** steep), 1)
    return rng.permutation(rows[places < wanted[asked[rows]]])


def _zipf(largest: int, classes: int) -> float:
    # The exponent, within 0 … 1, for which largest / classes ** exponent is 5.
    return min(1.0, math.log(max(largest / 5, 1)) / math.log(max(classes, 2)))


def _tail_below(counts: Integers) -> int:
    counts = counts[counts > 0]
    return _TAIL_BELOW if (counts >= _TAIL_BELOW).mean() >= 1 / 20 else max(2, int(np.median(counts)))


def _sums(database: EmbeddingSet, sides: _Classes, nesting: Nesting) -> list[Floats]:
    """Return [classes, dim] per dim: the sums of unit prefixes, which have the directions of the class means."""
    sums = [np.zeros((len(sides.names), dim), np.float32) for dim in nesting.dims]
    for start, vectors in database.batches():
        check_finite(vectors, np.arange(start, start + len(vectors)), "database")
        classes = sides.database[start : start + len(vectors)]
        order = np.argsort(classes, kind="stable")[(classes == UNKNOWN).sum() :]
        present, first = np.unique(classes[order], return_index=True)
        for total in sums if len(order) else ():
            total[present] += np.add.reduceat(truncate(vectors[order], total.shape[1]), first)
    return sums


def _run(vectors: Floats, classes: Integers, sums: Floats, known: Bools) -> Bools:
    """Return whether each of the unit ``vectors`` was classified correctly when it arrived."""
    sums, right, tiny = sums.copy(), np.zeros(len(vectors), bool), float(np.finfo(np.float32).tiny)
    inverse = 1 / np.maximum(np.linalg.norm(sums, axis=1), tiny)
    unmet = np.where(known, 0, -np.inf)   # added to the scores: a class not seen yet cannot be predicted
    for place, (vector, own) in enumerate(zip(vectors, classes.tolist(), strict=True)):
        scores = (sums @ vector) * inverse + unmet
        right[place] = unmet[own] == 0 and scores.argmax() == own
        sums[own] += vector
        inverse[own] = 1 / max(float(np.linalg.norm(sums[own])), tiny)
        unmet[own] = 0
    return right


def _accuracies(right: Bools, classes: Integers, known: Bools, tail_below: int) -> list[float]:
    """Return the accuracy of each of the groups; NaN for a group without examples."""
    counts = np.bincount(classes, minlength=len(known))
    by_class = np.bincount(classes, right, len(known)) / np.maximum(counts, 1)
    there, head = counts > 0, counts >= tail_below
    groups = (known & head, ~known & head, known & ~head, ~known & ~head, there)
    chosen = [by_class[group & there] for group in groups]
    return [*(float(one.mean()) if len(one) else np.nan for one in chosen), float(right.mean())]


def _over_draws(accuracies: Doubles) -> tuple[tuple[tuple[float | None, ...], ...], ...]:
    """Return mean and standard deviation [groups, dims] over the draws with such a group; None with too few."""
    present = [[values[~np.isnan(values)] for values in group] for group in accuracies]
    mean = tuple(tuple(float(v.mean()) if len(v) else None for v in group) for group in present)
    return mean, tuple(tuple(float(v.std(ddof=1)) if len(v) > 1 else None for v in group) for group in present)


def _check_options(draws: int, tail_below: int | None, zipf: float | None) -> None:
    if draws < 1 or (tail_below is not None and tail_below < 1) or (zipf is not None and not 0 <= zipf < math.inf):
        raise InputError(
            "draws and tail_below must be at least 1, and zipf must not be negative",
            got=f"draws={draws}, tail_below={tail_below}, zipf={zipf}",
            cure="use the defaults",
        )
