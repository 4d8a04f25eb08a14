"""The common base of image and text splits: checked int64 labels, and subsets that copy no items."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from matryo.arguments import checked
from matryo.arrays import as_array
from matryo.data.dataset import UNKNOWN, Dataset
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from matryo.data.dataset import ImageSplit, Labels, S, TextSplit


class Rows:
    """Labels, and the row of a store that each belongs to. Subclasses read the rows.

    A subset shares the store and selects rows, so items keep their names.
    """

    item = "image"   # the noun for one row in messages

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._rows = np.arange(len(labels))

    @property
    def labels(self) -> Labels:
        """One class index per item, or UNKNOWN."""
        return self._labels

    def __len__(self) -> int:
        return len(self._labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} {self.item}s)"

    @checked
    def subset(self, indices: ArrayLike) -> Self:
        """Return the items at ``indices`` (integers, or a boolean mask), in that order."""
        chosen = subset_indices(indices, len(self), self.item)
        part = self._copy()
        part._labels = self._labels[chosen]
        part._rows = self._rows[chosen]
        return part

    @checked
    def map_labels(self, table: Labels) -> Self:
        """Return a view of the items with label l replaced by ``table[l]``."""
        part = self._copy()
        part._labels = table[self._labels]
        return part

    def _copy(self) -> Self:
        """Return another view of the store. (copy.copy would reopen the store, as unpickling does.)"""
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        return part

    def _row(self, index: int) -> int:
        """Return the row of the store that holds item ``index``."""
        return int(self._rows[_position(index, len(self), self.item)])


class ImageRows(Rows):
    """Rows of images, and their common shape if they have one."""

    def __init__(self, labels: Labels, shape: tuple[int, int] | None = None) -> None:
        super().__init__(labels)
        self._shape = shape

    @property
    def shape(self) -> tuple[int, int] | None:
        """(height, width) if all images have the same shape, else None."""
        return self._shape


def subset_indices(indices: ArrayLike, count: int, item: str) -> Labels:
    """Return ``indices`` into ``count`` items, given as integers or as a boolean mask, as checked int64."""
    chosen = np.asarray(indices)
    if chosen.dtype == np.bool_ and chosen.shape == (count,):
        chosen = np.flatnonzero(chosen)
    if chosen.size == 0:
        chosen = chosen.reshape(-1).astype(np.int64)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise DataError(
            f"a subset must be given by integers, or by one boolean per {item}",
            got=f"{chosen.dtype} {list(chosen.shape)}",
            cure=f"pass indices in 0…{count - 1}, or a mask of length {count}",
        )
    for index in (chosen.min(), chosen.max()) if chosen.size else ():
        _position(int(index), count, item)
    return chosen.astype(np.int64)


def _position(index: int, count: int, item: str) -> int:
    """Return ``index`` as an int; raise unless it is in 0…count − 1."""
    try:
        number = operator.index(index)
    except TypeError:
        number = -1
    if not 0 <= number < count:
        raise DataError(
            f"no {item} has this index",
            got=repr(index),
            cure=f"use an integer in 0…{count - 1}" if count else f"this split has no {item}s",
        )
    return number


def as_labels(labels: ArrayLike | None, count: int, source: str, item: str = "image") -> Labels:
    """Return ``labels`` as int64 class indices, one for each of ``count`` items; without any, all are UNKNOWN.

    Always int64: in float16, class 2,049 would become class 2,048. ``source`` is used in errors.
    """
    array = np.full(count, UNKNOWN) if labels is None else as_array(labels, f"{source}: labels", DataError)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise DataError(
            f"{source}: labels must be a list of integers, one class index per {item}",
            got=f"{array.dtype} {list(array.shape)}",
            cure="convert them to class indices (int64) first",
        )
    if len(array) != count:
        raise DataError(
            f"{source}: every {item} needs one label",
            got=f"{count} {item}s, {len(array)} labels",
            cure="make both the same length",
        )
    checked = array.astype(np.int64)
    if count and checked.min() < UNKNOWN:
        raise DataError(
            f"{source}: labels must be class indices, or {UNKNOWN} for an unknown class",
            got=int(checked.min()),
            cure=f"number the classes from 0, and use {UNKNOWN} for unknown",
        )
    return checked


def class_names(splits: Mapping[str, ImageSplit | TextSplit], names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the class ``names``, by default "0", "1", …; raise if a label of ``splits`` has none."""
    highest = {split: int(items.labels.max(initial=-1)) for split, items in splits.items()}
    if names is None:
        return tuple(map(str, range(max(highest.values(), default=-1) + 1)))
    for split, label in highest.items():
        if label >= len(names):
            raise DataError(
                f"{split}: labels must be below the number of classes, {len(names)}",
                got=label,
                cure="list every class, in the order of the labels",
            )
    return tuple(names)


def align(dataset: Dataset[S], classes: Sequence[str] | None) -> Dataset[S]:
    """Return ``dataset`` with labels that index ``classes``, matched by name; other classes become UNKNOWN.

    Superclasses are kept only if every one of ``classes`` has one. Without ``classes`` (None, or empty, as of a model
    that was trained without labels), the dataset is returned unchanged.
    """
    if not classes or tuple(classes) == dataset.classes:
        return dataset
    for names in (dataset.classes, classes):
        check_distinct(names)
    position = {name: i for i, name in enumerate(classes)}
    # Label −1 selects the last entry, so that unknown labels stay unknown.
    table = np.array([position.get(name, UNKNOWN) for name in dataset.classes] + [UNKNOWN], dtype=np.int64)
    loose: Mapping[str, Any] = dataset.splits   # rows, or pairs of rows
    splits = {name: split.map_labels(table) for name, split in loose.items()}
    parents = dict(zip(dataset.classes, dataset.superclass_of, strict=False))
    complete = bool(parents) and all(name in parents for name in classes)
    return replace(
        dataset,
        classes=tuple(classes),
        splits=splits,
        superclasses=dataset.superclasses if complete else (),
        superclass_of=tuple(parents[name] for name in classes) if complete else (),
    )


def check_distinct(names: Sequence[str]) -> None:
    """Raise if two classes have the same name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            "classes are matched by name, so their names must be unique",
            got=f"{twice[0]!r} more than once",
            cure='rename them, for example "crane (bird)" and "crane (machine)"',
        )
