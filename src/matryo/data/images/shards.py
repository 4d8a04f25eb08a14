"""WebDataset tar shards with exact random access: each shard is indexed once, then images are read as byte ranges.

A split is the shards ``root/<split>/*.tar``, or ``root/<split>-0000.tar``, …, or ``root/<split>.tar``. Shards in the
root whose names are only numbers belong to ``train``. The files of a sample have the same path up to the first dot of
the file name: one image, and its class index in a ``.cls`` file or under ``label`` or ``cls`` in a ``.json`` file.
Class names are read from ``root/classes.txt``, one per line, or ``root/classes.json``, a list; the default names are
"0", "1", …
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from matryo.arguments import checked
from matryo.data.class_names import listed_classes
from matryo.data.dataset import Dataset
from matryo.data.images.decode import EncodedImages, in_threads, progress_bar
from matryo.data.images.tar_index import ShardIndex, index_shard
from matryo.data.split import align, as_labels, class_names
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_Index = TypeVar("_Index", bound=ShardIndex)
_LAYOUT = "name shards train-0000.tar, or put them in one folder per split: train/0000.tar"
_NUMBER = re.compile(r"(^|-)\d+(-of-\d+)?$")   # the number of a shard within its split
_MOST_OPEN = 128   # files kept open per split; the usual limit per process is 1,024


class ShardImages(EncodedImages):
    """A split of images in the tar files ``paths``, relative to ``root``, with one index per file."""

    def __init__(self, root: Path, paths: Sequence[str], indexes: Sequence[ShardIndex]) -> None:
        counts = [len(index.labels) for index in indexes]
        labels = np.concatenate([index.labels for index in indexes])
        super().__init__(as_labels(labels, sum(counts), root.name))
        self._paths = list(paths)
        self._shards = np.repeat(np.arange(len(paths)), counts)
        self._starts = np.concatenate([index.starts for index in indexes])
        self._sizes = np.concatenate([index.sizes for index in indexes])
        self._keys = np.concatenate([index.keys for index in indexes])
        self._files = _Files(root.absolute())

    def encoded(self, index: int) -> bytes:
        """Return the encoded bytes of the image of sample ``index``."""
        row = self._row(index)
        size = int(self._sizes[row])
        try:
            data = self._files.read(self._paths[self._shards[row]], int(self._starts[row]), size)
            got: object = f"{len(data)} of {size} bytes"
        except OSError as error:
            data, got = b"", error.strerror
        if len(data) != size:
            raise DataError(
                f"image {self.name(index)} cannot be read",
                got=got,
                cure="the shard has changed since it was opened: restore it, or open the dataset again",
            )
        return data

    def name(self, index: int) -> str:
        """Return the path of the shard and the key of sample ``index``."""
        row = self._row(index)
        return f"{self._paths[self._shards[row]]}/{os.fsdecode(self._keys[row])}"


class _Files:
    """Read byte ranges of files under ``root``. Reads use ``pread``, so threads and forks can share handles."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[str, int] = {}

    def read(self, path: str, start: int, size: int) -> bytes:
        handle = self._open.get(path)
        if handle is not None:
            return os.pread(handle, size, start)
        handle = os.open(self._root / path, os.O_RDONLY)
        try:
            return os.pread(handle, size, start)
        finally:
            # Above the limit, or if another thread has opened the file meanwhile, the handle serves this read only.
            if len(self._open) >= _MOST_OPEN or self._open.setdefault(path, handle) != handle:
                os.close(handle)

    def __getstate__(self) -> Path:
        return self._root   # handles are not valid in another process

    def __setstate__(self, root: Path) -> None:
        self.__init__(root)   # type: ignore[misc]

    def __del__(self) -> None:
        for handle in self._open.values():
            os.close(handle)


@checked
def shard_dataset(
    root: Path | str, classes: Sequence[str] | None = None, *, threads: int = 8, progress: bool = True
) -> Dataset[ShardImages]:
    """Open the tar shards under ``root`` as a dataset, in the layout of this module's docstring.

    With ``classes``, labels index that list, matched by name. Indexing reads every header once. The index is stored in
    a hidden file next to its shard if the folder is writable.
    """
    root = Path(root)
    indexed = open_shards(root, index_shard, threads, progress)
    splits = {split: ShardImages(root, *shards) for split, shards in indexed.items()}
    own = class_names(splits, listed_classes(root) or None)
    return align(Dataset(root.resolve().name, own, splits), classes)


def open_shards(
    root: Path, index: Callable[[Path, str], _Index], threads: int, progress: bool
) -> dict[str, tuple[list[str], list[_Index]]]:
    """Return, for each split, the paths of its shards relative to ``root`` and their indexes, made by ``index``."""
    shards = [(split, path) for split, paths in sorted(_find(root).items()) for path in paths]
    splits: dict[str, tuple[list[str], list[_Index]]] = {}
    with progress_bar(len(shards), "indexing shards", "shard", progress) as bar:
        indexes = in_threads(lambda i: index(root, shards[i][1]), len(shards), threads, chunk=1)
        for (split, path), shard_index in zip(shards, indexes, strict=True):
            paths, parts = splits.setdefault(split, ([], []))
            paths.append(path)
            parts.append(shard_index)
            bar.update()
    return splits


def _find(root: Path) -> dict[str, list[str]]:
    """Return the shards of each split, as sorted paths relative to ``root``."""
    shards: dict[str, list[str]] = {}
    folders = {path.parent.name for path in root.glob("*/*.tar") if not path.parent.name.startswith(".")}
    for path in sorted([*root.glob("*.tar"), *root.glob("*/*.tar")]):
        relative = path.relative_to(root)
        if any(part.startswith(".") for part in relative.parts):
            continue
        split = relative.parts[0] if len(relative.parts) > 1 else _split_of(path)
        if len(relative.parts) == 1 and split in folders:
            raise DataError(
                f"split {split!r} must be a folder of shards or shards in the root, not both",
                got=f"{split}/ and {path.name}",
                cure="move them into one place",
            )
        shards.setdefault(split, []).append(relative.as_posix())
    if not shards:
        raise DataError(
            "a dataset of shards must be a folder with .tar files",
            got=f"none in {root}" if root.is_dir() else f"{root}, which does not exist",
            cure=_LAYOUT,
        )
    return shards


def _split_of(path: Path) -> str:
    """Return the split in the name of a shard; an ambiguous name is an error."""
    split = _NUMBER.sub("", path.stem)
    if not split:
        return "train"
    # A digit elsewhere may be the number of the shard, as in val_0001.
    if split == path.stem and any(letter.isdigit() for letter in split):
        raise DataError("the name of a shard must show its split", got=path.name, cure=_LAYOUT)
    return split
