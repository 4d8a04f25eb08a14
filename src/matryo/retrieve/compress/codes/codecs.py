"""Codecs: rows of numbers as bytes, and back.

==========  ======================================  ==============================================================
codec       bytes per row                           a column is
==========  ======================================  ==============================================================
float16     2 · dim                                 a little-endian float16
8 bits      dim                                     one byte: code − 127.5
4 bits      dim / 2                                 half a byte, the even column in its low bits: code − 7.5
1 bit       dim / 8                                 one bit, the first column in the highest: code − 0.5
product     the number of its blocks                a byte per block: the number of one of its 256 centroids
==========  ======================================  ==============================================================

Codes of 8, 4 and 1 bits are in units that differ from row to row. Under cosine the unit needs no bytes, because every
decoded vector is divided by its norm; otherwise it is a float32 behind the codes.

>>> rows = np.array([[0.9, -0.1, 0.2, -0.4]], np.float32)
>>> codec = Scalars(4, bits=4)
>>> codec.encode(rows).tolist(), codec.decode(codec.encode(rows)).astype(float).round(2).tolist()
([[127, 73]], [[0.89, -0.06, 0.18, -0.42]])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from matryo.retrieve.compress.codes.centroids import CENTROIDS, SAMPLE, find_centroids
from matryo.retrieve.compress.codes.widths import widths_of
from matryo.retrieve.guides.partition.means import nearest_mean
from matryo.retrieve.vectors.packed import PackedRows

if TYPE_CHECKING:
    from matryo.arrays import Array, Doubles, Floats

Bits = Literal[1, 4, 8, 16]


class Codec(Protocol):
    """Rows of ``dim`` numbers as ``bytes_per_row`` bytes."""

    @property
    def dim(self) -> int:
        """The number of columns."""

    @property
    def bytes_per_row(self) -> int:
        """The number of bytes of a row."""

    @property
    def name(self) -> str:
        """``float16``, ``int8``, ``int4``, ``bit`` or ``product``."""

    def encode(self, rows: Floats) -> Array:
        """Return the codes of rows, uint8 [n, bytes]."""

    def decode(self, codes: Array) -> Floats:
        """Return the rows that codes stand for, float32 [n, dim]."""

    def arrays(self) -> dict[str, Any]:
        """Return what must be stored to decode."""


@dataclass(frozen=True)
class Scalars:
    """A number per column, of 16, 8, 4 or 1 bits."""

    dim: int
    bits: Bits
    scaled: bool = False
    """Whether the unit of each row is stored behind its codes."""

    @property
    def name(self) -> str:
        """The name of the type."""
        return {16: "float16", 8: "int8", 4: "int4", 1: "bit"}[self.bits]

    @property
    def bytes_per_row(self) -> int:
        """The bytes of the codes, and 4 of the unit if it is stored."""
        return -(-self.dim * self.bits // 8) + 4 * (self.scaled and self.bits < 16)

    def encode(self, rows: Floats) -> Array:
        """Return the codes of rows."""
        if self.bits == 16:
            return np.ascontiguousarray(rows, "<f2").view(np.uint8)
        packed = PackedRows.of(rows, self.bits, "ip")
        codes = _squeezed(packed.codes(), self.bits)
        if not self.scaled:
            return codes
        units = np.ascontiguousarray(packed.scales[: len(rows), None], "<f4").view(np.uint8)
        return np.concatenate([codes, units], axis=1)

    def decode(self, codes: Array) -> Floats:
        """Return the rows that codes stand for; without a stored unit, rows of norm 1."""
        if self.bits == 16:
            return np.asarray(np.ascontiguousarray(codes).view("<f2"), np.float32)
        signed = self.levels(codes) - np.float32((2**self.bits - 1) / 2)
        return np.asarray(signed * self.units(codes)[:, None], np.float32)

    def levels(self, codes: Array) -> Array:
        """Return the codes of rows, one per byte, [n, dim]."""
        assert self.bits != 16
        width = -(-self.dim * self.bits // 8)
        return _spread(codes[:, :width], self.bits)[:, : self.dim]

    def units(self, codes: Array) -> Floats:
        """Return the size of a step of each row's codes: the stored one, or that of a row of norm 1."""
        if self.scaled:
            return np.asarray(np.ascontiguousarray(codes[:, -4:]).view("<f4")[:, 0], np.float32)
        middle = (2**self.bits - 1) / 2
        squares = _square_sums(self.levels(codes), middle)
        return np.asarray(1 / np.sqrt(squares), np.float32)

    def arrays(self) -> dict[str, Any]:
        """Nothing is learned."""
        return {}


