"""Head, k-NN and retrieval metrics of the paper at every dim, in one pass.

**head** is the accuracy of the classifier kept with the queries. **top-k** is the share of queries with their class
among the k nearest database vectors (top-1 is 1-NN classification). **k-NN** is the accuracy of the majority of these.
**mAP@k**, **P@k** and **recall@k** grade the k nearest by class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from matryo.arguments import checked
from matryo.embeddings import UNKNOWN, EmbeddingSet
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation.checks import check_different, check_pair, check_several, chosen_dims, labels_of, same_vectors
from matryo.evaluation.knn.search import NeighbourBatch, search_batches
from matryo.evaluation.protocol import Protocol
from matryo.metrics import hit_rate, label_ranks, majority, mean_average_precision, mflops, precision, recall, relevance
from matryo.nesting import Nesting, as_nesting
from matryo.results import SplitResult
from matryo.tables import Block, Metric, number, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Bools, Integers

    Labelled = EmbeddingSet | tuple[Any, Any]
    Find = Callable[..., Iterable[NeighbourBatch]]

_VOTERS = (5, 10, 20)   # the k of k-NN


@dataclass(frozen=True)
class DimRow:
    """The figures at one dim, as fractions. A new figure also needs a line in ``_COLUMNS``."""

    dim: int
    trained: bool
    """Whether the dim is one of the nesting's; the others are interpolated."""
    top1: float
    """1-NN accuracy."""
    top5: float
    top10: float
    map_at: Mapping[int, float]
    """mAP@k by k."""
    precision_at: Mapping[int, float]
    """P@k by k."""
    mflops: float
    """Millions of multiply-adds per query, for exact search."""
    head_top1: float | None = None
    head_top5: float | None = None
    recall_at: Mapping[int, float] = field(default_factory=dict)
    """Recall@k by k; missing in rows stored before it was measured."""
    knn: Mapping[int, float] = field(default_factory=dict)
    """Accuracy of k-NN majority votes by k; 1-NN is ``top1``. Missing in rows stored before it was measured."""

    def to_figures(self) -> dict[str, Any]:
        """Return the figures as plain JSON values, without the dim."""
        figures: dict[str, Any] = {"trained": self.trained}
        for column in _COLUMNS:
            value = getattr(self, column.field)
            by_k = column.stored
            figures |= {f"{by_k}{k}": at for k, at in value.items()} if by_k else {column.field: value}
        return figures

    @classmethod
    def from_figures(cls, dim: int, figures: Mapping[str, Any]) -> DimRow:
        """Return the row that :meth:`to_figures` described."""
        values: dict[str, Any] = {"trained": figures["trained"]}
        for column in _COLUMNS:
            start = column.stored
            by_k = {int(key.removeprefix(start)): at for key, at in figures.items() if start and key.startswith(start)}
            values[column.field] = by_k if start else figures[column.field]
        return cls(dim=dim, **values)


@dataclass(frozen=True)
class _Column:
    """A metric of :class:`DimRow`: its title in tables, its field, and for metrics by k the prefix of stored keys."""

    title: str
    field: str
    stored: str = ""
    text: Callable[[float | None], str] = percent


_COLUMNS = (
    _Column("MFLOPs", "mflops", text=number),
    _Column("head", "head_top1"),
    _Column("head-5", "head_top5"),
    _Column("1-NN", "top1"),
    _Column("{k}-NN", "knn", "knn@"),
    _Column("top-5", "top5"),
    _Column("top-10", "top10"),
    _Column("mAP@{k}", "map_at", "map@"),
    _Column("P@{k}", "precision_at", "p@"),
    _Column("recall@{k}", "recall_at", "recall@"),
)


