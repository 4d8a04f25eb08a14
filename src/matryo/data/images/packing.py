"""Pack a split of images into one ``.npz`` file of WebP images, optionally resized."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.data.dataset import ImageSplit
from matryo.data.images.decode import in_threads, pillow, progress_bar
from matryo.data.images.packed import PackedImages
from matryo.errors import DataError
from matryo.files import replacing, storage, write_json

if TYPE_CHECKING:
    from matryo.data.dataset import Dataset, Pixels


@checked
def pack(
    split: ImageSplit,
    path: Path | str,
    *,
    size: int | None = None,
    quality: int = 90,
    lossless: bool = False,
    threads: int | None = None,
    progress: bool = True,
) -> PackedImages:
    """Write the images of ``split`` to the ``.npz`` file at ``path``, and open it.

    With ``size``, each image is cropped to its centre square and resized to size × size pixels. ``lossless`` keeps
    all pixels; otherwise ``quality`` (0…100) is the quality of WebP. Labels and image names are kept;
    :func:`pack_dataset` also keeps class names. An existing file is replaced when the new one is complete.
    """
    path = Path(path)
    _check(split, path, size, quality)

    def work(index: int) -> tuple[bytes, int, int]:
        image = _resized(split.image(index), size)
        file = io.BytesIO()
        pillow().fromarray(image).save(file, "WEBP", quality=quality, lossless=lossless)
        return file.getvalue(), image.shape[0], image.shape[1]

    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # The blob may exceed the memory, and its length comes before it in the file, so it is first written elsewhere.
        with tempfile.TemporaryFile(dir=path.parent) as blob, replacing(path) as file:
            ends, shapes = [0], set()
            with progress_bar(len(split), f"packing {path.name}", "image", progress) as bar:
                for data, height, width in in_threads(work, len(split), threads):
                    ends.append(ends[-1] + blob.write(data))
                    shapes.add((height, width))
                    bar.update()
            blob.flush()
            np.savez(
                file,
                blob=np.memmap(blob, np.uint8, "r"),
                off=np.array(ends, np.int64),
                y=split.labels,
                name=np.array([os.fsencode(split.name(i)) for i in range(len(split))]),
                shape=np.array(shapes.pop() if len(shapes) == 1 else (0, 0), np.int64),
            )
    return PackedImages.open(path)


@checked
def pack_dataset(dataset: Dataset, root: Path | str, *, size: int | None = None, **options: Any) -> None:
    """:func:`pack` every split of ``dataset`` into the folder ``root``, with its class names.

    :func:`matryo.data.packed_dataset` reads it back. ``options`` are those of :func:`pack`.
    """
    root = Path(root)
    invalid = [name for name in dataset.splits if "_" in name]
    if invalid:
        raise DataError(
            "the name of a packed split ends at the first underscore, so it must not contain one",
            got=invalid[0],
            cure="rename the split",
        )
    for name, split in dataset.splits.items():
        if not isinstance(split, ImageSplit):
            raise DataError("only images can be packed", got=f"split {name!r}", cure="pack a dataset of images")
        pack(split, root / f"{name}.npz", size=size, **options)
    meta: dict[str, Any] = {"names": list(dataset.classes)}
    if dataset.superclass_of:
        meta |= {"superclass_names": list(dataset.superclasses), "superclass": list(dataset.superclass_of)}
    write_json(root / "meta.json", meta)


def _check(split: ImageSplit, path: Path, size: int | None, quality: int) -> None:
    if path.suffix != ".npz":
        raise DataError("packed files must end in .npz", got=path.name, cure=f"use {path.name}.npz")
    if not len(split):
        raise DataError("there must be an image to pack", got="an empty split", cure="choose another split")
    if size is not None and size < 1:
        raise DataError("size must be a number of pixels", got=size, cure="use 1 or more, or None to keep the size")
    if not 0 <= quality <= 100:
        raise DataError("quality must lie in 0 … 100", got=quality, cure="use 90, or lossless=True")


def _resized(image: Pixels, size: int | None) -> Pixels:
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
