"""Image files become uint8 RGB arrays here, and nowhere else."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from matryo.data.split import ImageRows
from matryo.errors import DataError, ImageError, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike
    from PIL import Image

    from matryo.data.dataset import ImageSplit, Labels, Pixels

__all__ = [
    "EncodedImages",
    "decode",
    "decode_all",
    "image_shape",
    "in_threads",
    "pillow",
    "processors",
    "progress_bar",
    "to_rgb",
]

# Only these: Pillow would otherwise try dozens of formats, some of which start other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_T = TypeVar("_T")
_SMALL = 64 * 64   # pixels; at 32 × 32, 16 threads took 18 s for what one thread does in 7


class EncodedImages(ImageRows):
    """A split whose store holds encoded image files; subclasses say where the bytes and names are."""

    def encoded(self, index: int) -> bytes:
        """The file of image ``index``, as it was stored."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """Where image ``index`` comes from."""
        raise NotImplementedError

    def image(self, index: int) -> Pixels:
        """Image ``index`` as uint8 RGB, [height, width, 3]."""
        return decode(self.encoded(index), self.name(index))


def decode(data: bytes, name: str) -> Pixels:
    """The image file ``data`` as uint8 RGB [height, width, 3]; ``name`` is named in errors.

    Transparency is laid over white, 16-bit gray keeps its high byte, an animation gives its first frame, and
    EXIF orientation is left alone (as is the custom with ImageNet).
    """
    with _opened(data, name) as image:
        try:
            image.load()
            if image.mode != "RGB" or image.has_transparency_data:
                return to_rgb(image, name)
            return np.array(image)
        except (ImageError, MemoryError):
            raise
        except Exception as error:   # damaged bytes make Pillow's readers raise almost anything
            raise _damaged(name, error) from error


def image_shape(data: bytes, name: str) -> tuple[int, int]:
    """(height, width) of the image file ``data``, from its header."""
    with _opened(data, name) as image:
        return image.height, image.width


def decode_all(
    split: ImageSplit,
    indices: ArrayLike | None = None,
    *,
    threads: int | None = None,
    progress: bool = True,
) -> Pixels:
    """Every image of ``split`` (or those at ``indices``) in one uint8 array [N, height, width, 3].

    ``threads`` defaults to the processors this process may use, and to one for images so small that threads
    would only wait for each other. The split's images must share one shape.
    """
    shape = split.shape
    if shape is None:
        raise DataError(
            "only images of one shape fit one array",
            got="a split of many shapes",
            cure="resize them first: matryo.data.pack(split, 'train.npz', size=64)",
        )
    if threads is None and shape[0] * shape[1] <= _SMALL:
        threads = 1
    chosen = np.arange(len(split)) if indices is None else _integers(indices)
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


def _integers(indices: ArrayLike) -> Labels:
    chosen = np.asarray(indices)
    if chosen.ndim != 1 or (chosen.dtype.kind not in "iu" and chosen.size):
        raise DataError(
            "indices are a list of integers",
            got=f"{chosen.dtype} {list(chosen.shape)}",
            cure="np.flatnonzero turns a mask into indices",
        )
    return chosen.astype(np.int64)


def in_threads(
    work: Callable[[int], _T], count: int, threads: int | None = None, chunk: int = 64
) -> Iterator[_T]:
    """``work(0)``, ``work(1)``, … ``work(count - 1)``, in order, computed by ``threads`` threads.

    Pillow lets other threads run while it decodes. A thread takes ``chunk`` calls at once, and no more than a
    window of results waits in memory.
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
    """A bar on stderr for work that takes more than two seconds."""
    from tqdm import tqdm

    return tqdm(total=total, desc=verb, unit=unit, delay=2, disable=not show, leave=False)


def pillow() -> Any:
    """``PIL.Image``, imported when the first image asks for it."""
    with MissingExtra.unless_installed("pillow", "images", module="PIL"):
        from PIL import Image
    return Image


def _opened(data: bytes, name: str) -> Image.Image:
    reader = pillow()
    try:
        image: Image.Image = reader.open(io.BytesIO(data), formats=FORMATS)
    except Exception as error:   # see decode()
        raise _damaged(name, error) from error
    return image


def to_rgb(image: Image.Image, name: str) -> Pixels:
    """A Pillow image of any mode as uint8 RGB, transparency laid over white."""
    if image.mode.startswith("I"):
        gray = np.asarray(image).astype(np.int64)
        if gray.min() >= 0 and gray.max() < 1 << 16:
            # Pillow would clip 16-bit gray to white; of 16-bit colour it keeps the high byte, and so do we. Mode I has
            # 32 bits that may hold either, and its values tell which; but in a PPM file they are 16-bit.
            deep = image.mode != "I" or image.format == "PPM" or gray.max() > 255
            return np.repeat((gray >> (8 if deep else 0)).astype(np.uint8)[..., None], 3, axis=-1)
    if image.mode.startswith(("I", "F")):
        raise ImageError(
            f"image {name} must have 8 or 16 bits a channel",
            got=f"Pillow mode {image.mode}",
            cure="save it as 8-bit, with the range of values you mean",
        )
    if image.has_transparency_data:
        white = pillow().new("RGBA", image.size, "white")
        image = pillow().alpha_composite(white, image.convert("RGBA"))
    return np.array(image.convert("RGB"))


def _damaged(name: str, error: Exception) -> ImageError:
    known = ", ".join(FORMATS)
    return ImageError(
        f"image {name} cannot be decoded",
        got=f"{type(error).__name__}: {error}",
        cure=f"replace or remove the file (or train on without it: --data.damaged gray); the formats read are {known}",
    )


def processors() -> int:
    """The processors this process may use, which in a container are fewer than the machine has."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1
