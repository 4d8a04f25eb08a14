"""DamagedAsGray: a split that replaces images that cannot be decoded by gray ones, as in large web collections."""

from __future__ import annotations

import math
import threading
import warnings
from typing import TYPE_CHECKING

import numpy as np

from matryo.data.images.crops import crop_into
from matryo.errors import DataError, ImageError

if TYPE_CHECKING:
    from matryo.data.dataset import ImageSplit, Labels, Pixels
    from matryo.data.images.crops import BoxOf

_FEW = 10   # damaged images that are always tolerated
_SHARE = 0.01   # the share of damaged images that is tolerated
_DEVIATIONS = 4   # standard deviations by which a sample may exceed that share by chance
_GRAY = 128


class DamagedAsGray:
    """The images of ``split``, with a gray image for each damaged one, [side, side] or of the common shape.

    The first 10 are reported as warnings. If significantly more than 1 % are damaged, reading stops with an error.
    """

    def __init__(self, split: ImageSplit, side: int) -> None:
        self.split, self.side = split, side
        self.read = self.damaged = 0
        self._lock = threading.Lock()

    @property
    def labels(self) -> Labels:
        return self.split.labels

    @property
    def shape(self) -> tuple[int, int] | None:
        try:
            return self.split.shape
        except ImageError:   # some splits decode the header of one image to find the shape
            return None

    def __len__(self) -> int:
        return len(self.split)

    def name(self, index: int) -> str:
        return self.split.name(index)

    def image(self, index: int) -> Pixels:
        """Return image ``index``, or a gray image if it is damaged."""
        try:
            pixels = self.split.image(index)
        except ImageError as error:
            self._count(error)
            return np.full((*(self.shape or (self.side, self.side)), 3), _GRAY, np.uint8)
        self._count(None)
        return pixels

    def crop_into(self, index: int, box_of: BoxOf, out: Pixels) -> None:
        """Write a crop of image ``index`` to ``out``, which becomes gray if the image is damaged."""
        try:
            crop_into(self.split, index, box_of, out)
        except ImageError as error:
            self._count(error)
            out[:] = _GRAY
        else:
            self._count(None)

    def _count(self, error: ImageError | None) -> None:
        """Count an image that was read, from any thread; warn of the first damaged ones, and raise if they are many."""
        with self._lock:
            self.read += 1
            self.damaged += error is not None
            read, damaged = self.read, self.damaged
        if error is None:
            return
        expected = _SHARE * read
        if damaged > _FEW + expected + _DEVIATIONS * math.sqrt(expected):
            raise DataError(
                "data.damaged = gray tolerates 1 % damaged images",
                got=f"{damaged} damaged of the first {read} read, the last: {error}",
                cure="remove the damaged images, or restore them",
            ) from error
        if damaged <= _FEW:
            warnings.warn(f"{error}; replaced by a gray image", stacklevel=3)
