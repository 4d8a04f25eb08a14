"""Pairs of relevant items (texts with texts, or images with texts) as rows of two splits, with hard negatives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from matryo.arguments import checked
from matryo.data.dataset import UNKNOWN, Dataset
from matryo.data.split import subset_indices
from matryo.data.texts.rows import TextRows
from matryo.errors import DataError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from matryo.arrays import Floats
    from matryo.data.dataset import ImageSplit, Labels, TextSplit


class Pairs:
    """``pairs`` [n, 2]: rows of ``queries``, each with a row of ``candidates`` that is relevant to it.

    ``grades`` [n] are the relevance of each pair (default 1; 0 means judged irrelevant). ``negatives`` [n, h] are rows
    of ``candidates`` that are hard negatives of each pair's query (default h = 0). Both sides may be the same split. A
    pair may be listed twice with different negatives. A candidate without a pair is a distractor. With ``by_label``,
    all items of the same label are relevant to each other, and ``pairs`` lists only some of them.
    """

    @checked
    def __init__(
        self,
        queries: ImageSplit | TextSplit,
        candidates: ImageSplit | TextSplit,
        pairs: ArrayLike,
        grades: ArrayLike | None = None,
        negatives: ArrayLike | None = None,
        *,
        by_label: bool = False,
        source: str = "pairs",
    ) -> None:
        self.queries, self.candidates, self.by_label = queries, candidates, by_label
        self.pairs: Labels = _indices(pairs, 2, f"{source}: pairs")
        count = len(self.pairs)
        self.grades: Floats = np.ones(count, np.float32) if grades is None else _grades(grades, count, source)
        none = np.empty((count, 0), np.int64)
        self.negatives: Labels = none if negatives is None else _indices(negatives, None, f"{source}: negatives")
        if len(self.negatives) != count:
            raise DataError(
                f"{source}: every pair needs its negatives",
                got=f"{count} pairs, {len(self.negatives)} rows of negatives",
                cure="pass one row of negatives per pair, or none",
            )
        _within(self.pairs[:, 0], len(queries), f"{source}: queries of pairs")
        _within(self.pairs[:, 1], len(candidates), f"{source}: candidates of pairs")
        _within(self.negatives, len(candidates), f"{source}: negatives")
        self.source = source

    def __len__(self) -> int:
        return len(self.pairs)

    def __repr__(self) -> str:
        return f"Pairs({len(self):,} of {self.queries!r} and {self.candidates!r})"

    @checked
    def subset(self, indices: ArrayLike) -> Self:
        """Return the pairs at ``indices`` (integers, or a boolean mask), in that order; both sides stay complete."""
        chosen = subset_indices(indices, len(self), "pair")
        part = copy(self)
        part.pairs, part.grades, part.negatives = self.pairs[chosen], self.grades[chosen], self.negatives[chosen]
        return part

    @checked
    def map_labels(self, table: Labels) -> Self:
        """Return the pairs with label l of either side replaced by ``table[l]``."""
        part, queries, candidates = copy(self), cast("Any", self.queries), cast("Any", self.candidates)
        part.queries = queries.map_labels(table)
        part.candidates = part.queries if candidates is queries else candidates.map_labels(table)
        return part


@checked
def pair_dataset(splits: Mapping[str, Sequence[Sequence[str]]], name: str = "pairs") -> Dataset[Pairs]:
    """Create a dataset of text pairs from ``splits``: lists of (query, positive) or (query, positive, negative, …).

    Equal texts on one side become one row, so a query with two positives is a single query.

    >>> data = pair_dataset({"train": [("cat", "purrs"), ("dog", "barks"), ("dog", "wags")]})
    >>> train = data.split("train")
    >>> len(train.queries), train.pairs.tolist(), train.candidates.text(2)
    (2, [[0, 0], [1, 1], [1, 2]], 'wags')
    """
    if not splits:
        raise DataError("a dataset must have a split", got="none", cure='pass {"train": [(query, positive), …]}')
    pairs = {}
    for split, rows in splits.items():
        builder = PairBuilder(split)
        if not isinstance(rows, Iterable) or not getattr(rows, "shape", True):
            raise DataError(f"{split}: pairs must be a list", got=shown(rows), cure="pass [(query, positive), …]")
        for number, row in enumerate(rows):
            if not isinstance(row, Sequence) or isinstance(row, str) or len(row) < 2:
                raise DataError(
                    f"{split}: a pair must be (query, positive) or (query, positive, negative, …)",
                    got=f"{shown(row)}, item {number}",
                    cure="pass tuples of two or more texts",
                )
            if other := [text for text in row if not isinstance(text, str)]:
                rule = f"{split}: each text of item {number} must be a string"
                raise DataError(rule, got=shown(other[0]), cure="pass tuples of two or more texts")
            builder.add(row[0], row[1], row[2:], place=f"{split}, item {number}")
        pairs[split] = builder.build()
    return Dataset(name, (), pairs)


@checked
def pairs_by_label(split: ImageSplit | TextSplit, seed: int, *, per_item: int = 1) -> Pairs:
    """Pair items of ``split`` that share a label: up to ``per_item`` random partners per item.

    Queries and candidates are the split itself. An item with an unknown label, or alone in its class, gets no pair. The
    pairs depend only on ``seed`` and the labels.

    >>> from matryo.data import text_dataset
    >>> train = text_dataset({"train": (["hi", "hello", "bye"], [0, 0, 1])}).split("train")
    >>> pairs_by_label(train, seed=0).pairs.tolist()
    [[0, 1], [1, 0]]
    """
    if per_item < 1:
        raise DataError("per_item must be at least 1", got=per_item, cure="use per_item=1")
    generator = np.random.default_rng(seed)
    drawn = [np.empty((0, 2), np.int64)]
    for label in np.unique(split.labels[split.labels != UNKNOWN]):
        members = np.flatnonzero(split.labels == label)
        partners = min(per_item, len(members) - 1)
        if partners < 1:
            continue
        # Steps of 1 … len(members) − 1 from the item, cyclically: no item is its own partner.
        steps = np.array([generator.permutation(len(members) - 1)[:partners] + 1 for _ in members])
        others = members[(np.arange(len(members))[:, None] + steps) % len(members)]
        drawn.append(np.stack([np.repeat(members, partners), others.reshape(-1)], axis=1))
    pairs = np.concatenate(drawn)
    if not len(pairs):
        raise DataError(
            "pairs by label need two items with the same label",
            got=f"{len(split)} items, none of which share a label",
            cure="use a split with labels",
        )
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    return Pairs(split, split, pairs, by_label=True, source="pairs by label")


class PairBuilder:
    """Collect pairs of texts one at a time. Each distinct text of a side is one row, in order of appearance."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._queries: dict[str, int] = {}
        self._candidates: dict[str, int] = {}
        self._pairs: list[tuple[int, int, float]] = []   # with the grade
        self._negatives: list[tuple[str, list[int]]] = []   # with the place of the pair

    def add(self, query: str, positive: str, negatives: Sequence[str] = (), grade: float = 1.0, *, place: str) -> None:
        """Add one pair; ``place`` is used in errors."""
        if positive in negatives:
            raise DataError(
                f"{place}: a negative must not be the positive", got=shown(positive), cure="drop that negative"
            )
        self._pairs.append((_row(self._queries, query), _row(self._candidates, positive), grade))
        self._negatives.append((place, [_row(self._candidates, text) for text in negatives]))

    def build(self) -> Pairs:
        """Return all pairs added so far. Pairs with fewer negatives than others repeat theirs."""
        if not self._pairs:
            raise DataError(f"{self.source} must hold a pair", got="none", cure="add a query and a positive")
        most = max(len(own) for _, own in self._negatives)
        for place, own in self._negatives:
            if most and not own:
                raise DataError(
                    f"{place}: all pairs or no pairs must have negatives",
                    got="none",
                    cure="add a negative, or remove those of all pairs",
                )
        negatives = np.array([[own[i % len(own)] for i in range(most)] for _, own in self._negatives], np.int64)
        return Pairs(
            TextRows(list(self._queries), source=self.source),
            TextRows(list(self._candidates), source=self.source),
            np.array([pair for *pair, _ in self._pairs], np.int64),
            [grade for *_, grade in self._pairs],
            negatives.reshape(len(self._pairs), most),
            source=self.source,
        )


