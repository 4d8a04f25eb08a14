"""Decode JPEG files at full scale or at 1/2, 1/4 or 1/8, and encode them, without holding the interpreter lock.

simplejpeg does so where it is installed, and is faster than Pillow. Where Pillow's wheel holds the same
library, libjpeg-turbo, as the published ones do, the pixels have the same bits. Whatever simplejpeg refuses is left to
Pillow: damaged files, CMYK, 12 bits per channel.
"""

from __future__ import annotations

import io
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.data.limits import PIXELS

if TYPE_CHECKING:
    from matryo.data.dataset import Pixels

SCALES = (8, 4, 2)
"""The divisors of scaled decoding, other than 1, that libjpeg-turbo has fast code for."""
_START = b"\xff\xd8\xff"
_SPACES = ("YCbCr", "Gray", "RGB")
_NONE, _own = np.empty(0, np.uint8), threading.local()


def jpeg_shape(data: bytes) -> tuple[int, int] | None:
    """Return (height, width) of a JPEG file that :func:`decode_jpeg` may decode, or None."""
    library = _simplejpeg()
    if library is None or not data.startswith(_START):
        return None
    try:
        height, width, space, _ = library.decode_jpeg_header(data)
    except ValueError:
        return None
    fits = space in _SPACES and 0 < height * width <= PIXELS   # Pillow reports larger ones
    return (int(height), int(width)) if fits else None


def decode_jpeg(data: bytes, height: int, width: int, divisor: int = 1, *, reuse: bool = False) -> Pixels | None:
    """Decode a JPEG file of that shape to uint8 RGB, each side divided by ``divisor`` and rounded up.

    Returns None if the file has any damage, or simplejpeg is missing. With ``reuse``, the next such call of this thread
    overwrites the pixels.
    """
    library = _simplejpeg()
    if library is None:
        return None
    high, wide = -(-height // divisor), -(-width // divisor)
    buffer = _room(high * wide * 3) if reuse else None
    try:
        pixels: Pixels = library.decode_jpeg(
            data, "RGB", min_height=high, min_width=wide, min_factor=divisor, buffer=buffer
        )
    except ValueError:
        return None
    return pixels


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Return ``pixels`` as a JPEG file, with colours at half the resolution as is usual."""
    library = _simplejpeg()
    if library is not None:
        return bytes(library.encode_jpeg(np.ascontiguousarray(pixels), max(1, quality), "RGB", "420"))
    from PIL import Image

    file = io.BytesIO()   # Pillow holds the interpreter lock while it encodes to memory
    Image.fromarray(pixels).save(file, "JPEG", quality=max(1, quality), subsampling="4:2:0")
    return file.getvalue()


def _room(size: int) -> Pixels:
    """Return memory of this thread: for every image anew, the system would map and clear it, one thread at a time."""
    if getattr(_own, "room", _NONE).size < size:
        _own.room = np.empty(size, np.uint8)
    room: Pixels = _own.room
    return room


def decoder() -> str:
    """Return the name and version of the library that decodes JPEG files, for the record of a run."""
    library = _simplejpeg()
    if library is not None:
        return f"simplejpeg {library.__version__}"
    from PIL import __version__

    return f"pillow {__version__}"


@cache
def _simplejpeg() -> Any | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg
