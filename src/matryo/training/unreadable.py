"""Test images that cannot be read: found before training where that is cheap, and excluded from the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.data import Pairs
from matryo.data.images.decode import EncodedImages, in_threads, progress_bar
from matryo.errors import DataError
from matryo.training.recipe.against_data import sides_of

if TYPE_CHECKING:
    from matryo.arrays import Integers
    from matryo.data.dataset import PairSplit

_ALL_READ = 10_000   # splits of up to this many images are read completely before training; of larger ones, a sample
_SAMPLE = 1_000


def readable(split: Any, name: str, *, sample: bool, progress: bool) -> tuple[Any, list[DataError]]:
    """``split`` without its unreadable images and the pairs they are in, and the error of each.

    With ``sample``, only 1,000 images are read if there are more than 10,000, evenly spread over the split.
    """
    sides = sides_of(split)
    errors = [_errors(side, name, progress, sample) for side in sides]
    if not any(errors):
        return split, []
    kept = [np.setdiff1d(np.arange(len(side)), list(failed)) for side, failed in zip(sides, errors, strict=True)]
    parts = [side.subset(rows) if failed else side for side, rows, failed in zip(sides, kept, errors, strict=True)]
    reasons = [error for failed in errors for _, error in sorted(failed.items())]
    return (_pairs(split, parts, kept) if len(parts) == 2 else parts[0]), reasons


def _pairs(split: PairSplit, sides: list[Any], kept: list[Integers]) -> Pairs:
    """The pairs of which both items are kept; hard negatives, which only training uses, are dropped."""
    both = np.isin(split.pairs[:, 0], kept[0]) & np.isin(split.pairs[:, 1], kept[1])
    rows = [np.searchsorted(kept[side], split.pairs[both, side]) for side in (0, 1)]
    return Pairs(sides[0], sides[1], np.stack(rows, 1), split.grades[both], by_label=split.by_label)


def _errors(images: Any, name: str, progress: bool, sample: bool) -> dict[int, DataError]:
    """Why rows of ``images`` cannot be read; empty for texts and for arrays in memory."""
    if not isinstance(images, EncodedImages):
        return {}
    rows = np.arange(len(images))
    if sample and len(images) > _ALL_READ:
        rows = np.linspace(0, len(images) - 1, _SAMPLE).astype(np.int64)
    errors: dict[int, DataError] = {}

    def read(place: int) -> None:
        try:
            images.image(int(rows[place]))
        except DataError as error:
            errors[int(rows[place])] = error

    with progress_bar(len(rows), f"checking {name}", "image", progress) as bar:
        for _ in in_threads(read, len(rows)):
            bar.update()
    return errors
