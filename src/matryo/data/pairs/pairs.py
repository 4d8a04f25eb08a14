"""Pairs that belong together: texts with texts, images with texts; rows of two splits, and hard negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from matryo.data.dataset import UNKNOWN, Dataset
from matryo.data.split import Rows, choice
from matryo.data.texts.rows import TextRows
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from matryo.data.dataset import ImageSplit, Labels, TextSplit

    Grades = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["PairBuilder", "Pairs", "pair_dataset", "pairs_by_label"]


class Pairs:
    """Rows of ``queries`` and of ``candidates`` that belong together, ``pairs`` [n, 2].

    ``grades`` [n] tell how well (1 if not given; 0 is a pair that was judged and does not belong together),
    ``negatives`` [n, h] are rows of ``candidates`` that look right for a pair's query and are wrong (h = 0 if not
    given). Both sides may be one and the same split. A pair may be listed twice, with other negatives. A candidate
    without a pair is no mistake: it is one more that a search must not find. With ``by_label``, all items of one label
    belong together, of which ``pairs`` lists only some.
    """

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
        self.grades: Grades = np.ones(count, np.float32) if grades is None else _grades(grades, count, source)
        none = np.empty((count, 0), np.int64)
        self.negatives: Labels = none if negatives is None else _indices(negatives, None, f"{source}: negatives")
        if len(self.negatives) != count:
            raise DataError(
                f"{source}: every pair needs its negatives",
                got=f"{count} pairs, {len(self.negatives)} rows of negatives",
                cure="give a row of negatives for each pair, or none at all",
            )
        _within(self.pairs[:, 0], len(queries), f"{source}: queries of pairs")
        _within(self.pairs[:, 1], len(candidates), f"{source}: candidates of pairs")
        _within(self.negatives, len(candidates), f"{source}: negatives")
        self.source = source

    def __len__(self) -> int:
        return len(self.pairs)

    def __repr__(self) -> str:
        return f"Pairs({len(self):,} of {self.queries!r} and {self.candidates!r})"

    def subset(self, indices: ArrayLike) -> Self:
        """The pairs at ``indices`` (integers, or one boolean a pair), in that order; both sides stay whole."""
        chosen = choice(indices, len(self), "pair")
        part = self._copy()
        part.pairs, part.grades, part.negatives = self.pairs[chosen], self.grades[chosen], self.negatives[chosen]
        return part

    def moved(self, table: Labels) -> Self:
        """The same pairs, with label l of either side turned into ``table[l]``."""
        part = self._copy()
        part.queries = _moved(self.queries, table)
        part.candidates = part.queries if self.candidates is self.queries else _moved(self.candidates, table)
        return part

    def _copy(self) -> Self:
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        return part


def pair_dataset(splits: Mapping[str, Sequence[Sequence[str]]], name: str = "pairs") -> Dataset:
    """A dataset of ``splits``, each a list of (query, positive) or (query, positive, negative, …), which are texts.

    Equal texts of a side are one row, so that a query with two positives is one query.

    >>> data = pair_dataset({"train": [("cat", "purrs"), ("dog", "barks"), ("dog", "wags")]})
    >>> train = data.split("train")
    >>> len(train.queries), train.pairs.tolist(), train.candidates.text(2)
    (2, [[0, 0], [1, 1], [1, 2]], 'wags')
    """
    if not splits:
        raise DataError("a dataset has a split", got="none", cure='give {"train": [(query, positive), …]}')
    made = {}
    for split, rows in splits.items():
        builder = PairBuilder(split)
        for number, row in enumerate(rows):
            if isinstance(row, str) or len(row) < 2:
                raise DataError(
                    f"{split}: a pair is (query, positive), perhaps with negatives behind",
                    got=f"{row!r:.60}, item {number}",
                    cure="give tuples of two texts or more",
                )
            builder.add(row[0], row[1], row[2:], place=f"{split}, item {number}")
        made[split] = builder.build()
    return Dataset(name, (), made)


def pairs_by_label(split: ImageSplit | TextSplit, seed: int, *, per_item: int = 1) -> Pairs:
    """Pairs of different items of ``split`` that share a label: up to ``per_item`` partners drawn for each item.

    Queries and candidates are the split itself. An item of unknown label, or alone in its class, gets no pair. The
    draw is a function of ``seed`` and of the labels alone.

    >>> from matryo.data import text_dataset
    >>> train = text_dataset({"train": (["hi", "hello", "bye"], [0, 0, 1])}).split("train")
    >>> pairs_by_label(train, seed=0).pairs.tolist()
    [[0, 1], [1, 0]]
    """
    if per_item < 1:
        raise DataError("per_item is a number of partners", got=per_item, cure="give 1 or more")
    draw = np.random.default_rng(seed)
    found = [np.empty((0, 2), np.int64)]
    for label in np.unique(split.labels[split.labels != UNKNOWN]):
        members = np.flatnonzero(split.labels == label)
        partners = min(per_item, len(members) - 1)
        if partners < 1:
            continue
        # Among the others of its class, counted from the one behind the item: no item is its own partner.
        steps = np.array([draw.permutation(len(members) - 1)[:partners] + 1 for _ in members])
        others = members[(np.arange(len(members))[:, None] + steps) % len(members)]
        found.append(np.stack([np.repeat(members, partners), others.reshape(-1)], axis=1))
    pairs = np.concatenate(found)
    if not len(pairs):
        raise DataError(
            "pairs by label need two items of one label",
            got=f"{len(split)} items, none of which share a label",
            cure="use a split with labels",
        )
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    return Pairs(split, split, pairs, by_label=True, source="pairs by label")


class PairBuilder:
    """Collects pairs of texts one at a time, each distinct text of a side once, in the order of appearance."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._queries: dict[str, int] = {}
        self._candidates: dict[str, int] = {}
        self._pairs: list[tuple[int, int]] = []
        self._grades: list[float] = []
        self._negatives: list[list[int]] = []
        self._places: list[str] = []

    def add(
        self, query: str, positive: str, negatives: Sequence[str] = (), grade: float = 1.0, *, place: str
    ) -> None:
        """One pair; ``place`` is named in errors."""
        if positive in negatives:
            raise DataError(
                f"{place}: a negative must not be the positive", got=f"{positive!r:.60}", cure="drop that negative"
            )
        self._pairs.append((_row(self._queries, query), _row(self._candidates, positive)))
        self._grades.append(grade)
        self._negatives.append([_row(self._candidates, text) for text in negatives])
        self._places.append(place)

    def build(self) -> Pairs:
        """All pairs so far. A pair with fewer negatives than others repeats its own."""
        if not self._pairs:
            raise DataError(f"{self.source} must hold a pair", got="none", cure="give a query and a positive a row")
        most = max(map(len, self._negatives))
        for place, own in zip(self._places, self._negatives, strict=True):
            if most and not own:
                raise DataError(
                    f"{place}: where one pair has negatives, every pair needs one",
                    got="none",
                    cure="give it a negative, or take them from all",
                )
        negatives = np.array([[own[i % len(own)] for i in range(most)] for own in self._negatives], np.int64)
        return Pairs(
            TextRows(self._queries, source=self.source),
            TextRows(self._candidates, source=self.source),
            np.array(self._pairs, np.int64),
            self._grades,
            negatives.reshape(len(self._pairs), most),
            source=self.source,
        )


def _row(rows: dict[str, int], text: str) -> int:
    return rows.setdefault(text, len(rows))


def _moved(split: ImageSplit | TextSplit, table: Labels) -> ImageSplit | TextSplit:
    assert isinstance(split, Rows), f"{type(split).__name__} cannot be relabelled"
    moved: Any = split.moved(table)
    return moved   # type: ignore[no-any-return]


def _indices(values: ArrayLike, columns: int | None, source: str) -> Labels:
    given = np.asarray(values)
    if given.size == 0 and given.ndim < 2:
        given = np.empty((0, columns or 0), np.int64)
    if given.ndim != 2 or (columns and given.shape[1] != columns) or (given.dtype.kind not in "iu" and given.size):
        raise DataError(
            f"{source} are integers, [n, {columns or 'h'}]",
            got=f"{given.dtype} {list(given.shape)}",
            cure="give rows of the two splits, counted from 0",
        )
    return given.astype(np.int64)


def _grades(values: ArrayLike, count: int, source: str) -> Grades:
    given = np.asarray(values, np.float32)
    if given.shape != (count,) or not (np.isfinite(given) & (given >= 0)).all():
        shown = list(given.shape) if given.shape != (count,) else given[~(np.isfinite(given) & (given >= 0))][0]
        raise DataError(
            f"{source}: grades are one number ≥ 0 a pair, [{count}]", got=shown, cure="leave out what does not belong"
        )
    return given


def _within(rows: Labels, count: int, source: str) -> None:
    if rows.size and not 0 <= rows.min() <= rows.max() < count:
        bad = rows.min() if rows.min() < 0 else rows.max()
        raise DataError(f"{source} must be rows of their split, of {count}", got=int(bad), cure="count from 0")
