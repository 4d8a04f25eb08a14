"""Hold out a part of the training split, on which settings are chosen, so that the test splits choose nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.data.dataset import Dataset, PairSplit
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping


@checked
def hold_out(
    dataset: Dataset, share: float = 0.1, *, split: str = "train", name: str = "validation", seed: int = 0
) -> Dataset:
    """Return ``dataset`` with a ``share`` of every class of ``split`` moved to a new split called ``name``.

    The items are drawn by ``seed`` and keep their names. A class keeps at least one item in ``split``. Items of unknown
    class are drawn as if they were one more class.

    >>> from matryo.data import emoji
    >>> {name: len(split) for name, split in hold_out(emoji(), 0.25).splits.items() if name in ("train", "validation")}
    {'train': 4184, 'validation': 1380}
    """
    items: Any = dataset.split(split)
    if not 0 < share < 1:
        raise DataError("the share to hold out must be between 0 and 1", got=share, cure="use for example 0.1")
    if name in dataset.splits:
        cure = f"test on {name!r}, or pass another name="
        raise DataError(f"dataset {dataset.name!r} has a split of this name already", got=repr(name), cure=cure)
    if isinstance(items, PairSplit):
        cure = "hold out queries, with all their pairs, and write them to a split of their own"
        raise DataError("only a split of single items can be divided", got=f"pairs in {split!r}", cure=cure)
    held = np.zeros(len(items), dtype=bool)
    random = np.random.default_rng(seed)
    for rows in _by_class(items.labels):
        # A random threshold rounds up as often as it should: half of the classes of 2 lose one item at a share of 1/4.
        count = min(int(share * len(rows) + random.random()), len(rows) - 1)
        held[random.permutation(rows)[:count]] = True
    if not held.any():
        cure = "hold out a larger share, or use a dataset with more items per class"
        raise DataError(f"{share:g} of the items of each class is none", got=f"{len(items)} items", cure=cure)
    splits: Mapping[str, Any] = dataset.splits
    roles = {**dataset.roles, name: f"held out of {split}, to choose settings"}
    return replace(dataset, splits={**splits, split: items.subset(~held), name: items.subset(held)}, roles=roles)


def _by_class(labels: np.ndarray[Any, np.dtype[np.int64]]) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """The rows of each class."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1) if len(order) else []
