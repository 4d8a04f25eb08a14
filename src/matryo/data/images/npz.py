"""Read an ``.npz`` file without unpickling, with its largest array memory-mapped."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from matryo.data.limits import check_expansion
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from matryo.arrays import Array


def read_npz(path: Path, needed: Collection[str], mapped: str) -> dict[str, Array]:
    """Return the arrays of the file at ``path``; the array ``mapped`` is memory-mapped if stored uncompressed.

    Pickled arrays are skipped; if one of them is ``needed``, that is an error.
    """
    arrays: dict[str, Array] = {}
    try:
        with zipfile.ZipFile(path) as file:
            for entry in file.infolist():
                key = entry.filename.removesuffix(".npy")
                if key == mapped and entry.compress_type == zipfile.ZIP_STORED:
                    arrays[key] = _map(path, entry.header_offset)
                    continue
                check_expansion(f"{path.name}, {key}", entry.file_size, entry.compress_size)
                try:
                    with file.open(entry) as member:
                        _check_header(member, entry.file_size)
                    with file.open(entry) as member:
                        arrays[key] = np.lib.format.read_array(member, allow_pickle=False)
                except ValueError:
                    if key in needed:
                        raise
    except DataError:
        raise
    except (OSError, ValueError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise _unreadable(path, error) from error
    return arrays


def verify_npz(path: Path) -> None:
    """Read every byte of the file at ``path`` and compare the CRC-32 of its arrays; raise if one is damaged."""
    try:
        with zipfile.ZipFile(path) as file:
            damaged = file.testzip()
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _unreadable(path, error) from error
    if damaged is not None:
        raise DataError(
            f"{path.name} is damaged",
            got=f"other bytes in its array {damaged.removesuffix('.npy')}",
            cure="copy it again, or delete it and run `matryo pack` again",
        )


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path.name} cannot be read as a packed file",
        got=f"{type(error).__name__}: {error}",
        cure="check the path, or write it again with matryo.data.pack",
    )


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version_1 = np.lib.format.read_magic(file) == (1, 0)
    header = np.lib.format.read_array_header_1_0 if version_1 else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    return shape, dtype


def _check_header(file: IO[bytes], size: int) -> None:
    """Raise if the array is larger than the ``size`` of its file: numpy would allocate it before it reads."""
    shape, dtype = _header(file)
    if not dtype.hasobject and (math.prod(shape) * dtype.itemsize > size or min(shape, default=0) < 0):
        raise ValueError(f"an array of {shape} in {size:,} bytes")


def _map(path: Path, start: int) -> Array:
    """Map the array of the zip entry whose local header is at ``start``."""
    with path.open("rb") as file:
        file.seek(start + 26)   # a local header is 26 fixed bytes, two lengths, the name and an extra field
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, 1)
        shape, dtype = _header(file)
        if dtype.hasobject:
            raise ValueError("pickled arrays are not read")
        return np.memmap(path, dtype, "r", file.tell(), shape)
