"""The items that a caller passes to ``encode``, ``predict`` or Grad-CAM, as a split without labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.data.images.decode import decode, to_rgb
from matryo.data.unlabelled import open_unlabelled
from matryo.errors import InputError

if TYPE_CHECKING:
    from matryo.data import ImageSplit


def as_images(items: Any) -> ImageSplit:
    """Images as a split: a folder of images, paths, Pillow images, a column of those, or uint8 arrays."""
    if isinstance(items, (str, Path)) and Path(items).is_dir():
        split: ImageSplit = open_unlabelled(items)   # type: ignore[assignment]
        return split
    return GivenImages(items)


def as_list(items: Any) -> Any:
    """A single path, text or image, or a column of pandas, polars, pyarrow or datasets, as a list; arrays unchanged."""
    if isinstance(items, (str, Path)) or hasattr(items, "convert"):   # a Pillow image
        return [items]
    if hasattr(items, "columns") or hasattr(items, "column_names"):
        names = list(items.column_names if hasattr(items, "column_names") else items.columns)
        raise InputError(
            "a table has several columns", got=f"columns {', '.join(map(str, names))}", cure="pass one: table['text']"
        )
    if isinstance(items, np.ndarray):
        return items.tolist() if items.dtype.kind in "UO" else items
    for method in ("to_list", "tolist", "to_pylist"):
        if hasattr(items, method):
            return getattr(items, method)()
    return items if isinstance(items, list | tuple) else list(items)


class GivenImages:
    """Images in memory or at paths, of any sizes."""

    shape = None

    def __init__(self, images: Any) -> None:
        images = as_list(images)
        if isinstance(images, np.ndarray) and images.ndim == 3 and images.shape[-1] == 3:
            images = images[None]
        self.images = images
        self.labels = np.full(len(images), -1, np.int64)

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return f"image {index}"

    def image(self, index: int) -> Any:
        item = self.images[index]
        if isinstance(item, (str, Path)):
            return decode(_read(Path(item)), str(item))
        if hasattr(item, "convert"):
            return to_rgb(item, self.name(index))
        pixels = np.asarray(item)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3:
            raise InputError(
                "images must be uint8 [height, width, 3]",
                got=f"{pixels.dtype} {list(pixels.shape)} at position {index}",
                cure="pass RGB values of 0…255",
            )
        return pixels


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError("cannot read an image", got=f"{path}: {error.strerror}", cure="check the path") from error
