"""Pack a dataset into a folder, with one or more files per split: resumable by file, and shared between machines."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.data.dataset import ImageSplit
from matryo.data.images.decode import progress_bar
from matryo.data.images.npz import read_npz
from matryo.data.images.packing import Form, write_packed
from matryo.errors import DataError
from matryo.files import write_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.data.dataset import Dataset


@checked
def pack_dataset(
    dataset: Dataset,
    root: Path | str,
    *,
    size: int | None = None,
    images_per_file: int = 0,
    machine: int = 1,
    machines: int = 1,
    overwrite: bool = False,
    threads: int | None = None,
    progress: bool = True,
    **form: Any,
) -> None:
    """Pack every split of ``dataset`` into the folder ``root``, with its class names.

    :func:`matryo.data.packed_dataset` reads it back. ``size`` and ``form`` are options of :func:`pack`. With
    ``images_per_file``, a split of more images becomes several files, ``train_0001-of-0128.npz``. Files that are
    complete are kept, so that an interrupted call resumes; a file of other images or another form is an error unless
    ``overwrite``. Of several ``machines`` that share the folder, number ``machine`` writes its part of the files.
    """
    root, how = Path(root), Form(size=size, **form)
    if not 1 <= machine <= machines:
        raise DataError("machine must be a number in 1 … machines", got=machine, cure=f"use 1 … {machines}")
    files = {root / path: split for name in dataset.splits for path, split in _files(dataset, name, images_per_file)}
    for path, split in files.items():
        how.check(path, len(split))
    own = list(files.items())[machine - 1 :: machines]
    stamps = {path: _stamp(split, how) for path, split in own}   # before the work: finds files of other images
    missing = [(path, split) for path, split in own if not _is_complete(path, stamps[path], overwrite)]
    total, left = (sum(len(split) for _, split in parts) for parts in (own, missing))
    with progress_bar(total, "packing", "image", progress) as bar:
        bar.update(total - left)
        for path, split in missing:
            write_packed(split, path, how, threads, bar.update, stamp=np.array(stamps[path]))
    meta: dict[str, Any] = {"names": list(dataset.classes)}
    if dataset.superclass_of:
        meta |= {"superclass_names": list(dataset.superclasses), "superclass": list(dataset.superclass_of)}
    write_json(root / "meta.json", meta)


def _files(dataset: Dataset, name: str, most: int) -> Iterator[tuple[str, Any]]:
    """Yield the name and the images of each file of a split; a file holds at most ``most`` images, 0 for all."""
    split: Any = dataset.splits[name]
    if "_" in name:
        raise DataError(
            "the name of a packed split ends at the first underscore, so it must not contain one",
            got=name,
            cure="rename the split",
        )
    if not isinstance(split, ImageSplit):
        raise DataError("only images can be packed", got=f"split {name!r}", cure="pack a dataset of images")
    count = -(-len(split) // most) if most else 1
    if count <= 1:
        yield f"{name}.npz", split
        return
    bounds = np.linspace(0, len(split), count + 1).astype(np.int64)
    for number, (low, high) in enumerate(pairwise(bounds), 1):
        yield f"{name}_{number:04}-of-{count:04}.npz", split.subset(np.arange(low, high))   # type: ignore[attr-defined]


def _stamp(split: ImageSplit, form: Form) -> str:
    """Return a digest of the names and labels of the images, and of the form that they are stored in."""
    digest = hashlib.sha256(json.dumps(asdict(form), sort_keys=True).encode())
    digest.update(np.asarray(split.labels, np.int64).tobytes())
    for row in range(len(split)):
        digest.update(os.fsencode(split.name(row)) + b"\0")
    return digest.hexdigest()


def _is_complete(path: Path, stamp: str, overwrite: bool) -> bool:
    """Return whether the file at ``path`` has been written by this call's arguments; another file is an error."""
    if overwrite or not path.exists():
        return False
    arrays = read_npz(path, needed=(), mapped="blob")
    if str(arrays.get("stamp", "")) != stamp:
        raise DataError(
            f"{path} holds other images, or images in another form",
            got="a packed file that this command did not write",
            cure="choose another --out, or pass --force to replace it",
        )
    return True
