"""WebDataset tar shards with exact random access: each shard is indexed once, then images are byte ranges.

A split is the shards ``root/<split>/*.tar``, or ``root/<split>-0000.tar`` and on, or ``root/<split>.tar``; those in the
root whose names are only numbers are ``train``. The files of a sample share their path up to the first dot of
the file name: one image, and its class index in a ``.cls`` file or under ``label`` or ``cls`` in a ``.json``
file. Class names come from ``root/classes.txt``, one a line, or ``root/classes.json``, a list; else they are
"0", "1", …
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from matryo.data.class_names import listed_classes
from matryo.data.dataset import Dataset
from matryo.data.images.decode import EncodedImages, in_threads, progress_bar
from matryo.data.images.tar_index import ShardIndex, index_shard
from matryo.data.split import align, as_labels, below, numbered
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ShardImages", "open_shards", "shard_dataset"]

_Index = TypeVar("_Index", bound=ShardIndex)
_LAYOUT = "name shards train-0000.tar, or put them in a folder for each split: train/0000.tar"
_NUMBER = re.compile(r"(^|-)\d+(-of-\d+)?$")   # of a shard among those of its split
_MOST_OPEN = 128   # files kept open by a split; systems commonly allow 1,024 to a process


class ShardImages(EncodedImages):
    """Labelled images in the tar files ``paths``, which are relative to ``root``, with an index of each."""

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
        """The image file of sample ``index``."""
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
        """The shard and, in it, the key of sample ``index``."""
        row = self._row(index)
        return f"{self._paths[self._shards[row]]}/{os.fsdecode(self._keys[row])}"


class _Files:
    """Byte ranges of files under ``root``; a read carries its offset, so threads and forks share handles."""

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
            # Beyond the limit, or if another thread was first, this handle is for one read only.
            if len(self._open) >= _MOST_OPEN or self._open.setdefault(path, handle) != handle:
                os.close(handle)

    def __getstate__(self) -> Path:
        return self._root   # handles mean nothing to another process

    def __setstate__(self, root: Path) -> None:
        self.__init__(root)   # type: ignore[misc]

    def __del__(self) -> None:
        for handle in self._open.values():
            os.close(handle)


def shard_dataset(
    root: Path | str, classes: Sequence[str] | None = None, *, threads: int = 8, progress: bool = True
) -> Dataset:
    """The tar shards under ``root`` as a dataset; this module's docstring says what it may hold.

    With ``classes``, labels are aligned to that list by name. Indexing reads every header once; the index
    is then kept in a hidden file beside its shard, if that folder can be written.
    """
    root = Path(root)
    found = open_shards(root, index_shard, threads, progress)
    splits = {split: ShardImages(root, *shards) for split, shards in found.items()}
    own = listed_classes(root) or numbered(list(splits.values()))
    for split, images in splits.items():
        below(images.labels, len(own), split)
    return align(Dataset(root.resolve().name, own, splits), classes)


def open_shards(
    root: Path, index: Callable[[Path, str], _Index], threads: int, progress: bool
) -> dict[str, tuple[list[str], list[_Index]]]:
    """The shards of each split as paths relative to ``root``, and what ``index`` makes of each."""
    shards = [(split, path) for split, paths in sorted(_find(root).items()) for path in paths]
    found: dict[str, tuple[list[str], list[_Index]]] = {}
    with progress_bar(len(shards), "indexing shards", "shard", progress) as bar:
        indexes = in_threads(lambda i: index(root, shards[i][1]), len(shards), threads, chunk=1)
        for (split, path), one in zip(shards, indexes, strict=True):
            paths, parts = found.setdefault(split, ([], []))
            paths.append(path)
            parts.append(one)
            bar.update()
    return found


def _find(root: Path) -> dict[str, list[str]]:
    """The shards of each split, as sorted paths relative to ``root``."""
    found: dict[str, list[str]] = {}
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
                cure="move them together",
            )
        found.setdefault(split, []).append(relative.as_posix())
    if not found:
        raise DataError(
            "a dataset of shards is a folder with .tar files",
            got=f"none in {root}" if root.is_dir() else f"{root}, which does not exist",
            cure=_LAYOUT,
        )
    return found


def _split_of(path: Path) -> str:
    """The split that a shard's name speaks of; a name that could mean anything is refused, not guessed."""
    split = _NUMBER.sub("", path.stem)
    if not split:
        return "train"
    # Without a number of its own, a digit in the last word may be one: val_0001.
    if split == path.stem and any(letter.isdigit() for letter in split):
        raise DataError("a shard's name must tell its split", got=path.name, cure=_LAYOUT)
    return split
