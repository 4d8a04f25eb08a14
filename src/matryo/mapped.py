"""Memory-mapped arrays that hold no file descriptor.

A mapping of Python's ``mmap`` keeps a descriptor until Python 3.13, and an index has dozens of files per segment: a
thousand mapped files would be all that a process may open. The mappings here last as long as an array refers to them.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "ones.npy"
>>> np.save(path, np.ones((3, 2)))
>>> array = map_npy(path)
>>> array.shape, array.flags.writeable, is_mapped(array), is_mapped(array[1:, 0])
((3, 2), False, True, True)
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from matryo.files import storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from matryo.arrays import Array

_RANDOM: int | None = getattr(mmap, "MADV_RANDOM", None)


def map_npy(path: Path) -> Array:
    """Map an array for reading; ValueError for a damaged header, StorageError if the system refuses to open it."""
    with storage(path, "read"), path.open("rb") as file:
        shape, in_columns, dtype = _read_header(file)
        if dtype.hasobject:
            raise ValueError("an array of Python objects")
        start, size = file.tell(), os.fstat(file.fileno()).st_size
        count = int(np.prod(shape, dtype=object)) if shape else 1
        if start + count * dtype.itemsize > size:
            raise ValueError(f"{size} bytes, too few for {dtype} {shape}")
        buffer = _map(file, size)
        buffer.path = path
    flat = np.frombuffer(memoryview(buffer).toreadonly(), dtype, count, start)
    return flat.reshape(shape, order="F" if in_columns else "C")


def map_bytes(path: Path) -> Array:
    """Map a file that is not empty as uint8, for reading."""
    with storage(path, "read"), path.open("rb") as file:
        buffer = _map(file, os.fstat(file.fileno()).st_size)
        buffer.path = path
    return np.frombuffer(memoryview(buffer).toreadonly(), np.uint8)


def is_mapped(array: Array) -> bool:
    """Whether ``array`` reads from a file mapped by this module."""
    return _buffer_of(array) is not None


def map_again(array: Array) -> Array:
    """Return a second mapping of a whole mapped array, for reading single rows; otherwise return ``array`` unchanged.

    The system reads ahead, often by megabytes. That is right for a scan and far too much for a row, and if the files
    are larger than the memory, it evicts pages that will be needed. So single rows are read through a mapping of their
    own, marked for random access.
    """
    buffer = _buffer_of(array)
    if buffer is None or _RANDOM is None:
        return array
    try:
        again = map_npy(buffer.path)
    except (OSError, ValueError):   # removed by a writer since, or no room for it; the old mapping still works
        return array
    other = _buffer_of(again)
    _advise(other, _RANDOM)
    return again


def _buffer_of(array: Any) -> Any:
    """The mapping below an array and its views; None for an array in memory."""
    while isinstance(array, np.ndarray):
        array = array.base
    buffer = array.obj if isinstance(array, memoryview) else None
    return buffer if hasattr(buffer, "path") else None


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    readers: dict[Any, Callable[..., Any]] = {
        (1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0,
    }  # fmt: skip
    if version not in readers:
        raise ValueError(f"a header of version {version}")
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = readers[version](file)
    return header


class _Map(mmap.mmap):
    """A mapping of Python's own, with the path of its file."""

    path: Path


def _map(file: BinaryIO, size: int) -> Any:
    """A read-only buffer of the file, with room for an attribute ``path``."""
    buffer = _map_descriptor(file.fileno(), size)
    return _Map(file.fileno(), size, access=mmap.ACCESS_READ) if buffer is None else buffer


def map_shared(descriptor: int, size: int) -> memoryview | None:
    """Map the first bytes of an open file that other processes change; None if this takes a second descriptor."""
    buffer = _map_descriptor(descriptor, size)
    return None if buffer is None else memoryview(buffer).cast("B").toreadonly()


def _map_descriptor(descriptor: int, size: int) -> Any:
    if sys.version_info >= (3, 13):
        return _Map(descriptor, size, access=mmap.ACCESS_READ, trackfd=False)
    system = _system()
    if system is None:
        return None
    address = system.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    buffer = (ctypes.c_ubyte * size).from_address(address)
    # Not at exit: other exit functions may still read arrays, and the system unmaps everything anyway.
    weakref.finalize(buffer, system.munmap, address, size).atexit = False
    return buffer


def _advise(buffer: Any, advice: int) -> None:
    if isinstance(buffer, _Map):
        buffer.madvise(advice)
    else:
        _system().madvise(ctypes.addressof(buffer), len(buffer), advice)


@cache
def _system() -> Any:
    """mmap, munmap and madvise of the C library; None where there is none."""
    try:
        system = ctypes.CDLL(None, use_errno=True)
        system.mmap.restype = ctypes.c_void_p
        region, integer = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
        system.mmap.argtypes = (*region, integer, integer, integer, ctypes.c_long)
        system.munmap.argtypes = region
        system.madvise.argtypes = (*region, integer)
    except (OSError, AttributeError, TypeError):
        return None
    return system
