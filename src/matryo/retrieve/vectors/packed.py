"""Vectors in packed codes of 1, 4 or 8 bits per column, which scans read instead of the vectors.

A row is ``scale · (code − middle)``, where ``middle`` is half of the largest code: two values for 1 bit, 16 for 4 bits,
256 for 8 bits. The scale of each row corrects its codes: the inner product of the row with its own codes is exactly
‖x‖², as in RaBitQ (Gao and Long, 2024), so estimates of nearby queries are not too small. Queries keep more bits than
the rows (asymmetric). Rotate vectors first, at least for 1 bit: an even spread over the columns loses the least.

>>> vectors = np.random.default_rng(0).standard_normal((1000, 64)).astype("f4")
>>> packed = PackedRows.of(vectors, bits=4)
>>> packed.bytes_per_row, packed.search(vectors[:2], 1)[0].tolist()
(36, [[0], [1]])
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from matryo.compiled import core
from matryo.errors import InputError
from matryo.retrieve.vectors.blocks import tiles as parts_of
from matryo.retrieve.vectors.metric import Metric, check_metric, key_rows, key_scores, keys
from matryo.retrieve.vectors.queries import as_floats, as_mask

if TYPE_CHECKING:
    from matryo.retrieve.vectors.types import Array, Doubles, Floats, Indices

Bits = Literal[1, 4, 8]
BITS: tuple[Bits, ...] = get_args(Bits)
MOST_COLUMNS = 8192
"""The most columns of a row (``kMostNibbles`` in ``src/core/codes.h``)."""

_LANES = 16   # rows per tile
_WORD = 4     # bytes of a row that lie together in a tile
_FINEST = {1: 127, 4: 127, 8: 127 * 128 + 63}   # the largest code of a query
_SHRINKS = np.linspace(0.4, 1, 13)   # of the range of 4-bit codes: the best for each row is taken
_TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Rows in packed codes, for one metric."""

    metric: Metric
    bits: Bits
    dim: int
    """The number of columns."""
    count: int
    """The number of rows."""
    tiles: Array
    """The codes, uint8 [tiles, word · row · byte]: 16 rows per tile; ``src/core/packed.h`` describes the layout."""
    scales: Floats
    """The value of one unit of each row's codes, doubled for L2, [tiles · 16]."""
    offsets: Floats
    """The constant of each row's scores: −‖x‖² for L2, else 0; [tiles · 16]."""

    @classmethod
    def of(cls, vectors: Any, bits: Bits, metric: Metric = "cosine") -> PackedRows:
        """Encode ``vectors`` [rows, columns]; for cosine, each is divided by its norm first."""
        check_metric(metric)
        if bits not in BITS or isinstance(bits, bool):
            raise InputError("bits must be 1, 4 or 8", got=repr(bits), cure="bits=4")
        array = as_floats(vectors, np.shape(vectors)[-1] if np.ndim(vectors) == 2 else 0)
        count, dim = array.shape
        if not 1 <= dim <= MOST_COLUMNS:
            rule = f"vectors must have 1 … {MOST_COLUMNS} columns to be packed"
            raise InputError(rule, got=dim, cure="truncate them first")
        high = -(-count // _LANES) * _LANES
        per_word = 8 * _WORD // bits
        made = np.zeros((high // _LANES, -(-dim // per_word) * _WORD * _LANES), np.uint8)
        scales, offsets = np.zeros(high, np.float32), np.zeros(high, np.float32)
        for part in parts_of(high, dim):   # a whole number of tiles
            part = slice(part.start // _LANES * _LANES, -(-part.stop // _LANES) * _LANES)
            rows = np.zeros((part.stop - part.start, dim), np.float64)
            some = array[part]
            rows[: len(some)] = some
            squares = np.einsum("ij,ij->i", rows, rows)
            if not np.isfinite(squares).all():
                first = part.start + int(np.flatnonzero(~np.isfinite(squares))[0])
                raise InputError("vectors must be finite", got=f"row {first}", cure="drop it, or encode it again")
            if metric == "cosine":
                rows /= np.maximum(np.sqrt(squares), _TINY)[:, None]
                squares = np.minimum(squares, 1)
            codes, scale = _encoded(rows, bits)
            made[part.start // _LANES : part.stop // _LANES] = tiled(codes, bits)
            scales[part] = 2 * scale if metric == "l2" else scale
            if metric == "l2":
                offsets[part] = -squares
        for each in (made, scales, offsets):
            each.flags.writeable = False
        return cls(metric, bits, dim, count, made, scales, offsets)

    def __len__(self) -> int:
        return self.count

    @property
    def bytes_per_row(self) -> int:
        """The bytes of a row's codes and of its scale; 4 more for L2."""
        return int(self.tiles.shape[1]) // _LANES + 4 + 4 * (self.metric == "l2")

    def codes(self) -> Array:
        """Return the codes of all rows, one per byte, uint8 [rows, columns]."""
        return untiled(self.tiles, self.bits)[: self.count, : self.dim]

    def decode(self) -> Floats:
        """Return the vectors that the codes stand for; for cosine, of vectors of norm 1."""
        scale = self.scales[: self.count, None] / np.float32(2 if self.metric == "l2" else 1)
        return np.asarray((self.codes() - np.float32(_middle(self.bits))) * scale, np.float32)

    def search(self, queries: Any, k: int, allowed: Any = None, threads: int = 1) -> tuple[Indices, Floats]:
        """Return the best ``k`` rows of each query and their scores, both [n, k], best first.

        Scores estimate the metric; for L2 without −‖q‖², which is the same for all rows. Of equal scores the smaller
        row comes first. Where there are fewer than k rows, the remaining places have row −1 and score −∞. ``allowed``
        is a mask of the rows that may be found.
        """
        if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
            raise InputError("k must be a positive integer", got=repr(k), cure="k=10")
        mask, vectors = as_mask(allowed, self.count), self._queries(queries)
        rows, scores = np.empty((len(vectors), k), np.int64), np.empty((len(vectors), k), np.float32)
        if self._compiled is not None:
            self._compiled.search(vectors, mask, rows, scores, threads)
            return rows, scores
        for i, query in enumerate(vectors):
            every = np.arange(self.count) if mask is None else np.flatnonzero(mask)
            order = np.full(k, np.iinfo(np.int64).min)
            best = np.sort(keys(scores_by_numpy(self, query[None])[0][every], every))[::-1][:k]
            order[: len(best)] = best
            rows[i], scores[i] = key_rows(order), key_scores(order)
        return rows, scores

    def score(self, queries: Any, rows: Any) -> Floats:
        """Return the scores of each query's own ``rows`` [n, m]."""
        vectors, chosen = self._queries(queries), np.ascontiguousarray(rows, np.int64)
        if chosen.ndim != 2 or len(chosen) != len(vectors):
            raise InputError("rows must have one line per query", got=f"shape {chosen.shape}", cure="pass rows[None]")
        if chosen.size and not (chosen.min() >= 0 and chosen.max() < self.count):
            got = f"{chosen.min()} … {chosen.max()}"
            raise InputError(f"rows must be in 0 … {self.count - 1}", got=got, cure="pass rows that exist")
        if self._compiled is None:
            return np.take_along_axis(scores_by_numpy(self, vectors), chosen, 1)
        scores = np.empty(chosen.shape, np.float32)
        self._compiled.score(vectors, chosen, scores)
        return scores

    def _queries(self, queries: Any) -> Floats:
        vectors = as_floats(queries, self.dim)
        if not np.isfinite(vectors).all():
            raise InputError("queries must be finite", got="NaN or infinity", cure="drop them, or encode them again")
        if self.metric == "cosine":
            norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
            vectors = np.ascontiguousarray(vectors / np.maximum(norms, _TINY), np.float32)
        return vectors

    @cached_property
    def _compiled(self) -> Any:
        found = core()
        if found is None:
            return None
        return found.Packed(self.tiles, self.scales, self.offsets, self.count, self.dim, self.bits)


def scores_by_numpy(packed: PackedRows, vectors: Floats) -> Floats:
    """Return the scores of all rows for prepared queries [n, rows]: the bits that the compiled core computes."""
    finest = _FINEST[packed.bits]
    largest = np.abs(vectors).max(1, initial=0)
    units = np.where(largest > 2.0**-100, largest / np.float32(finest), np.float32(0)).astype(np.float32)
    scale = np.where(units > 0, 1 / np.maximum(units.astype(np.float64), _TINY), 0)
    codes = np.clip(np.rint(vectors.astype(np.float64) * scale[:, None]), -finest, finest)
    sums = codes @ packed.codes().astype(np.float64).T   # integers below 2⁵³: exact
    sums -= _middle(packed.bits) * codes.sum(1, keepdims=True)
    scores = sums.astype(np.float32) * units[:, None] * packed.scales[: packed.count]
    return np.asarray(scores + packed.offsets[: packed.count])


def _middle(bits: int) -> float:
    return ((1 << bits) - 1) / 2


def _encoded(rows: Doubles, bits: Bits) -> tuple[Array, Doubles]:
    """The codes of some rows, one per byte, and the scale of each row."""
    middle, largest = _middle(bits), np.abs(rows).max(1, initial=0)
    squares = np.einsum("ij,ij->i", rows, rows)
    best, codes = np.full(len(rows), -1.0), np.zeros(rows.shape, np.uint8)
    for shrink in _SHRINKS if bits == 4 else (1.0,):
        step = np.where(largest > 0, largest * shrink / middle, 1)
        tried = np.clip(np.rint(rows / step[:, None] + middle), 0, 2 * middle) if bits > 1 else np.asarray(rows >= 0)
        signed = tried - middle
        cosine = np.einsum("ij,ij->i", rows, signed) / np.sqrt(np.einsum("ij,ij->i", signed, signed))
        better = cosine > best
        best[better], codes[better] = cosine[better], tried[better]
    products = np.einsum("ij,ij->i", rows, codes - middle)
    return codes, np.where(products > 0, squares / np.where(products > 0, products, 1), 0)


def tiled(codes: Array, bits: int) -> Array:
    """Return codes, one per byte, as tiles [tiles, bytes]; the number of rows is a multiple of 16."""
    per_word, slots = 8 * _WORD // bits, 8 // bits
    words = -(-codes.shape[1] // per_word)
    padded = np.zeros((len(codes), words * per_word), np.uint8)
    padded[:, : codes.shape[1]] = codes
    shifts = (np.arange(slots, dtype=np.uint8) * bits)[:, None]
    packed = np.bitwise_or.reduce(padded.reshape(len(codes), words, slots, _WORD) << shifts, axis=2)
    laid = packed.reshape(-1, _LANES, words, _WORD).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(laid).reshape(len(laid), words * _LANES * _WORD)


def untiled(tiles: Array, bits: int) -> Array:
    """Return the codes of tiles, one per byte: the inverse of :func:`tiled`, with the padding."""
    slots = 8 // bits
    rows = tiles.reshape(len(tiles), -1, _LANES, _WORD).transpose(0, 2, 1, 3)
    words = rows.reshape(len(tiles) * _LANES, rows.shape[2], 1, _WORD)
    shifts = (np.arange(slots, dtype=np.uint8) * bits)[:, None]
    codes = (words >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(codes.reshape(len(codes), words.shape[1] * slots * _WORD))
