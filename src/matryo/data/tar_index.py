"""Where each image of a tar shard lies: one pass over its headers, kept in a small file beside it."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.data.listing import IMAGE_ENDINGS
from matryo.errors import DataError
from matryo.files import replacing

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.data.dataset import Labels

    Parts = dict[str, tuple[int, int]]   # a sample's files: ending → first byte and size

__all__ = ["ShardIndex", "index_shard"]

_VERSION = 1   # of the index file; another version is built again


@dataclass(frozen=True)
class ShardIndex:
    """The samples of a shard in their order: where the image starts, its size, the label and the key."""

    starts: Labels
    sizes: Labels
    labels: Labels
    keys: np.ndarray[Any, np.dtype[np.bytes_]]


def index_shard(root: Path, relative: str) -> ShardIndex:
    """The index of the shard at ``root / relative``: the one kept beside it while true, or a new one."""
    path = root / relative
    kept = path.with_name(f".{path.name}.index.npz")
    status = path.stat()
    stamp = np.array([_VERSION, status.st_size, status.st_mtime_ns])
    # A damaged index is as good as none, and a folder that cannot be written does without.
    with contextlib.suppress(Exception), np.load(kept, allow_pickle=False) as file:
        if np.array_equal(file["stamp"], stamp):
            return ShardIndex(file["starts"], file["sizes"], file["labels"], file["keys"])
    index = _build(path, relative)
    with contextlib.suppress(OSError), replacing(kept) as out:
        np.savez(out, stamp=stamp, **vars(index))
    return index


def _build(path: Path, relative: str) -> ShardIndex:
    rows = []
    with path.open("rb") as file:
        for key, parts in _samples(path, relative).items():
            images = [ending for ending in parts if ending in IMAGE_ENDINGS]
            label = _label(file.fileno(), parts, f"{relative}/{key}")
            if len(images) != 1 or label is None:
                raise DataError(
                    f"sample {relative}/{key} must have one image and a label",
                    got=", ".join(f".{ending}" for ending in parts),
                    cure='add a .cls file with the class index, or a .json file with "label"'
                    if images
                    else "add the image or remove the sample",
                )
            rows.append((*parts[images[0]], label, os.fsencode(key)))
    if not rows:
        raise DataError(f"shard {relative} must hold a sample", got="none", cure="remove or rewrite it")
    starts, sizes, labels, keys = zip(*rows, strict=True)
    return ShardIndex(np.array(starts), np.array(sizes), np.array(labels, dtype=np.int64), np.array(keys))


def _samples(path: Path, relative: str) -> dict[str, Parts]:
    """The files of each sample, by key, in the shard's order; files of other kinds are left out."""
    import tarfile

    samples: dict[str, Parts] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                folder, _, base = member.name.removeprefix("./").rpartition("/")
                stem, _, ending = base.partition(".")
                ending = ending.lower()
                wanted = ending in IMAGE_ENDINGS or ending in ("cls", "json")
                if not stem or not wanted or not member.isreg() or member.issparse():
                    continue
                key = f"{folder}/{stem}" if folder else stem
                if ending in samples.setdefault(key, {}):
                    raise DataError(
                        f"the keys of shard {relative} must differ",
                        got=f"{key}.{ending} more than once",
                        cure="give each sample its own key",
                    )
                samples[key][ending] = (member.offset_data, member.size)
    except (tarfile.TarError, OSError) as error:
        raise DataError(
            f"shard {relative} is no readable tar file",
            got=error,
            cure="it must be whole and not compressed: copy it again, or gunzip it",
        ) from error
    return samples


def _label(handle: int, parts: Parts, name: str) -> int | None:
    """The class index in the sample's ``.cls`` or ``.json`` file; None if neither says."""
    ending = "cls" if "cls" in parts else "json"
    if ending not in parts:
        return None
    start, size = parts[ending]
    text = os.pread(handle, size, start)
    try:
        value: Any = text if ending == "cls" else json.loads(text)
        if ending == "json":
            value = value.get("label", value.get("cls")) if isinstance(value, dict) else value
            if value is None:
                return None
        if isinstance(value, bool | float):
            raise TypeError
        return int(value)
    except (ValueError, TypeError):
        raise DataError(
            f"the label of sample {name} must be an integer",
            got=text[:40],
            cure=f"write the class index into its .{ending} file",
        ) from None
