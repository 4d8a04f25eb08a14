"""Datasets with some classes hidden from training, so that there are queries of classes that no model has seen."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.data import decode_all
from matryo.data.images.arrays import ArrayImages

if TYPE_CHECKING:
    from matryo.arrays import Integers
    from matryo.data import Dataset

NOVEL = "novel-"
"""The start of the names of splits that hold only the hidden classes."""


def hidden_classes(classes: Integers, count: int) -> Integers:
    """Return ``count`` of ``classes``, drawn once and for all."""
    return np.sort(np.random.default_rng(0).permutation(classes)[:count])


def without(dataset: Dataset, hidden: Integers) -> Dataset:
    """Return ``dataset`` without the images of the ``hidden`` classes; labels keep their meaning."""
    return dataclasses.replace(dataset, splits=_chosen(dataset, hidden, inside=False))


def divided(dataset: Dataset, hidden: Integers) -> Dataset:
    """Return ``dataset`` without the ``hidden`` classes, and with their images in splits named novel-train, …."""
    novel = {NOVEL + name: split for name, split in _chosen(dataset, hidden, inside=True).items()}
    return dataclasses.replace(dataset, splits={**_chosen(dataset, hidden, inside=False), **novel})


def _chosen(dataset: Dataset, hidden: Integers, *, inside: bool) -> dict[str, ArrayImages]:
    kept, images = {}, dict[str, Any](dataset.splits)
    for name, split in images.items():
        rows = np.flatnonzero(np.isin(split.labels, hidden) == inside)
        if len(rows):
            source = (NOVEL if inside else "") + name
            kept[name] = ArrayImages(decode_all(split)[rows], split.labels[rows], source=source)
    return kept
