"""Splits of images that are arrays in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.arrays import as_array
from matryo.data.dataset import Dataset
from matryo.data.split import ImageRows, as_labels, class_names
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from matryo.data.dataset import Pixels


class ArrayImages(ImageRows):
    """A split of uint8 ``images``, [N, height, width, 3] or, if gray, [N, height, width], which are not copied."""

    def __init__(self, images: ArrayLike, labels: ArrayLike, *, source: str = "images") -> None:
        self._images: Pixels = _check(as_array(images, "images", DataError), source)
        height, width = self._images.shape[1:3]
        super().__init__(as_labels(labels, len(self._images), source), (height, width))
        self._source = source

    def image(self, index: int) -> Pixels:
        """Return a copy of image ``index``, [height, width, 3]."""
        pixels = self._images[self._row(index)]
        return np.repeat(pixels[..., None], 3, axis=-1) if pixels.ndim == 2 else pixels.copy()

    def name(self, index: int) -> str:
        """Return the name of the split and the index in its array, "train#0"."""
        return f"{self._source}#{self._row(index)}"


@checked
def array_dataset(
    splits: Mapping[str, tuple[ArrayLike, ArrayLike]],
    classes: Sequence[str] | None = None,
    name: str = "arrays",
) -> Dataset[ArrayImages]:
    """Create a dataset from ``splits``, each (images, labels); the default ``classes`` are "0", "1", …

    >>> import numpy as np
    >>> data = array_dataset({"train": (np.zeros((2, 8, 8, 3), np.uint8), [0, 1])}, ["cat", "dog"])
    >>> data.split("train").image(1).shape
    (8, 8, 3)
    """
    if wrong := [split for split, pair in splits.items() if not isinstance(pair, Sequence) or len(pair) != 2]:
        raise DataError("a split must be (images, labels)", got=f"another value for {wrong[0]!r}", cure="pass a tuple")
    arrays = {split: ArrayImages(images, labels, source=split) for split, (images, labels) in splits.items()}
    if not arrays:
        raise DataError("a dataset must have a split", got="none", cure='pass {"train": (images, labels)}')
    return Dataset(name, class_names(arrays, classes), arrays)


def _check(images: np.ndarray[Any, np.dtype[Any]], source: str) -> Pixels:
    if images.dtype != np.uint8:
        cure = "convert values in 0…1 with (images.clip(0, 1) * 255).round().astype(np.uint8)"
        raise DataError(f"{source}: images must be uint8, 0…255", got=images.dtype, cure=cure)
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[-1] != 3):
        channels_first = images.ndim == 4 and images.shape[1] == 3
        cure = "put channels last: images.transpose(0, 2, 3, 1)" if channels_first else "reshape or convert them"
        raise DataError(
            f"{source}: images must be [N, height, width, 3], or [N, height, width] if gray",
            got=list(images.shape),
            cure=cure,
        )
    return images
