"""Scans: coded rows, prepared once, and the best of them for float queries.

``PackedScan`` reads numbers of 8, 4 and 1 bits in the layout of the compiled core, ``ProductScan`` reads product codes
as they are stored, and ``PlainScan`` decodes all others. Equal scores come in the order of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from matryo.compiled import core
from matryo.retrieve.compress.codes import scoring
from matryo.retrieve.compress.codes.codecs import Product, Scalars
from matryo.retrieve.vectors.metric import key_rows, key_scores, keys
from matryo.retrieve.vectors.packed import PackedRows, tiled

if TYPE_CHECKING:
    from matryo.arrays import Array, Bools, Doubles, Floats, Integers
    from matryo.retrieve.compress.codes.fitted import Fitted
    from matryo.retrieve.vectors.metric import Metric

_FINEST = 32767   # the largest entry of a query's table
_STEP = 1 << 14   # rows that are laid out at a time: a whole number of tiles
_TINY = np.finfo(np.float32).tiny


class Scan(Protocol):
    """Coded rows that can be searched."""

    def search(
        self, queries: Floats, k: int, allowed: Bools | None = None, threads: int = 1
    ) -> tuple[Integers, Floats]:
        """Return the best ``k`` of the ``allowed`` rows of each prepared query and their scores; −1 and −∞ for none."""


def scan_of(fitted: Fitted, metric: str, codes: Array) -> Scan:
    """Prepare the scan of ``codes`` [n, bytes]."""
    if isinstance(fitted.codec, Product):
        return ProductScan.of(fitted, metric, codes)
    if isinstance(fitted.codec, Scalars) and fitted.codec.bits < 16 and fitted.mean is None:
        return PackedScan(fitted, metric, _packed(fitted.codec, metric, codes))
    return PlainScan(fitted, metric, codes)


@dataclass(frozen=True, eq=False)
class PlainScan:
    """Codes that are decoded for each batch of queries."""

    fitted: Fitted
    metric: str
    codes: Array

    def search(
        self, queries: Floats, k: int, allowed: Bools | None = None, threads: int = 1   # noqa: ARG002 - BLAS has its own
    ) -> tuple[Integers, Floats]:
        """Return the best rows and their scores."""
        rows, best = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf, np.float32)
        for part, some in scoring.score_parts(self.fitted, self.metric, queries, self.codes):
            if allowed is not None:
                some[:, ~allowed[part]] = -np.inf
            near = scoring.best_of(some, k)
            both = np.concatenate([best, np.take_along_axis(some, near, axis=1)], axis=1)
            numbers = np.concatenate([rows, near + part.start], axis=1)
            kept = scoring.best_of(both, k)
            rows, best = np.take_along_axis(numbers, kept, axis=1), np.take_along_axis(both, kept, axis=1)
        return np.where(best > -np.inf, rows, -1), best


@dataclass(frozen=True, eq=False)
class PackedScan:
    """Numbers of 8, 4 or 1 bits; queries keep more."""

    fitted: Fitted
    metric: str
    packed: PackedRows

    def search(
        self, queries: Floats, k: int, allowed: Bools | None = None, threads: int = 1
    ) -> tuple[Integers, Floats]:
        """Return the best rows and their scores."""
        rows, best = self.packed.search(queries @ self.fitted.axes, k, allowed, threads)
        if self.metric == "l2":
            best = best - np.square(queries).sum(axis=1, keepdims=True)
        return rows, np.asarray(best, np.float32)


@dataclass(frozen=True, eq=False)
class ProductScan:
    """Product codes: a score is a sum of one entry per byte, from tables of each query in 16 bits."""

    fitted: Fitted
    metric: str
    codes: Array
    factors: Floats
    """The factor of the sum of each row: 1 / ‖x̂‖ under cosine, else 1."""
    offsets: Floats
    """The number that is added then: −‖x̂‖² under L2, else 0."""

    @classmethod
    def of(cls, fitted: Fitted, metric: str, codes: Array) -> ProductScan:
        """Read the norms of the decoded rows from the codes."""
        codes, count = np.ascontiguousarray(codes), len(codes)
        plain = cls(fitted, metric, codes, np.ones(count, np.float32), np.zeros(count, np.float32))
        if metric == "ip":
            return plain
        squares = plain.square_norms()
        if metric == "l2":
            return cls(fitted, metric, codes, plain.factors, -squares)
        factors = np.asarray(1 / np.sqrt(np.maximum(squares, _TINY)), np.float32)
        return cls(fitted, metric, codes, factors, plain.offsets)

    def square_norms(self) -> Floats:
        """‖x̂‖² of each row: it is a sum over the bytes, too."""
        mean = self.fitted.mean
        across = np.zeros(self._books.dim, np.float32) if mean is None else self.fitted.axes.T @ mean
        tables, low = np.empty((len(self._books.books), 256), np.float32), 0
        for place, book in enumerate(self._books.books):
            tables[place] = np.square(book).sum(axis=1) + 2 * book @ across[low : low + book.shape[1]]
            low += book.shape[1]
        sums = self._sums(tables) + np.float32(0 if mean is None else mean @ mean)
        return np.asarray(np.maximum(sums, np.float32(0)), np.float32)

    def search(
        self, queries: Floats, k: int, allowed: Bools | None = None, threads: int = 1
    ) -> tuple[Integers, Floats]:
        """Return the best rows and their scores."""
        tables, units, shifts = self._tables(queries)
        rows, scores = np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32)
        mask = None if allowed is None else np.ascontiguousarray(allowed, np.bool_)
        if self._compiled is not None:
            self._compiled.search(tables, units, shifts, mask, rows, scores, threads)
            return rows, scores
        among = np.arange(len(self.codes)) if mask is None else np.flatnonzero(mask)
        for query in range(len(queries)):
            found = self._scores(tables[query], units[query], shifts[query])[among]
            order = np.full(k, np.iinfo(np.int64).min)
            best = np.sort(keys(found, among))[::-1][:k]
            order[: len(best)] = best
            rows[query], scores[query] = key_rows(order), key_scores(order)
        return rows, scores

    @property
    def _books(self) -> Product:
        assert isinstance(self.fitted.codec, Product)
        return self.fitted.codec

    @cached_property
    def _compiled(self) -> Any:
        found = core()
        return None if found is None else found.Products(self.codes, self.factors, self.offsets)

    def _tables(self, queries: Floats) -> tuple[Array, Doubles, Doubles]:
        """The inner products of each query with all centroids, as integers, with their unit and what they omit."""
        turned, books = np.asarray(queries @ self.fitted.axes, np.float32), self._books.books
        products, low = np.empty((len(queries), len(books), 256), np.float32), 0
        for place, book in enumerate(books):
            products[:, place] = turned[:, low : low + book.shape[1]] @ book.T
            low += book.shape[1]
        middles = (products.max(axis=2) + products.min(axis=2)) / 2
        products -= middles[:, :, None]
        largest = np.abs(products).max(axis=(1, 2)).astype(np.float64)
        units = np.where(largest > 0, largest / _FINEST, 1)
        tables = np.rint(products / units[:, None, None]).astype(np.int16).reshape(len(queries), -1)
        shifts = middles.sum(axis=1, dtype=np.float64)
        if self.fitted.mean is not None:
            shifts += queries @ self.fitted.mean
        if self.metric == "l2":
            units, shifts = 2 * units, 2 * shifts - np.square(queries, dtype=np.float64).sum(axis=1)
        return tables, units, shifts

    def _scores(self, table: Array, unit: float, shift: float) -> Floats:
        """The scores of all rows: the bits that the compiled core computes."""
        sums = np.zeros(len(self.codes), np.int64)
        for place, part in enumerate(table.reshape(-1, 256)):
            sums += part[self.codes[:, place]]
        return np.asarray((sums * unit + shift) * self.factors + self.offsets, np.float32)

    def _sums(self, tables: Floats) -> Floats:
        """Σ tables[b][code_b] of each row, in the order of the bytes."""
        out = np.zeros(len(self.codes), np.float32)
        if self._compiled is not None:
            self._compiled.sums(tables, out)
            return out
        for place, table in enumerate(tables):
            out += table[self.codes[:, place]]
        return out


def _packed(codec: Scalars, metric: str, codes: Array) -> PackedRows:
    """The codes in the layout of the compiled core."""
    assert codec.bits != 16
    count = len(codes)
    high, per_word = -(-count // 16) * 16, 32 // codec.bits
    laid = np.zeros((high // 16, -(-codec.dim // per_word) * 64), np.uint8)
    scales, offsets = np.zeros(high, np.float32), np.zeros(high, np.float32)
    for start in range(0, high, _STEP):
        part = slice(start, min(start + _STEP, high))
        some = codes[part]
        levels, units = codec.levels(some), codec.units(some)
        padded = np.zeros((part.stop - part.start, codec.dim), np.uint8)
        padded[: len(levels)] = levels
        laid[part.start // 16 : part.stop // 16] = tiled(padded, codec.bits)
        scales[start : start + len(levels)] = units
        if metric == "l2":
            signed = levels - np.float32((2**codec.bits - 1) / 2)
            offsets[start : start + len(levels)] = -np.square(units) * np.einsum("ij,ij->i", signed, signed)
    inner: Metric = "ip"
    return PackedRows(inner, codec.bits, codec.dim, count, laid, 2 * scales if metric == "l2" else scales, offsets)
