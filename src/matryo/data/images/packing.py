"""Pack a split of images into one ``.npz`` file of WebP or JPEG images, optionally resized."""

from __future__ import annotations

import io
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from matryo.arguments import checked
from matryo.data.dataset import ImageSplit
from matryo.data.images.crops import divisor_of, resize_into
from matryo.data.images.decode import EncodedImages, decode_scaled, image_shape, in_threads, pillow, progress_bar
from matryo.data.images.jpeg import encode_jpeg
from matryo.data.images.packed import PackedImages
from matryo.errors import DataError
from matryo.files import replacing, storage

if TYPE_CHECKING:
    from matryo.data.dataset import Pixels


@checked
def pack(
    split: ImageSplit,
    path: Path | str,
    *,
    size: int | None = None,
    side: int | None = None,
    quality: int = 90,
    lossless: bool = False,
    format: Literal["webp", "jpeg"] = "webp",
    raw: float = 0.0,
    threads: int | None = None,
    progress: bool = True,
) -> PackedImages:
    """Write the images of ``split`` to the ``.npz`` file at ``path``, and open it.

    With ``size``, each image is cropped to its centre square and resized to size × size pixels. With ``side``, an image
    whose longer side has more pixels is reduced to that, and a JPEG file that has no more is kept as it is.
    ``lossless`` keeps all pixels (webp); otherwise ``quality`` (0…100) is that of the ``format``. A share ``raw`` of
    the images is stored without compression, which takes more space and no time to decode. Labels and image names are
    kept; :func:`pack_dataset` also keeps class names. An existing file is replaced when the new one is complete.
    """
    path = Path(path)
    form = Form(size, side, quality, lossless, format, raw)
    form.check(path, len(split))
    with progress_bar(len(split), f"packing {path.name}", "image", progress) as bar:
        write_packed(split, path, form, threads, bar.update)
    return PackedImages.open(path)


@dataclass(frozen=True)
class Form:
    """How images are stored; see :func:`pack`."""

    size: int | None = None
    side: int | None = None
    quality: int = 90
    lossless: bool = False
    format: str = "webp"
    raw: float = 0.0

    def check(self, path: Path, count: int) -> None:
        """Raise unless ``count`` images can be stored at ``path`` in this form."""
        if path.suffix != ".npz":
            raise DataError("packed files must end in .npz", got=path.name, cure=f"use {path.name}.npz")
        if not count:
            raise DataError("there must be an image to pack", got="an empty split", cure="choose another split")
        for name, pixels in (("size", self.size), ("side", self.side)):
            if pixels is not None and pixels < 1:
                raise DataError(f"{name} must be a number of pixels", got=pixels, cure="use 1 or more, or leave it out")
        if self.size is not None and self.side is not None:
            raise DataError("size crops to a square and side keeps the shape", got="both", cure="give one of them")
        if not 0 <= self.quality <= 100:
            raise DataError("quality must lie in 0 … 100", got=self.quality, cure="use 90, or lossless=True")
        if self.lossless and self.format != "webp":
            raise DataError("lossless images need the format webp", got=self.format, cure="use format='webp'")
        if not 0 <= self.raw <= 1:
            raise DataError("raw must be a share in 0 … 1", got=self.raw, cure="use 0.5 for half of the images")

    def stored(self, split: ImageSplit, index: int) -> tuple[bytes, int, int]:
        """Return the file of image ``index`` in this form, and its height and width."""
        raw = math.floor((index + 1) * self.raw) > math.floor(index * self.raw)
        if self.side is None:
            pixels = _square(split.image(index), self.size)
        else:
            data = split.encoded(index) if isinstance(split, EncodedImages) else b""
            if data.startswith(_JPEG) and not raw and self.format == "jpeg":
                height, width = image_shape(data, split.name(index))
                if max(height, width) <= self.side:
                    return data, height, width
            pixels = _reduced(split, index, data, self.side)
        return self._encoded(pixels, raw), pixels.shape[0], pixels.shape[1]

    def _encoded(self, pixels: Pixels, raw: bool) -> bytes:
        if raw:
            return b"P6\n%d %d\n255\n" % (pixels.shape[1], pixels.shape[0]) + pixels.tobytes()
        if self.format == "jpeg":
            return encode_jpeg(pixels, self.quality)
        file = io.BytesIO()
        pillow().fromarray(pixels).save(file, "WEBP", quality=self.quality, lossless=self.lossless)
        return file.getvalue()


_JPEG = b"\xff\xd8\xff"


def write_packed(
    split: ImageSplit, path: Path, form: Form, threads: int | None, done: Callable[[], Any], **arrays: Any
) -> None:
    """Write a packed file, with further ``arrays`` in it; ``done`` is called after each image."""
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # The blob may exceed the memory, and its length comes before it in the file, so it is first written elsewhere.
        with tempfile.TemporaryFile(dir=path.parent) as blob, replacing(path) as file:
            ends, shapes = [0], set()
            for data, height, width in in_threads(lambda index: form.stored(split, index), len(split), threads, 16):
                ends.append(ends[-1] + blob.write(data))
                shapes.add((height, width))
                done()
            blob.flush()
            np.savez(
                file,
                blob=np.memmap(blob, np.uint8, "r"),
                off=np.array(ends, np.int64),
                y=split.labels,
                name=np.array([os.fsencode(split.name(i)) for i in range(len(split))]),
                shape=np.array(shapes.pop() if len(shapes) == 1 else (0, 0), np.int64),
                **arrays,
            )


def _square(image: Pixels, size: int | None) -> Pixels:
    """Crop ``image`` to its centre square and resize it to ``size``; None returns it unchanged."""
    height, width = image.shape[:2]
    if size is None or (height, width) == (size, size):
        return image
    side = min(height, width)
    left, top = (width - side) / 2, (height - side) / 2
    square = pillow().fromarray(image).resize(
        (size, size), pillow().Resampling.BICUBIC, box=(left, top, left + side, top + side)
    )
    return np.array(square)


def _reduced(split: ImageSplit, index: int, data: bytes, side: int) -> Pixels:
    """Return image ``index``, whose file is ``data`` if it has one, with a longer side of at most ``side`` pixels."""

    def target(height: int, width: int) -> tuple[int, int]:
        share = min(1.0, side / max(height, width))
        return max(1, round(height * share)), max(1, round(width * share))

    if data:
        pixels, shape, _ = decode_scaled(
            data, split.name(index), lambda height, width: divisor_of((0, 0, width, height), *target(height, width)),
            reuse=True,
        )
    else:
        pixels = split.image(index)
        shape = (pixels.shape[0], pixels.shape[1])
    out = np.empty((*target(*shape), 3), np.uint8)
    resize_into(pixels, (0, 0, pixels.shape[1], pixels.shape[0]), out)
    return out
