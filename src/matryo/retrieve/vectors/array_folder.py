"""A folder of arrays that appears whole or not at all: a ``.npy`` each, and a header with their checksums.

Opened, the arrays are mapped, not read; only their sizes, shapes and the header are checked. :func:`verify_arrays`
reads every byte. Whatever differs from what was written is named with its file.

>>> import tempfile
>>> place = Path(tempfile.mkdtemp()) / "here"
>>> write_arrays(place, "things.json", 1, {"dim": 2}, {"ones": np.ones((3, 2), "f4")})
>>> about, arrays = open_arrays(place, "things.json", 1)
>>> about, arrays["ones"].shape
({'dim': 2}, (3, 2))
"""

from __future__ import annotations

import hashlib
import json
import mmap
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError
from matryo.files import replacing, sha256, storage, sync_folder, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["open_arrays", "picked", "verify_arrays", "write_arrays"]


def write_arrays(
    folder: str | Path, header: str, format: int, about: Mapping[str, Any], arrays: Mapping[str, Array]
) -> None:
    """Write a new ``folder``: each of ``arrays`` as ``NAME.npy``, and ``about``, of JSON values, in the ``header``.

    The ``format`` is the version of the layout; it grows when an older matryo could no longer read it.
    """
    place = Path(folder)
    if place.exists():
        raise EmbeddingsError("arrays are written to a new folder", got=place, cure="choose another name")
    work = place.parent / f".{place.name}.{secrets.token_hex(4)}.tmp"
    try:
        with storage(place):
            work.mkdir(parents=True)
            files = {f"{name}.npy": _write(work / f"{name}.npy", array) for name, array in arrays.items()}
            written = {"format": format, **about, "files": files}
            write_json(work / header, {**written, "sha256": _digest(written)})
            work.rename(place)
            sync_folder(place.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def open_arrays(folder: str | Path, header: str, format: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """What ``about`` was, and the arrays by name, mapped."""
    place = Path(folder)
    about = _read(place, header)
    layout, files = about.pop("format"), about.pop("files", {})
    if layout > format:
        raise EmbeddingsError(
            f"{place} has a layout newer than this matryo reads",
            got=f"format {layout}, known up to {format}",
            cure="pip install --upgrade matryo",
        )
    return about, {name.removesuffix(".npy"): _map(place / name, **record) for name, record in files.items()}


def picked(array: Array) -> Array:
    """A mapped array again, for who picks single rows of it; what is not mapped as it is.

    The system reads on from where a file is read, often by megabytes. That is right for a scan and far too much for a
    row, and where the files are larger than the memory it drives out what will be needed. So rows have a mapping of
    their own, of which the system is told.
    """
    there = array.base
    if not isinstance(there, np.memmap) or there.filename is None or not hasattr(mmap, "MADV_RANDOM"):
        return array
    try:
        again = np.memmap(there.filename, there.dtype, "r", there.offset, there.shape)
    except OSError:   # removed since, by a writer; the old mapping still holds it
        return array
    held: Any = again.base
    held.madvise(mmap.MADV_RANDOM)
    return np.asarray(again)


def verify_arrays(folder: str | Path, header: str) -> None:
    """Read every byte of a folder and raise, naming the file, where a checksum differs."""
    place = Path(folder)
    for name, record in _read(place, header)["files"].items():
        if not (place / name).is_file() or sha256(place / name) != record["sha256"]:
            raise _damaged(place / name, "other bytes than were written")


def _write(path: Path, array: Array) -> dict[str, Any]:
    with replacing(path) as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        # Not by numpy's own writer, which does not say why the disk refused.
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    about = {"dtype": str(array.dtype), "shape": list(array.shape)}
    return {"size": path.stat().st_size, "sha256": sha256(path), **about}


def _digest(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _read(place: Path, header: str) -> dict[str, Any]:
    path = place / header
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        told = about.pop("sha256")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise EmbeddingsError(f"the folder must have a {header}", got=place, cure="check the path") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"no header: {error}") from error
    if told != _digest(about):
        raise _damaged(path, "other bytes than were written")
    return about


def _map(path: Path, *, size: int, dtype: str, shape: list[int], sha256: str) -> Array:  # noqa: ARG001
    found = path.stat().st_size if path.is_file() else None
    if found != size:
        raise _damaged(path, "no such file" if found is None else f"{found} bytes instead of {size}")
    try:
        # Of nothing there is nothing to map.
        # asarray: still the mapped file, as an array of the plain kind, whose slices cost less.
        array = np.asarray(np.load(path) if 0 in shape else np.lib.format.open_memmap(path, mode="r"))
    except Exception as error:   # a damaged header gets errors of every kind out of numpy's parser
        raise _damaged(path, str(error)) from error
    if array.shape != tuple(shape) or array.dtype != dtype:
        raise _damaged(path, f"{array.dtype} {array.shape} instead of {dtype} {tuple(shape)}")
    return array


def _damaged(path: Path, found: str) -> EmbeddingsError:
    return EmbeddingsError(f"{path} is damaged", got=found, cure="restore it from a copy, or write the vectors again")
