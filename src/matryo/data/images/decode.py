"""Decode image files to uint8 RGB arrays. All decoding in matryo happens here."""

from __future__ import annotations

import io
import os
import re
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from matryo.arguments import checked
from matryo.data.images.jpeg import decode_jpeg, jpeg_shape
from matryo.data.limits import check_pixels
from matryo.data.split import ImageRows, subset_indices
from matryo.errors import DataError, ImageError, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike
    from PIL import Image

    from matryo.data.dataset import ImageSplit, Pixels

# Restricted, because Pillow otherwise tries dozens of formats, some of which start other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_T = TypeVar("_T")
_SMALL = 64 * 64   # pixels up to which one thread is faster: at 32 × 32, 7 s against 18 s with 16 threads


class EncodedImages(ImageRows):
    """A split of encoded image files. Subclasses implement :meth:`encoded` and :meth:`name`."""

    def encoded(self, index: int) -> bytes:
        """Return the encoded bytes of image ``index``."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """Return the stable id of image ``index``."""
        raise NotImplementedError

    def image(self, index: int) -> Pixels:
        """Return image ``index`` as uint8 RGB, [height, width, 3]."""
        return decode(self.encoded(index), self.name(index))


def decode(data: bytes, name: str) -> Pixels:
    """Decode the image file ``data`` to uint8 RGB [height, width, 3]; ``name`` is used in errors.

    Transparent images are composited on white, 16-bit gray keeps its high byte, animations give their first frame,
    and EXIF orientation is ignored (as is usual for ImageNet).
    """
    pixels = decode_scaled(data, name, lambda *_: 1)[0]
    return pixels if pixels.flags.writeable else pixels.copy()


def decode_scaled(
    data: bytes, name: str, divisor_of: Callable[[int, int], int], *, reuse: bool = False
) -> tuple[Pixels, tuple[int, int], int]:
    """:func:`decode`, but a JPEG has its sides divided by 1, 2, 4 or 8: what ``divisor_of(height, width)`` returns.

    That must not exceed a side. The pixels may be read-only; with ``reuse``, the next such call of this thread may
    overwrite them. Also returns the (height, width) of the file, and the divisor that was used.
    """
    shape = jpeg_shape(data)
    if shape is not None:
        divisor = divisor_of(*shape)
        pixels = decode_jpeg(data, *shape, divisor, reuse=reuse)
        if pixels is not None:
            return pixels, shape, divisor
    if data.startswith(b"P6") and (pixels := _plain(data)) is not None:
        return pixels, (pixels.shape[0], pixels.shape[1]), 1
    with _opened(data, name) as image:
        shape, divisor = (image.height, image.width), 1
        try:
            if image.format in ("JPEG", "MPO") and image.mode in ("RGB", "L"):
                divisor = divisor_of(*shape)
                if divisor > 1:
                    image.draft(image.mode, (shape[1] // divisor, shape[0] // divisor))
            image.load()
            plain = image.mode == "RGB" and not image.has_transparency_data
            return np.array(image) if plain else to_rgb(image, name), shape, divisor
        except (ImageError, MemoryError):
            raise
        except Exception as error:   # for damaged files, Pillow raises errors of many types
            raise _damaged(name, error) from error


def _plain(data: bytes) -> Pixels | None:
    """Return the pixels of an uncompressed image as :func:`matryo.data.pack` stores it; they share its memory."""
    header = re.match(rb"P6\n(\d{1,9}) (\d{1,9})\n255\n", data)
    if header is None:
        return None
    width, height = int(header[1]), int(header[2])
    if height * width == 0 or len(data) != header.end() + 3 * height * width:
        return None
    return np.frombuffer(data, np.uint8, offset=header.end()).reshape(height, width, 3)


def image_shape(data: bytes, name: str) -> tuple[int, int]:
    """Return (height, width) of the image file ``data``, read from its header."""
    with _opened(data, name) as image:
        return image.height, image.width


@checked
def decode_all(
    split: ImageSplit,
    indices: ArrayLike | None = None,
    *,
    threads: int | None = None,
    progress: bool = True,
) -> Pixels:
    """Decode all images of ``split`` (or those at ``indices``, or of a mask) to one uint8 array [N, height, width, 3].

    The images must have the same shape. ``threads`` defaults to the available processors, and to 1 for small images,
    where threads only contend for the interpreter lock.
    """
    shape = split.shape
    if shape is None:
        raise DataError(
            "images must have the same shape to fit one array",
            got="a split with several shapes",
            cure="resize them first: matryo.data.pack(split, 'train.npz', size=64)",
        )
    if threads is None and shape[0] * shape[1] <= _SMALL:
        threads = 1
    chosen = np.arange(len(split)) if indices is None else subset_indices(indices, len(split), "image")
    pixels = np.empty((len(chosen), *shape, 3), np.uint8)

    def fill(row: int) -> None:
        index = int(chosen[row])
        image = split.image(index)
        if image.shape[:2] != shape:
            raise DataError(
                f"image {split.name(index)} must have the shape of its split, {shape[0]} × {shape[1]}",
                got=f"{image.shape[0]} × {image.shape[1]}",
                cure="resize all of them: matryo.data.pack(split, 'train.npz', size=64)",
            )
        pixels[row] = image

    with progress_bar(len(chosen), "decoding", "image", progress) as bar:
        for _ in in_threads(fill, len(chosen), threads):
            bar.update()
    return pixels


def in_threads(work: Callable[[int], _T], count: int, threads: int | None = None, chunk: int = 64) -> Iterator[_T]:
    """Yield ``work(0)``, ``work(1)``, … ``work(count - 1)`` in order, computed by ``threads`` threads.

    Pillow releases the interpreter lock while it decodes. Each task is ``chunk`` calls, and at most 8 tasks per thread
    are held in memory.
    """
    threads = processors() if threads is None else threads
    if threads < 2 or count < 2:
        yield from map(work, range(count))
        return
    from concurrent.futures import ThreadPoolExecutor

    starts = range(0, count, chunk)

    def several(start: int) -> list[_T]:
        return [work(i) for i in range(start, min(start + chunk, count))]

    window = 8 * threads
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(starts), window):
            for results in pool.map(several, starts[first : first + window]):
                yield from results


def progress_bar(total: int, verb: str, unit: str, show: bool) -> Any:
    """Return a progress bar on stderr that appears after two seconds."""
    from matryo.progress import tqdm

    return tqdm(total=total, desc=verb, unit=unit, delay=2, disable=not show, leave=False)


def pillow() -> Any:
    """Import and return ``PIL.Image``."""
    with MissingExtra.unless_installed("pillow", "images", module="PIL"):
        from PIL import Image
    return Image


def _opened(data: bytes, name: str) -> Image.Image:
    reader = pillow()
    try:
        image: Image.Image = reader.open(io.BytesIO(data), formats=FORMATS)
    except (reader.DecompressionBombError, reader.DecompressionBombWarning) as error:   # the warning, if it is an error
        rule = f"image {name} must have fewer pixels than Pillow allows"
        raise ImageError(rule, got=error, cure="raise PIL.Image.MAX_IMAGE_PIXELS if you trust it") from error
    except Exception as error:   # see decode()
        raise _damaged(name, error) from error
    check_pixels(name, image.height, image.width)
    return image


def to_rgb(image: Image.Image, name: str) -> Pixels:
    """Convert a Pillow image of any mode to uint8 RGB; transparent pixels are composited on white."""
    if image.mode.startswith("I"):
        gray = np.asarray(image).astype(np.int64)
        if gray.min() >= 0 and gray.max() < 1 << 16:
            # Pillow clips 16-bit gray to white, but keeps the high byte of 16-bit colour; here both keep it. Mode I
            # holds 8-bit or 16-bit values in 32 bits, which the maximum shows; in a PPM file they are always 16-bit.
            deep = image.mode != "I" or image.format == "PPM" or gray.max() > 255
            return np.repeat((gray >> (8 if deep else 0)).astype(np.uint8)[..., None], 3, axis=-1)
    if image.mode.startswith(("I", "F")):
        raise ImageError(
            f"image {name} must have 8 or 16 bits per channel",
            got=f"Pillow mode {image.mode}",
            cure="scale the values to 0…255 and save it as 8-bit",
        )
    if image.has_transparency_data:
        white = pillow().new("RGBA", image.size, "white")
        image = pillow().alpha_composite(white, image.convert("RGBA"))
    return np.array(image.convert("RGB"))


def _damaged(name: str, error: Exception) -> ImageError:
    return ImageError(
        f"image {name} cannot be decoded",
        got=f"{type(error).__name__}: {error}",
        cure="replace or remove the file, or train with --data.damaged gray; the supported formats are "
        + ", ".join(FORMATS),
    )


def processors() -> int:
    """Return the number of processors available to this process; in a container, fewer than the machine has."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1
