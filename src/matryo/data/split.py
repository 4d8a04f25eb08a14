"""What splits of images and of texts share: rows of checked int64 labels, and subsets that copy nothing."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import numpy as np

from matryo.data.dataset import UNKNOWN, Dataset
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from matryo.data.dataset import ImageSplit, Labels, Split, TextSplit

__all__ = ["ImageRows", "Rows", "align", "all_different", "as_labels", "below", "choice", "numbered", "position"]


class Rows:
    """Labels and the rows of some store that they belong to; subclasses know how to read a row.

    A subset keeps the store and shortens the rows, so names stay those of the whole split.
    """

    item = "image"   # what one row is called in messages

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._rows = np.arange(len(labels))

    @property
    def labels(self) -> Labels:
        """One class index an item, or UNKNOWN."""
        return self._labels

    def __len__(self) -> int:
        return len(self._labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} {self.item}s)"

    def subset(self, indices: ArrayLike) -> Self:
        """The items at ``indices`` (integers, or one boolean an item), in that order."""
        chosen = choice(indices, len(self), self.item)
        part = self._copy()
        part._labels = self._labels[chosen]
        part._rows = self._rows[chosen]
        return part

    def relabelled(self, labels: ArrayLike) -> Self:
        """The same items with other labels."""
        part = self._copy()
        part._labels = as_labels(labels, len(self), "the new labels", self.item)
        return part

    def moved(self, table: Labels) -> Self:
        """The same items, with label l turned into ``table[l]``."""
        return self.relabelled(table[self.labels])

    def _copy(self) -> Self:
        """Another view of the same store (copy.copy would open the store again, as pickling must)."""
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        return part

    def _row(self, index: int) -> int:
        """The row of the store that holds item ``index``."""
        return int(self._rows[position(index, len(self), self.item)])


class ImageRows(Rows):
    """Rows that are images, and the shape they share if there is one."""

    def __init__(self, labels: Labels, shape: tuple[int, int] | None = None) -> None:
        super().__init__(labels)
        self._shape = shape

    @property
    def shape(self) -> tuple[int, int] | None:
        """(height, width) when every image has the same, else None."""
        return self._shape


def choice(indices: ArrayLike, count: int, item: str) -> Labels:
    """``indices`` of some of ``count`` items, given as integers or as one boolean an item, as checked int64."""
    chosen = np.asarray(indices)
    if chosen.dtype == np.bool_ and chosen.shape == (count,):
        chosen = np.flatnonzero(chosen)
    if chosen.size == 0:
        chosen = chosen.reshape(-1).astype(np.int64)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise DataError(
            f"a subset is chosen by integers, or by one boolean for each {item}",
            got=f"{chosen.dtype} {list(chosen.shape)}",
            cure=f"give indices in 0…{count - 1}, or a mask of length {count}",
        )
    for index in (chosen.min(), chosen.max()) if chosen.size else ():
        position(int(index), count, item)
    return chosen.astype(np.int64)


def position(index: int, count: int, item: str) -> int:
    """``index``, which must be that of one of ``count`` items."""
    try:
        place = operator.index(index)
    except TypeError:
        place = -1
    if not 0 <= place < count:
        raise DataError(
            f"no {item} has this index",
            got=repr(index),
            cure=f"use an integer in 0…{count - 1}" if count else f"this split has no {item}s",
        )
    return place


def as_labels(labels: ArrayLike, count: int, source: str, item: str = "image") -> Labels:
    """``labels`` as int64 class indices, one for each of ``count`` items; ``source`` is named in errors.

    int64 whatever came in: narrow types are how class 2,049 becomes class 2,048.
    """
    given = np.asarray(labels)
    if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
        raise DataError(
            f"{source}: labels are a list of integers, the class index of each {item}",
            got=f"{given.dtype} {list(given.shape)}",
            cure="convert them to class indices (int64) first",
        )
    if len(given) != count:
        raise DataError(
            f"{source}: every {item} needs one label",
            got=f"{count} {item}s, {len(given)} labels",
            cure="make both the same length",
        )
    checked = given.astype(np.int64)
    if count and checked.min() < UNKNOWN:
        raise DataError(
            f"{source}: labels are class indices, or {UNKNOWN} for an unknown class",
            got=int(checked.min()),
            cure=f"count classes from 0 and write {UNKNOWN} where the class is unknown",
        )
    return checked


def below(labels: Labels, classes: int, source: str) -> None:
    """Refuse a label that is no index into the ``classes``."""
    if len(labels) and labels.max() >= classes:
        raise DataError(
            f"{source}: labels must be below the number of classes, {classes}",
            got=int(labels.max()),
            cure="list every class, in the order of its label",
        )


def numbered(splits: Sequence[ImageSplit | TextSplit]) -> tuple[str, ...]:
    """The classes "0", "1", … that the labels of ``splits`` ask for, where nothing names them."""
    highest = max((int(split.labels.max(initial=-1)) for split in splits), default=-1)
    return tuple(str(label) for label in range(highest + 1))


@runtime_checkable
class _Labelled(Protocol):
    """A split whose labels can be turned into others: rows, or pairs of rows."""

    def moved(self, table: Labels) -> Split: ...


def align(dataset: Dataset, classes: Sequence[str] | None) -> Dataset:
    """``dataset`` with its labels turned into indices of ``classes`` by name; other classes become UNKNOWN.

    Superclasses survive only if they are known for every one of ``classes``. None leaves all as it is, and so do no
    classes at all: a model that was trained without labels has none.
    """
    if not classes or tuple(classes) == dataset.classes:
        return dataset
    for names in (dataset.classes, classes):
        all_different(names)
    position = {name: i for i, name in enumerate(classes)}
    moved = np.array([position.get(name, UNKNOWN) for name in dataset.classes] + [UNKNOWN], dtype=np.int64)
    # The last entry is what label −1 picks: unknown stays unknown.
    splits = {}
    for name, split in dataset.splits.items():
        assert isinstance(split, _Labelled), f"{type(split).__name__} cannot be relabelled"
        splits[name] = split.moved(moved)
    parents = dict(zip(dataset.classes, dataset.superclass_of, strict=False))
    known = bool(parents) and all(name in parents for name in classes)
    return replace(
        dataset,
        classes=tuple(classes),
        splits=splits,
        superclasses=dataset.superclasses if known else (),
        superclass_of=tuple(parents[name] for name in classes) if known else (),
    )


def all_different(names: Sequence[str]) -> None:
    """Refuse two classes of one name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            "classes are matched by name, so their names must differ",
            got=f"{twice[0]!r} more than once",
            cure='tell them apart, like "crane (bird)" and "crane (machine)"',
        )
