"""The index of a tar shard: the byte range, label or captions of each image, built once and stored next to it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, fields
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from matryo.data.dataset import UNKNOWN
from matryo.data.images.listing import IMAGE_ENDINGS
from matryo.data.texts.rows import TextStore
from matryo.errors import DataError
from matryo.files import parse_json, replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matryo.data.dataset import Labels, Pixels

    Parts = dict[str, tuple[int, int]]   # the files of a sample: ending → first byte and size

_VERSION = 2   # of the index file; an index of another version is rebuilt


@dataclass(frozen=True)
class ShardIndex:
    """The samples of a shard in order: the first byte and size of the image, the label and the key."""

    starts: Labels
    sizes: Labels
    labels: Labels
    keys: np.ndarray[Any, np.dtype[np.bytes_]]


_Index = TypeVar("_Index", bound=ShardIndex)
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class CaptionIndex(ShardIndex):
    """The samples of a shard of images with captions; all labels are UNKNOWN."""

    blob: Pixels
    """All captions as UTF-8, concatenated: caption j is ``blob[ends[j - 1]:ends[j]]``."""
    ends: Labels
    counts: Labels
    """The number of captions per sample."""


def index_shard(root: Path, relative: str) -> ShardIndex:
    """Return the index of the shard at ``root / relative``: the stored one if it is up to date, or else a new one."""
    return _stored(root / relative, "index", ShardIndex, lambda path: _build(path, relative))


def index_captions(root: Path, relative: str) -> CaptionIndex:
    """Return the index of a shard whose images have captions in ``.txt`` or ``.json`` files, as :func:`index_shard`."""
    return _stored(root / relative, "captions", CaptionIndex, lambda path: _build_captions(path, relative))


def _stored(path: Path, ending: str, kind: type[_Index], build: Callable[[Path], _Index]) -> _Index:
    stored = path.with_name(f".{path.name}.{ending}.npz")
    status = path.stat()
    stamp = np.array([_VERSION, status.st_size, status.st_mtime_ns])
    # A damaged index is rebuilt. In a folder that is not writable, no index is stored.
    with contextlib.suppress(Exception), np.load(stored, allow_pickle=False) as file:
        if np.array_equal(file["stamp"], stamp):
            return kind(**{field.name: file[field.name] for field in fields(kind)})
    index = build(path)
    with contextlib.suppress(OSError), replacing(stored) as out:
        np.savez(out, stamp=stamp, **vars(index))
    return index


def _build(path: Path, relative: str) -> ShardIndex:
    starts, sizes, keys, labels = _indexed(path, relative, ("cls", "json"), _label, "a label", _label_cure)
    return ShardIndex(starts, sizes, np.array(labels, np.int64), keys)


def _build_captions(path: Path, relative: str) -> CaptionIndex:
    starts, sizes, keys, captions = _indexed(path, relative, ("txt", "json"), _captions, "a caption", _caption_cure)
    texts = TextStore.pack(chain(*captions))
    counts = np.array(list(map(len, captions)), np.int64)
    return CaptionIndex(starts, sizes, np.full(len(keys), UNKNOWN), keys, texts.blob, texts.ends, counts)


def _indexed(
    path: Path,
    relative: str,
    beside: Sequence[str],
    parse: Callable[[str, bytes, str], _Value | None],
    what: str,
    cure: Callable[[Parts], str],
) -> tuple[Any, Any, Any, list[_Value]]:
    """Return the first byte, size and key of each image, and what ``parse`` reads from the first file of ``beside``."""
    rows, values = [], []
    with path.open("rb") as file:
        for key, parts in _samples(path, relative, beside).items():
            images = [ending for ending in parts if ending in IMAGE_ENDINGS]
            value = None
            for ending in [ending for ending in beside if ending in parts][:1]:
                start, size = parts[ending]
                value = parse(ending, os.pread(file.fileno(), size, start), f"{relative}/{key}")
            if len(images) != 1 or value is None:
                raise DataError(
                    f"sample {relative}/{key} must have one image and {what}",
                    got=", ".join(f".{ending}" for ending in parts),
                    cure=cure(parts) if images else "add the image or remove the sample",
                )
            rows.append((*parts[images[0]], os.fsencode(key)))
            values.append(value)
    if not rows:
        raise DataError(f"shard {relative} must hold a sample", got="none", cure="remove the shard, or write it again")
    starts, sizes, keys = map(np.array, zip(*rows, strict=True))
    return starts, sizes, keys, values


def _samples(path: Path, relative: str, beside: Sequence[str]) -> dict[str, Parts]:
    """Return the image and the ``beside`` files of each sample, by key, in order; other files are skipped."""
    import tarfile

    samples: dict[str, Parts] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                folder, _, base = member.name.removeprefix("./").rpartition("/")
                stem, _, ending = base.partition(".")
                ending = ending.lower()
                wanted = ending in IMAGE_ENDINGS or ending in beside
                if not stem or not wanted or not member.isreg() or member.issparse():
                    continue
                key = f"{folder}/{stem}" if folder else stem
                if ending in samples.setdefault(key, {}):
                    raise DataError(
                        f"the keys of shard {relative} must be unique",
                        got=f"{key}.{ending} more than once",
                        cure="give each sample its own key",
                    )
                samples[key][ending] = (member.offset_data, member.size)
            if not _ends(path, tar.offset):
                raise tarfile.ReadError(f"no end of the archive after {len(tar.getmembers())} files")
    except (tarfile.TarError, OSError) as error:
        raise DataError(
            f"shard {relative} cannot be read as a tar file",
            got=error,
            cure="copy it again if it is incomplete, or gunzip it if it is compressed",
        ) from error
    return samples


def _ends(path: Path, offset: int) -> bool:
    """Return whether the tar file ends with an empty block; tarfile does not detect a truncated file."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(512) == bytes(512)


def _label_cure(_: Parts) -> str:
    return 'add a .cls file with the class index, or a .json file with "label"'


def _label(ending: str, data: bytes, name: str) -> int | None:
    """Return the class index in the ``.cls`` or ``.json`` file of a sample; None if there is none."""
    try:
        value: Any = data if ending == "cls" else parse_json(data)
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
            got=data[:40],
            cure=f"write the class index to its .{ending} file",
        ) from None


def _caption_cure(parts: Parts) -> str:
    if "txt" in parts:
        return "its .txt file is empty: write the caption to it, or remove the sample"
    if "json" in parts:
        return 'its .json file has no "caption", or an empty one: add it, or remove the sample'
    return 'add a .txt file with the caption, or a .json file with "caption"'


def _captions(ending: str, data: bytes, name: str) -> list[str] | None:
    """Return the captions in the ``.txt`` or ``.json`` file of a sample; None if there are none."""
    try:
        value: Any = data.decode("utf-8-sig") if ending == "txt" else parse_json(data)
        if ending == "json":
            keys = ("caption", "captions", "text") if isinstance(value, dict) else ()
            value = next((value[key] for key in keys if value.get(key)), [])
        captions = [caption.strip() for caption in (value if isinstance(value, list) else [value])]
        "".join(captions).encode()   # raises for lone surrogates
    except (ValueError, AttributeError):
        raise DataError(
            f"the caption of sample {name} must be UTF-8 text",
            got=data[:40],
            cure=f"write it to its .{ending} file again",
        ) from None
    return [caption for caption in captions if caption] or None