@dataclass(frozen=True)
class Evaluation(SplitResult):
    """The figures of one model's embeddings on one query split."""

    kind: ClassVar[str] = "evaluate"
    shown: ClassVar[tuple[str, ...]] = ("head", "1-NN", "mAP@10")
    database: int
    """How many vectors were searched."""
    queries: int
    """How many queries were used."""
    left_out: int
    """How many were excluded: of unknown class, or of a class that the database lacks."""
    rows: tuple[DimRow, ...]
    """One per dim, smallest first."""

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims, smallest first."""
        return tuple(row.dim for row in self.rows)

    @checked
    def at(self, dim: int) -> DimRow:
        """Return the row of ``dim``."""
        for row in self.rows:
            if row.dim == dim:
                return row
        raise InputError("dim was not evaluated", got=dim, cure=f"choose one of {self.dims}")

    def to_figures(self) -> dict[str, Any]:
        """Return plain JSON values, for the figures of a stored row."""
        figures = super().to_figures()
        del figures["rows"]
        return figures | {"dims": {str(row.dim): row.to_figures() for row in self.rows}}

    @classmethod
    def from_figures(cls, figures: Mapping[str, Any]) -> Evaluation:
        """Return the evaluation that :meth:`to_figures` described: published tables are made from stored rows."""
        rows = tuple(DimRow.from_figures(int(dim), row) for dim, row in figures["dims"].items())
        return cls(**{name: value for name, value in figures.items() if name != "dims"}, rows=rows)

    @property
    def about(self) -> str:
        """The number of queries and of database vectors."""
        excluded = f" ({self.left_out:,} excluded)" if self.left_out else ""
        return f"{self.queries:,} queries{excluded} in a database of {self.database:,}"

    def metrics(self) -> list[Metric]:
        """Return every metric by dim."""
        metrics = []
        for column in _COLUMNS:
            values = {row.dim: getattr(row, column.field) for row in self.rows}
            if not column.stored:
                metrics.append(Metric(column.title, values, column.text))
                continue
            for k in sorted({k for by_k in values.values() for k in by_k}):
                at_k = {dim: by_k.get(k) for dim, by_k in values.items()}
                metrics.append(Metric(column.title.format(k=k), at_k, column.text))
        return metrics

    def blocks(self) -> list[Block]:
        """Return one table, with a star at dims that are not in the nesting."""
        between = frozenset(row.dim for row in self.rows if not row.trained)
        note = "no model here was trained at this dim"
        return [Block(self.model, self.where, self.about, self.metrics(), self.shown, starred=between, note=note)]


@checked
def evaluate(
    database: Labelled,
    queries: Labelled,
    *,
    nesting: Nesting | Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
    interpolated: bool = True,
    ks: Sequence[int] = (10, 25, 50, 100),
    progress: bool = True,
    find: Find = search_batches,
) -> Evaluation:
    """Search ``database`` for each of ``queries`` at every dim, and grade the neighbours by class.

    Both are embeddings, or both are tuples (vectors, labels) of arrays, lists or data frames. Labels may be text.
    ``nesting`` lists the dims that vectors in tuples were trained at; without it they count as trained at the full
    dim.

    The dims are :func:`default_dims` of the queries' nesting, unless ``dims`` lists others. A k above the size of the
    database is skipped; top-5 and top-10 then use the whole database. Queries of unknown class (−1), or of a class
    that the database lacks, are excluded from every figure and counted. Database vectors of unknown class count as
    wrong neighbours, but have no vote. A head in the queries' folder is evaluated too: at its own dims if it is
    separate, at all dims if it is tied. ``find`` searches for the neighbours, as ``search_batches`` does; that of
    :mod:`matryo.ray` does it on a cluster.

    >>> train = [[1, 0], [2, 1], [0, 1], [1, 3]], ["cat", "cat", "dog", "dog"]
    >>> print(evaluate(train, ([[3, 1], [1, 2]], ["cat", "dog"]), nesting=[1, 2], progress=False))
    2 queries in a database of 4
    dim  1-NN
      1  50.0
      2 100.0
    """
    database, queries = _as_sets(database, queries, nesting)
    known, asked = labels_of(database, "database"), labels_of(queries, "queries")
    check_pair(database, queries, ("database", "queries"))
    nesting, depths = chosen_dims(queries, dims, interpolated), _depths(ks, database.count)
    totals = _totals(known, asked)
    used = np.flatnonzero(totals)
    if len(used) == 0:
        raise EmbeddingsError(
            "some queries must be of a class that the database holds",
            got=f"{queries.count} queries, none of them",
            cure="check that both were labelled with the same list of classes",
        )
    check_several(known)
    check_different(database, queries)
    figures = _search(database, queries, totals, nesting, depths, progress, find)
    head = _head_accuracy(queries, used, nesting)
    rows = tuple(
        DimRow(
            dim=dim,
            trained=dim in queries.nesting.dims,
            mflops=mflops(database.count, dim),
            **figures[dim],
            **head.get(dim, {}),
        )
        for dim in nesting.dims
    )
    return Evaluation(*queries.manifest.origin, database.count, len(used), queries.count - len(used), rows)


PROTOCOL = Protocol("evaluate", lambda subject: subject.evaluations, baselined=True)


def _as_sets(database: Any, queries: Any, nesting: Nesting | Sequence[int] | None) -> tuple[EmbeddingSet, EmbeddingSet]:
    given = (database, queries)
    if all(isinstance(one, EmbeddingSet) for one in given):
        if nesting is not None:
            raise InputError(
                "nesting is only for (vectors, labels); embeddings have their own",
                got=nesting,
                cure="choose what to measure with dims=[…]",
            )
        return database, queries
    if not all(isinstance(one, tuple) and len(one) == 2 for one in given):
        raise InputError(
            "database and queries must both be embeddings, or both be tuples (vectors, labels)",
            got=" and ".join(type(one).__name__ for one in given),
            cure="evaluate((train_vectors, train_labels), (test_vectors, test_labels), nesting=[…])",
        )
    (train, known), (test, asked) = given
    if train is test:
        raise same_vectors("the same vectors twice")
    known, asked = np.asarray(known), np.asarray(asked)
    about: dict[str, Any] = {} if nesting is None else {"nesting": as_nesting(nesting)}
    if {known.dtype.kind, asked.dtype.kind} & {*"OSU"} and known.ndim == asked.ndim == 1:   # text; number both alike
        names, codes = np.unique([*map(str, known), *map(str, asked)], return_inverse=True)
        known, asked, about["classes"] = codes[: len(known)], codes[len(known) :], names.tolist()
    return EmbeddingSet.of(train, labels=known, **about), EmbeddingSet.of(test, labels=asked, **about)


def _search(
    database: EmbeddingSet, queries: EmbeddingSet, totals: Integers, nesting: Nesting, depths: list[int],
    progress: bool, find: Find,
) -> dict[int, dict[str, Any]]:
    """Return the figures of :class:`DimRow` that grade the neighbours of the queries with ``totals``, by dim."""
    used = np.flatnonzero(totals)
    totals, known, asked = totals[used], labels_of(database, "database"), labels_of(queries, "queries")[used]
    vectors = queries.vectors if len(used) == queries.count else queries.vectors[used]
    voters = [k for k in _VOTERS if k <= database.count]
    depth = min(max([10, *depths, *voters]), database.count)
    graded: dict[int, list[Bools]] = {dim: [] for dim in nesting.dims}
    right = {dim: dict.fromkeys(voters, 0) for dim in nesting.dims}
    for batch in find(database.vectors, vectors, nesting.dims, depth, progress=progress):
        for dim, indices in batch.indices.items():
            retrieved, truth = known[indices], asked[batch.start : batch.start + len(indices)]
            graded[dim].append(relevance(retrieved, truth))
            for k in voters:
                right[dim][k] += int((majority(retrieved, k) == truth).sum())
    figures = {}
    for dim in nesting.dims:
        relevant = np.concatenate(graded[dim])
        figures[dim] = {
            **{f"top{k}": hit_rate(relevant, min(k, depth)) for k in (1, 5, 10)},
            "map_at": {k: mean_average_precision(relevant, totals, k) for k in depths},
            "precision_at": {k: precision(relevant, k) for k in depths},
            "recall_at": {k: recall(relevant, totals, k) for k in depths},
            "knn": {k: right[dim][k] / len(used) for k in voters},
        }
    return figures


def _head_accuracy(queries: EmbeddingSet, used: Integers, nesting: Nesting) -> dict[int, dict[str, Any]]:
    head = queries.head
    if head is None:
        return {}
    dims = [m for m in nesting.dims if (m in head.dims if head.kind == "separate" else m <= head.dim)]
    labels, ranks = labels_of(queries, "queries"), {dim: np.empty(len(used), np.int64) for dim in dims}
    for span, rows, vectors in queries.batches_of(used, head.classes):
        for dim, logits in head.all_logits(vectors, dims) if dims else ():
            ranks[dim][span] = label_ranks(logits, labels[rows])
    return {dim: {f"head_top{k}": float((rank < k).mean()) for k in (1, 5)} for dim, rank in ranks.items()}


def _depths(ks: Sequence[int], count: int) -> list[int]:
    if any(k < 1 for k in ks):
        raise InputError("every k must be at least 1", got=tuple(ks), cure="remove the others")
    return [k for k in sorted({*ks}) if k <= count]


def _totals(known: Integers, asked: Integers) -> Integers:
    # The number of database vectors of each query's class. Labels may be any integers, so they are looked up.
    classes, counts = np.unique(known[known != UNKNOWN], return_counts=True)
    if len(classes) == 0:
        return np.zeros_like(asked)
    place = np.minimum(np.searchsorted(classes, asked), len(classes) - 1)
    return np.where(classes[place] == asked, counts[place], 0)