def _row(rows: dict[str, int], text: str) -> int:
    return rows.setdefault(text, len(rows))


def _indices(values: ArrayLike, columns: int | None, source: str) -> Labels:
    array = np.asarray(values)
    if array.size == 0 and array.ndim < 2:
        array = np.empty((0, columns or 0), np.int64)
    if array.ndim != 2 or (columns and array.shape[1] != columns) or (array.dtype.kind not in "iu" and array.size):
        raise DataError(
            f"{source} must be integers, [n, {columns or 'h'}]",
            got=f"{array.dtype} {list(array.shape)}",
            cure="pass row indices of the two splits, from 0",
        )
    return array.astype(np.int64)


def _grades(values: ArrayLike, count: int, source: str) -> Floats:
    array = np.asarray(values)
    grades = array.astype(np.float32) if array.dtype.kind in "fiub" else np.full(array.shape, np.nan, np.float32)
    if grades.shape != (count,) or not (np.isfinite(grades) & (grades >= 0)).all():
        bad = list(grades.shape) if grades.shape != (count,) else grades[~(np.isfinite(grades) & (grades >= 0))][0]
        rule = f"{source}: grades must be one number ≥ 0 per pair, [{count}]"
        raise DataError(rule, got=bad, cure="use 0 for irrelevant pairs")
    return grades


def _within(rows: Labels, count: int, source: str) -> None:
    if rows.size and not 0 <= rows.min() <= rows.max() < count:
        bad = rows.min() if rows.min() < 0 else rows.max()
        raise DataError(f"{source} must be rows of their split, 0 … {count - 1}", got=int(bad), cure="count from 0")
