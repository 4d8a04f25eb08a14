"""Read a crop of an image at a given size: decode no more than it needs, then crop and resize in one pass.

Resizing is Pillow's antialiased bilinear filter, which the compiled core reproduces: first the columns, then the rows,
rounded after each. A JPEG whose crop is at least twice as large as the result is decoded at 1/2, 1/4 or 1/8.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.compiled import require_core
from matryo.data.images.decode import EncodedImages, decode_scaled, pillow
from matryo.data.images.jpeg import SCALES, decoder
from matryo.errors import MissingCore

if TYPE_CHECKING:
    from matryo.data.dataset import ImageSplit, Pixels

Box = tuple[float, float, float, float]
"""(left, top, right, bottom), in pixels."""
BoxOf = Callable[[int, int], Box]
"""The box of an image of (height, width)."""


def crop_into(split: ImageSplit, index: int, box_of: BoxOf, out: Pixels) -> None:
    """Write the box that ``box_of`` gives for image ``index``, resized, to ``out``: uint8 [height, width, 3]."""
    own = getattr(split, "crop_into", None)
    if own is not None:
        own(index, box_of, out)
    elif isinstance(split, EncodedImages):
        _decoded_into(split.encoded(index), split.name(index), box_of, out)
    else:
        pixels = split.image(index)
        resize_into(pixels, box_of(*pixels.shape[:2]), out)


def resize_into(pixels: Pixels, box: Box, out: Pixels) -> None:
    """Write the ``box`` of an image to ``out``, resized by Pillow's antialiased bilinear filter."""
    height, width = pixels.shape[:2]
    if pixels.shape == out.shape and box == (0.0, 0.0, float(width), float(height)):
        out[:] = pixels
    elif (resample := _resample()) is not None and out.flags.c_contiguous:
        resample(np.ascontiguousarray(pixels), *box, out)
    else:
        size = (out.shape[1], out.shape[0])
        out[:] = pillow().fromarray(pixels).resize(size, pillow().Resampling.BILINEAR, box=box)


def divisor_of(box: Box, height: int, width: int) -> int:
    """Return the largest of 1, 2, 4 and 8 that leaves a box divided by it at least ``height`` × ``width`` pixels."""
    left, top, right, bottom = box
    fits = (n for n in SCALES if right - left >= n * width and bottom - top >= n * height)
    return next(fits, 1)


def _decoded_into(data: bytes, name: str, box_of: BoxOf, out: Pixels) -> None:
    """Decode an image file at the scale that its box needs, and write the box."""

    def needed(height: int, width: int) -> int:
        return divisor_of(box_of(height, width), *out.shape[:2])

    pixels, shape, divisor = decode_scaled(data, name, needed, reuse=True)
    left, top, right, bottom = box_of(*shape)
    resize_into(pixels, (left / divisor, top / divisor, right / divisor, bottom / divisor), out)


def reader() -> dict[str, str]:
    """Return what decodes JPEG files and what resizes here, for the record of a run."""
    from PIL import __version__

    return {"jpeg": decoder(), "resize": f"pillow {__version__}" if _resample() is None else "compiled core"}


@cache
def _resample() -> Any | None:
    """Return the function of the compiled core; None where it is missing, and Pillow resizes."""
    try:
        return getattr(require_core(), "resample", None)
    except MissingCore:
        return None
