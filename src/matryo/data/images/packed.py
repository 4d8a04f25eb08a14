"""Packed images: many small image files in one ``.npz``, read without extraction.

``blob`` (uint8) is the concatenation of all files; image i is ``blob[off[i]:off[i+1]]``; ``y`` holds the labels. An
uncompressed blob is memory-mapped, so opening is immediate and worker processes share its pages. :func:`pack` also
stores ``name`` (the origin of each image) and ``shape`` ((0, 0) if the shapes differ).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.data.dataset import Dataset
from matryo.data.images.decode import EncodedImages, image_shape
from matryo.data.images.npz import read_npz
from matryo.data.meta import read_json, strings
from matryo.data.split import align, as_labels, class_names
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from matryo.arrays import Array
    from matryo.data.dataset import Pixels


_KEYS = ("blob", "off", "y")
_NUMBERED = re.compile(r"_(\d+)-of-(\d+)$")   # the end of the name of one of several files of a split


class PackedImages(EncodedImages):
    """A split of image files concatenated in ``blob``; ``offsets`` has one more entry than there are images.

    ``shape`` defaults to the shape of the first image.
    """

    def __init__(
        self,
        blob: Pixels,
        offsets: ArrayLike,
        labels: ArrayLike | None = None,
        names: Sequence[str] | Array | None = None,
        shape: tuple[int, int] | None = None,
        *,
        source: str = "packed",
    ) -> None:
        if blob.dtype != np.uint8 or blob.ndim != 1:
            raise DataError(
                f"{source}: the blob must be a one-dimensional array of bytes",
                got=f"{blob.dtype} {list(blob.shape)}",
                cure="write it with matryo.data.pack",
            )
        self._blob = blob
        self._offsets = _check_offsets(np.asarray(offsets), len(blob), source)
        count = len(self._offsets) - 1
        super().__init__(as_labels(labels, count, source), shape)
        self._names = None if names is None else _check_names(names, count, source)
        self._same_shape = True
        self.source = source

    @classmethod
    def open(cls, path: Path | str) -> PackedImages:
        """Open the ``.npz`` file at ``path``; pickled arrays are never loaded."""
        path = Path(path)
        arrays = read_npz(path, needed=_KEYS, mapped="blob")
        if not arrays.keys() >= set(_KEYS):
            raise DataError(
                f"{path.name}: a packed file must hold the arrays blob, off and y",
                got=", ".join(sorted(arrays)) or "none",
                cure="write it with matryo.data.pack",
            )
        blob, offsets, labels = (arrays[key] for key in _KEYS)
        shape = arrays.get("shape", np.zeros(0))
        common = (int(shape[0]), int(shape[1])) if shape.any() else None
        packed = cls(blob, offsets, labels, arrays.get("name"), common, source=path.name)
        packed._same_shape = bool(shape.all())   # also true if the file has no shape
        return packed

    @property
    def shape(self) -> tuple[int, int] | None:
        """(height, width) if all images have the same shape, else None."""
        if self._shape is None and self._same_shape and len(self):
            self._shape = image_shape(self.encoded(0), self.name(0))
        return self._shape

    def encoded(self, index: int) -> bytes:
        """Return the encoded bytes of image ``index``."""
        row = self._row(index)
        return self._blob[self._offsets[row] : self._offsets[row + 1]].tobytes()

    def name(self, index: int) -> str:
        """Return the name stored for image ``index``, or else the file name and the row, "train.npz#0"."""
        row = self._row(index)
        return f"{self.source}#{row}" if self._names is None else os.fsdecode(self._names[row])

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        blob = self._blob
        if isinstance(blob, np.memmap):   # numpy would pickle the whole file; instead, the worker maps it again
            state["_blob"] = None
            state["_file"] = (blob.filename, blob.offset, len(blob))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        file = state.pop("_file", None)
        self.__dict__.update(state)
        if file:
            name, offset, length = file
            self._blob = np.memmap(name, np.uint8, "r", offset, (length,))


class PackedFiles(EncodedImages):
    """A split of several packed files, one after the other."""

    def __init__(self, files: Sequence[PackedImages], source: str) -> None:
        shapes = {file.shape for file in files}
        super().__init__(
            as_labels(np.concatenate([file.labels for file in files]), sum(map(len, files)), source),
            shapes.pop() if len(shapes) == 1 else None,
        )
        self.source = source
        self._files = list(files)
        self._starts = np.cumsum([0, *map(len, files)])

    def encoded(self, index: int) -> bytes:
        """Return the encoded bytes of image ``index``."""
        file, row = self._find(index)
        return file.encoded(row)

    def name(self, index: int) -> str:
        """Return the name stored for image ``index``, or else its file and the row there."""
        file, row = self._find(index)
        return file.name(row)

    def _find(self, index: int) -> tuple[PackedImages, int]:
        row = self._row(index)
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._files[number], row - int(self._starts[number])


@checked
def packed_dataset(root: Path | str, classes: Sequence[str] | None = None) -> Dataset[EncodedImages]:
    """Open the ``.npz`` files of a folder as splits, named up to the underscore: ``train_64px.npz`` is ``train``.

    A split may be several files, all of ``train_0001-of-0128.npz`` to ``train_0128-of-0128.npz``.

    ``meta.json`` may list the class names under ``names``, ``classes`` or ``label``, and superclasses under
    ``superclass_names`` with ``superclass``, one index per class. Without it, the classes are "0", "1", …
    With ``classes``, labels index that list, matched by name.
    """
    root = Path(root)
    splits = {split: _open(split, paths) for split, paths in sorted(_split_files(root).items())}
    meta = read_json(root / "meta.json", dict, default={})
    key = next((key for key in ("names", "classes", "label") if key in meta), None)
    own = class_names(
        {images.source: images for images in splits.values()},
        None if key is None else strings(meta[key], f"meta.json: {key}"),
    )
    groups = strings(meta.get("superclass_names", []), "meta.json: superclass_names")
    parents = meta.get("superclass", [])
    if not isinstance(parents, list) or not all(parent in range(len(groups)) for parent in parents):
        raise DataError(
            "meta.json: superclass must be a list of indices into superclass_names",
            got=repr(parents)[:60],
            cure=f"give each class an index in 0…{len(groups) - 1}, or remove both",
        )
    return align(Dataset(root.resolve().name, own, splits, groups, tuple(parents)), classes)


def _open(split: str, paths: Sequence[Path]) -> PackedImages | PackedFiles:
    return PackedImages.open(paths[0]) if len(paths) == 1 else PackedFiles(list(map(PackedImages.open, paths)), split)


def _split_files(root: Path) -> dict[str, list[Path]]:
    """Return the files of each split: one, or those numbered 1 … n of n."""
    files: dict[str, list[Path]] = {}
    for path in sorted(root.glob("*.npz")):
        files.setdefault(path.stem.split("_")[0], []).append(path)
    for split, paths in files.items():
        count = len(paths)
        numbers = [_NUMBERED.search(path.stem) for path in paths]
        if count > 1 and not all(numbers):
            raise DataError(
                f"split {split!r} must be one file, or files that are numbered",
                got=" and ".join(path.name for path in paths[:2]),
                cure="keep one of them in this folder",
            )
        first = numbers[0]
        if first is not None and [match and match.groups() for match in numbers] != [
            (f"{number:0{len(first[1])}}", f"{count:0{len(first[2])}}") for number in range(1, count + 1)
        ]:
            raise DataError(
                f"every file of split {split!r} must be there",
                got=f"{count} of {int(first[2])}",
                cure="run `matryo pack` again to write the missing ones, or copy them",
            )
    if not files:
        raise DataError(
            "a packed dataset must be a folder with one .npz file per split",
            got=root if root.exists() else f"{root}, which does not exist",
            cure="give the folder that holds train.npz, or write one with `matryo pack`",
        )
    return files


def _check_offsets(offsets: Array, size: int, source: str) -> Array:
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        raise DataError(
            f"{source}: offsets must be integers, one more than there are images, for at least one image",
            got=f"{offsets.dtype} {list(offsets.shape)}",
            cure="write it with matryo.data.pack",
        )
    checked = offsets.astype(np.int64)
    if checked[0] != 0 or checked[-1] != size or (np.diff(checked) <= 0).any():
        raise DataError(
            f"{source}: offsets must increase from 0 to the length of the blob, {size}",
            got=f"{checked[0]} … {checked[-1]}, smallest step {np.diff(checked).min()}",
            cure="the file is damaged or truncated: copy or pack it again",
        )
    return checked


def _check_names(names: Sequence[str] | Array, count: int, source: str) -> Array:
    if len(names) != count:
        raise DataError(
            f"{source}: every image needs one name",
            got=f"{count} images, {len(names)} names",
            cure="pass one name per image, or none",
        )
    if isinstance(names, np.ndarray) and names.dtype.kind == "S":
        return names
    # An array of bytes forks and pickles cheaply, unlike a list of a million strings.
    return np.array([os.fsencode(str(name)) for name in names])
