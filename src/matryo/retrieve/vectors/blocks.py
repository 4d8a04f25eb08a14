"""Vectors in prefix blocks: a stage reads only the columns it adds, from memory or from a mapped file.

A block holds, row by row, the columns that one dim of the nesting adds. The norms of all prefixes are stored beside the
blocks, so that cosine and L2 scores are correct at every dim. The first blocks may have copies in int8, a quarter of
the bytes of float32.

>>> from matryo.nesting import Nesting
>>> blocks = Blocks.of([[3, 4, 12], [0, 0, 1]], Nesting([2, 3]), int8_up_to=2)
>>> blocks.norms.tolist(), [block.shape for block in blocks.full]
([[5.0, 13.0], [0.0, 1.0]], [(2, 2), (2, 1)])
>>> blocks.int8[0].codes.tolist()           # in units of 4 / 127
[[95, 127], [0, 0]]
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.arrays import appended
from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.mapped import map_again
from matryo.nesting import Nesting, as_nesting, prefix_norms
from matryo.retrieve.vectors.array_folder import open_arrays, verify_arrays, write_arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from matryo.retrieve.plan.plan import Precision
    from matryo.retrieve.vectors.types import Array, Codes, Floats, Rows

HEADER = "blocks.json"
FORMAT = 1
"""The version of the folder layout. It grows when an older matryo can no longer read the layout."""

CODES = "uint8"
"""The dtype of rows that are bytes of a code: one block, without norms."""
_DTYPES = ("float32", "float16", CODES)
_LARGEST = 2.0**62   # the largest norm: squared distances are then at most (2 · 2⁶²)² = 2¹²⁶, which fits float32
_FEW = 64   # rows whose norms are summed at once, which takes fewer calls
_TILE = 1 << 20   # numbers per tile of rows that is copied into blocks


@dataclass(frozen=True, eq=False)
class Int8Block:
    """A block in 8 bits: ``scale · codes`` differs from the block by at most half a ``scale``."""

    codes: Codes
    scale: np.float32

    @classmethod
    def of(cls, block: Array) -> Int8Block:
        """Quantise a block symmetrically: its largest magnitude becomes 127."""
        parts = list(tiles(len(block), block.shape[1], _TILE))
        largest = max((float(np.abs(block[part].astype(np.float32)).max()) for part in parts), default=0.0)
        scale = np.float32(largest / 127)
        if scale == 0:
            return cls(_frozen(np.zeros(block.shape, np.int8)), np.float32(1))
        codes = np.empty(block.shape, np.int8)
        for part in parts:
            codes[part] = np.clip(np.rint(block[part] / np.float64(scale)), -127, 127)
        return cls(_frozen(codes), scale)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Vectors in the blocks of a nesting. The arrays, which may be mapped files, are read-only."""

    nesting: Nesting
    full: tuple[Array, ...]
    """The blocks, each [count, width], float32 or float16; uint8 for codes."""
    int8: Mapping[int, Int8Block]
    """Copies of the first blocks in int8, by the number of the block."""
    norms: Floats
    """The norms of the prefixes of the stored vectors, [count, dims]; [count, 0] for codes."""

    @classmethod
    @checked
    def of(
        cls, vectors: Any, nesting: Nesting | Iterable[int], *, dtype: str = "float32", int8_up_to: int = 0
    ) -> Blocks:
        """Copy ``vectors`` into blocks; the blocks up to the dim ``int8_up_to`` also get copies in int8."""
        if dtype not in _DTYPES:
            raise InputError("dtype must be float32 or float16", got=repr(dtype), cure="pass dtype='float32'")
        nesting = as_nesting(nesting)
        array = _as_rows(vectors, nesting.dim)
        count = len(array)
        full = [np.empty((count, high - low), dtype) for low, high in nesting.blocks]
        norms = np.empty((count, 0 if dtype == CODES else len(nesting)), np.float32)
        for rows in tiles(count, nesting.dim, _TILE):
            with np.errstate(over="ignore"):   # checked_norms reports overflows, with the row
                tile = np.asarray(array[rows]).astype(dtype)
            if dtype != CODES:
                norms[rows] = checked_norms(tile, nesting, "vectors", rows.start)
            for block, (low, high) in zip(full, nesting.blocks, strict=True):
                block[rows] = tile[:, low:high]
        blocks = cls(nesting, tuple(map(_frozen, full)), {}, _frozen(norms))
        coded = range(blocks.level(int8_up_to) + 1 if int8_up_to else 0)
        return replace(blocks, int8={number: Int8Block.of(full[number]) for number in coded})

    @property
    def count(self) -> int:
        """The number of vectors."""
        return len(self.norms)

    @cached_property
    def picked(self) -> tuple[Array, ...]:
        """The blocks of ``full``, mapped for reading single rows."""
        return tuple(map(map_again, self.full))

    @property
    def dtype(self) -> str:
        """The dtype of the blocks, float32 or float16."""
        return str(self.full[0].dtype)

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        dims = " ".join(map(str, self.nesting.dims))
        return f"Blocks({self.count} × {dims}, {self.dtype}{f', {len(self.int8)} in int8' if self.int8 else ''})"

    def extended(self, vectors: Array) -> Blocks:
        """Return these rows followed by ``vectors`` of the same dtype, without copies in int8.

        The arrays share a buffer, so each may be extended once; see :func:`matryo.arrays.appended`.
        """
        coded = self.dtype == CODES
        new = np.empty((len(vectors), 0), np.float32) if coded else checked_norms(vectors, self.nesting, "vectors")
        norms = appended(self.norms, new)
        parts = zip(self.full, self.nesting.blocks, strict=True)
        full = tuple(appended(block, vectors[:, low:high]) for block, (low, high) in parts)
        return Blocks(self.nesting, full, {}, norms)

    def level(self, dim: int) -> int:
        """Return the number of the block that ends at ``dim``."""
        if dim not in self.nesting.dims:
            dims = ", ".join(map(str, self.nesting.dims))
            raise NestingError(f"dim must be in the nesting, {dims}", got=dim, cure="use one of its dims")
        return self.nesting.dims.index(dim)

    def check_has(self, dim: int, precision: Precision) -> None:
        """Raise unless the columns up to ``dim`` are stored in ``precision``."""
        if precision == "int8" and self.level(dim) not in self.int8:
            raise InputError(
                f"an int8 stage at dim {dim} needs int8 copies of the blocks up to that dim",
                got=f"copies of {len(self.int8)} blocks",
                cure=f"store the vectors with int8_up_to={dim}, or use precision='full'",
            )

    def columns(self, number: int, rows: Rows, precision: Precision = "full") -> Floats:
        """Return ``rows`` of one block as float32, [rows, width]; a view if the block is float32."""
        self.check_has(self.nesting.dims[number], precision)
        if precision == "full":
            return self.full[number][rows].astype(np.float32, copy=False)
        return self.int8[number].codes[rows] * self.int8[number].scale

    def rows(self, indices: Rows, dim: int, precision: Precision = "full") -> Floats:
        """Return the first ``dim`` columns of some rows, as float32 [rows, dim]."""
        parts = [self.columns(number, indices, precision) for number in range(self.level(dim) + 1)]
        return np.concatenate(parts, axis=1)

    @checked
    def write(self, folder: str | Path) -> None:
        """Write a new ``folder``, which appears complete or not at all: one ``.npy`` per block, and their checksums."""
        scales = [float(self.int8[number].scale) for number in sorted(self.int8)]
        about = {"count": self.count, "dtype": self.dtype, "nesting": asdict(self.nesting), "scales": scales}
        write_arrays(folder, HEADER, FORMAT, about, self._arrays())

    @classmethod
    @checked
    def open(cls, folder: str | Path) -> Blocks:
        """Map the files of a folder without reading them; :meth:`verify` reads every byte."""
        about, arrays = open_arrays(folder, HEADER, FORMAT)
        nesting = Nesting(about["nesting"]["dims"], about["nesting"]["weights"])
        full = [arrays[_name(number)] for number in range(len(nesting))]
        int8 = {i: Int8Block(arrays[_name(i, "int8")], np.float32(scale)) for i, scale in enumerate(about["scales"])}
        norms = np.empty((about["count"], 0), np.float32) if about["dtype"] == CODES else arrays["norms"]
        return cls(nesting, tuple(full), int8, norms)

    @staticmethod
    def verify(folder: str | Path) -> None:
        """Read every byte of a folder and raise, naming the file, if a checksum differs."""
        verify_arrays(folder, HEADER)

    def _arrays(self) -> dict[str, Array]:
        full = {_name(number): block for number, block in enumerate(self.full)}
        norms = {} if self.dtype == CODES else {"norms": self.norms}
        return {**full, **{_name(i, "int8"): block.codes for i, block in self.int8.items()}, **norms}


def checked_norms(vectors: Array, nesting: Nesting, what: str, first: int = 0) -> Floats:
    """Return the norms of every prefix, summed in float64; raise, naming the row, if a row has no valid score."""
    with np.errstate(over="ignore", invalid="ignore"):
        if len(vectors) <= _FEW and vectors.dtype in (np.float32, np.float16):   # no square leaves the range of float64
            squares = np.square(vectors, dtype=np.float64)
            norms = np.sqrt(np.add.reduceat(squares, (0, *nesting.dims[:-1]), axis=1).cumsum(1))
        else:
            norms = prefix_norms(vectors.astype(np.float64), nesting)
    bad = np.flatnonzero(~(norms[:, -1] <= _LARGEST))
    if len(bad):
        raise EmbeddingsError(
            f"{what} must be finite in {vectors.dtype}, with a norm of at most 2⁶²",
            got=f"{len(bad)} bad rows, the first is row {first + bad[0]}",
            cure="drop those rows, or encode them again",
        )
    return np.asarray(norms.astype(np.float32))


def _name(number: int, kind: str = "block") -> str:
    return f"{kind}-{number:02d}"


def _as_rows(vectors: Any, dim: int) -> Array:
    # Not converted here: the caller reads a mapped file tile by tile.
    array = vectors if isinstance(vectors, np.ndarray) else np.asarray(vectors)
    if array.ndim != 2 or array.shape[1] != dim or array.dtype.kind not in "fiu":
        raise EmbeddingsError(
            f"vectors must be a two-dimensional array of real numbers with {dim} columns, the last dim of the nesting",
            got=f"shape {array.shape}, {array.dtype}",
            cure="pass one row per vector; for a single vector, pass vectors[None]",
        )
    if len(array) >= 0xFFFFFFFF:
        raise EmbeddingsError("blocks must have fewer than 2³² − 1 rows", got=len(array), cure="split the vectors")
    return array


def tiles(count: int, width: int, numbers: int = 1 << 22) -> Iterator[slice]:
    """Yield slices that cover ``count`` rows of ``width`` numbers, each of at most about that many ``numbers``."""
    step = max(1, numbers // width)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array