@dataclass(frozen=True, eq=False)
class Product:
    """A byte per block of columns: the number of the nearest of 256 centroids (product quantisation).

    Blocks at the front, where the variance is, are narrow; blocks behind them are wide. So the bits per column fall
    from 8 to a fraction of one, as the variance does.
    """

    books: tuple[Floats, ...]
    """The centroids of each block, [256, width]."""

    name = "product"

    @classmethod
    def fit(cls, rows: Floats, variances: Doubles, count: int, seed: int) -> Product:
        """Find ``count`` blocks for columns with ``variances``, and the centroids of the blocks."""
        rng, books, low = np.random.default_rng(seed), [], 0
        chosen = rows[rng.permutation(len(rows))[:SAMPLE]]
        for width in widths_of(variances, count):
            part = np.ascontiguousarray(chosen[:, low : low + width])
            books.append(find_centroids(part, rng))
            low += width
        return cls(tuple(books))

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of columns of each block."""
        return tuple(book.shape[1] for book in self.books)

    @property
    def dim(self) -> int:
        """The number of columns."""
        return sum(self.widths)

    @property
    def bytes_per_row(self) -> int:
        """One per block."""
        return len(self.books)

    def encode(self, rows: Floats) -> Array:
        """Return the number of the nearest centroid of each block."""
        codes, low = np.empty((len(rows), len(self.books)), np.uint8), 0
        for place, book in enumerate(self.books):
            part = np.ascontiguousarray(rows[:, low : low + book.shape[1]], np.float32)
            codes[:, place] = nearest_mean(part, book, round_=False)
            low += book.shape[1]
        return codes

    def decode(self, codes: Array) -> Floats:
        """Return the centroids of the codes, side by side."""
        rows, low = np.empty((len(codes), self.dim), np.float32), 0
        for place, book in enumerate(self.books):
            rows[:, low : low + book.shape[1]] = book[codes[:, place]]
            low += book.shape[1]
        return rows

    def arrays(self) -> dict[str, Any]:
        """The centroids of all blocks side by side [256, dim], and the widths of the blocks."""
        return {"centroids": np.concatenate(self.books, axis=1), "widths": np.array(self.widths, np.int64)}

    @classmethod
    def of_arrays(cls, centroids: Floats, widths: Array) -> Product:
        """Rebuild the codec from :meth:`arrays`."""
        ends = np.cumsum(widths)
        if centroids.shape != (CENTROIDS, ends[-1]) or (widths < 1).any() or not np.isfinite(centroids).all():
            raise ValueError("centroids that do not fit their widths")
        parts = np.split(np.asarray(centroids, np.float32), ends[:-1], axis=1)
        return cls(tuple(np.ascontiguousarray(part) for part in parts))


def _squeezed(levels: Array, bits: int) -> Array:
    """Codes, one per byte, as packed bytes."""
    if bits == 8:
        return np.ascontiguousarray(levels)
    if bits == 1:
        return np.packbits(levels, axis=1)
    if levels.shape[1] % 2:
        levels = np.concatenate([levels, np.zeros((len(levels), 1), np.uint8)], axis=1)
    return np.asarray(levels[:, ::2] | levels[:, 1::2] << np.uint8(4))


def _spread(codes: Array, bits: int) -> Array:
    """Packed bytes as codes, one per byte."""
    if bits == 8:
        return codes
    if bits == 1:
        return np.unpackbits(codes, axis=1)
    return np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)


def _square_sums(levels: Array, middle: float) -> Doubles:
    """Σ (code − middle)² of each row."""
    signed = levels.astype(np.float32) - np.float32(middle)
    return np.asarray(np.einsum("ij,ij->i", signed, signed, dtype=np.float64))
