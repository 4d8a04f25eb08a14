"""Read an ``.npz`` file without unpickling, with its largest array memory-mapped."""

from __future__ import annotations

import struct
import zipfile
from typing import TYPE_CHECKING

import numpy as np

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
                try:
                    with file.open(entry) as member:
                        arrays[key] = np.lib.format.read_array(member, allow_pickle=False)
                except ValueError:
                    if key in needed:
                        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path.name} cannot be read as a packed file",
            got=f"{type(error).__name__}: {error}",
            cure="check the path, or write it again with matryo.data.pack",
        ) from error
    return arrays


def _map(path: Path, start: int) -> Array:
    """Map the array of the zip entry whose local header is at ``start``."""
    with path.open("rb") as file:
        file.seek(start + 26)   # a local header is 26 fixed bytes, two lengths, the name and an extra field
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, 1)
        version_1 = np.lib.format.read_magic(file) == (1, 0)
        header = np.lib.format.read_array_header_1_0 if version_1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
        if dtype.hasobject:
            raise ValueError("pickled arrays are not read")
        return np.memmap(path, dtype, "r", file.tell(), shape)
