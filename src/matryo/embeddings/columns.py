"""Files that grow row by row. Each write states its first row, so a failed write is overwritten by the next."""

from __future__ import annotations

import io
import itertools
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError
from matryo.files import parse_json

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.arrays import Array


class _File:
    """A file that is written at given positions.

    It is unbuffered: after a failed write, a buffer would be written again by every later call, even by close.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+")

    def sync(self) -> None:
        """Make all writes durable."""
        os.fsync(self.file.fileno())

    def _write_at(self, position: int, data: memoryview) -> None:
        self.file.seek(position)
        while data:
            data = data[self.file.write(data) :]


class ArrayFile(_File):
    """A ``.npy`` file of unknown length: the header is written last, into space reserved for it."""

    def __init__(self, path: Path, dtype: str, row: tuple[int, ...] = ()) -> None:
        super().__init__(path)
        self._dtype, self._row = np.dtype(dtype).newbyteorder("<"), row
        self._start = len(self._header(0))
        self._row_bytes = self._dtype.itemsize * int(np.prod(row, dtype=int))

    def write(self, values: Array, count: int) -> None:
        """Write ``values`` after the first ``count`` rows."""
        self._write_at(self._end(count), values.data.cast("B"))

    def resume(self, count: int) -> None:
        """Truncate the file to ``count`` rows."""
        if self.path.stat().st_size < self._end(count):
            raise cut_short(self.path)
        self.file.truncate(self._end(count))

    def finish(self, count: int) -> None:
        """Make the file a complete ``.npy`` of ``count`` rows."""
        self.file.truncate(self._end(count))
        self._write_at(0, memoryview(self._header(count)))
        self.sync()

    def _end(self, count: int) -> int:
        return self._start + count * self._row_bytes

    def _header(self, count: int) -> bytes:
        # numpy pads the header so that the first axis can grow; its length does not depend on the count.
        buffer = io.BytesIO()
        shape = (count, *self._row)
        np.lib.format.write_array_header_1_0(buffer, {"descr": self._dtype.str, "fortran_order": False, "shape": shape})
        return buffer.getvalue()


class LinesFile(_File):
    """One JSON value per line, for ids: the width of a string array is unknown until the last id."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._end = 0

    def write(self, values: list[Any], count: int) -> None:
        """Write ``values`` after the first ``count`` lines, which must be all lines written so far."""
        self._end = 0 if count == 0 else self._end
        data = "".join(json.dumps(value) + "\n" for value in values).encode()
        self._write_at(self._end, memoryview(data))
        self._end += len(data)

    def resume(self, count: int) -> list[Any]:
        """Truncate the file to ``count`` lines and return their values."""
        with self.path.open("rb") as file:
            lines = list(itertools.islice(file, count))
        if len(lines) < count or not lines[-1].endswith(b"\n"):
            raise cut_short(self.path)
        self._end = sum(map(len, lines))
        self.file.truncate(self._end)
        return [parse_json(line) for line in lines]


def cut_short(path: Path) -> EmbeddingsError:
    """Return the error for a file that holds fewer rows than progress.json counts."""
    return EmbeddingsError(
        f"{path} must hold every row that progress.json counts",
        got=f"{path.stat().st_size} bytes",
        cure="another program changed it: delete that folder and start again",
    )
