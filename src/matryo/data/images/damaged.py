"""Mended: a split that shows gray where an image cannot be decoded. Large collections from the web always hold some."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np

from matryo.errors import DataError, ImageError

if TYPE_CHECKING:
    from matryo.data.dataset import ImageSplit, Labels, Pixels

__all__ = ["Mended"]

_FEW = 10   # that a process forgives, however few it has read
_SHARE = 0.01
_CHANCE = 4   # standard deviations by which more of a share come first than later
_GRAY = 128


class Mended:
    """The images of ``split``, and gray ones of ``side`` × ``side`` pixels (or the split's one shape) for damaged ones.

    The first few are warned of. If clearly more than 1 in 100 are damaged, that is no accident, and stops the reading.
    """

    def __init__(self, split: ImageSplit, side: int) -> None:
        self.split, self.side = split, side
        self.read = self.damaged = 0

    @property
    def labels(self) -> Labels:
        return self.split.labels

    @property
    def shape(self) -> tuple[int, int] | None:
        try:
            return self.split.shape
        except ImageError:   # some splits look at one image to know
            return None

    def __len__(self) -> int:
        return len(self.split)

    def name(self, index: int) -> str:
        return self.split.name(index)

    def image(self, index: int) -> Pixels:
        """Image ``index``, or a gray one."""
        self.read += 1
        try:
            return self.split.image(index)
        except ImageError as error:
            self.damaged += 1
            expected = _SHARE * self.read
            if self.damaged > _FEW + expected + _CHANCE * math.sqrt(expected):
                raise DataError(
                    "data.damaged = gray forgives 1 image in 100",
                    got=f"{self.damaged} damaged of the first {self.read} that were read, the last: {error}",
                    cure="leave those out, or write the images anew",
                ) from error
            if self.damaged <= _FEW:
                warnings.warn(f"{error}; a gray image stands in for it", stacklevel=2)
            return np.full((*(self.shape or (self.side, self.side)), 3), _GRAY, np.uint8)
