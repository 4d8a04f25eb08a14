"""Build partitions: compute the means, assign each row to a partition, and encode its columns.

The codes −127 … 127 of a column span its range, so columns of small and of large numbers are equally precise. Rows are
read in order and their codes are written to their places, so the vectors may be a mapped file of any size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from matryo.retrieve.guides.partition.means import SAMPLE, find_means, nearest_mean
from matryo.retrieve.vectors.blocks import Blocks, tiles

if TYPE_CHECKING:
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Array, Codes, Floats, Indices

LANES = 16   # rows per tile
NOBODY = 0xFFFFFFFF   # the row number of an empty place
_LINE = 64   # bytes per cache line
_SAMPLE = 65_536   # the means and the ranges of columns are computed from at least this many rows
_SHARES, _QUERIES = 64, 256   # the gap is measured for this many shares, with this many rows as queries
_TINY = np.finfo(np.float32).tiny


class Build:
    """The construction of the partitions of some blocks."""

    def __init__(
        self, blocks: Blocks, metric: Metric, dim: int, long: int, lists: int, rng: np.random.Generator
    ) -> None:
        self.blocks, self.metric, self.dim, self.long, self.lists, self.rng = blocks, metric, dim, long, lists, rng
        self.level = blocks.level(dim)
        self.sample = np.sort(rng.permutation(blocks.count)[: max(_SAMPLE, SAMPLE * lists)])

    def arrays(self, progress: bool) -> dict[str, Array]:
        """Return the arrays of a partition by name."""
        blocks, dim, long = self.blocks, self.dim, self.long
        with tqdm(desc="partition", total=2 * blocks.count, unit="row", unit_scale=True, delay=2,
                  disable=not progress) as bar:   # fmt: skip
            means = find_means(self._prefixes(self.sample), self.lists, round_=self.metric == "cosine", rng=self.rng)
            lists, places = self._places(means, bar)
            tile_count = int((-(-lists[:, 1] // LANES)).sum()) + 1
            rows = _aligned((tile_count * LANES, 1), np.uint32, NOBODY)
            rows[places, 0] = np.arange(blocks.count)
            columns = self._columns()
            flat = _aligned((tile_count * LANES, -(-dim // 4) * 4), np.uint8, 0)
            stride = -(-(long - dim) // _LINE) * _LINE
            codes = _aligned((tile_count * LANES if stride else 0, stride or _LINE), np.int8, 0)
            adjust = _aligned((tile_count * LANES, 1), np.float32, np.nan)
            errors = _aligned((tile_count * LANES, 1), np.float32, 0)
            for part in tiles(blocks.count, long):
                scaled, at = self._scaled(part, long), places[part]
                coded = _encoded(scaled, columns)
                errors[at, 0] = _errors(scaled, coded, columns)
                flat[at, :dim] = coded[:, :dim].view(np.uint8) ^ 128
                if stride:
                    codes[at, : long - dim] = coded[:, dim:]
                adjust[at, 0] = self._adjust(coded[:, :dim], columns, blocks.norms[part, self.level])
                bar.update(part.stop - part.start)
        means_tiles, means_adjust = self._coded_means(means, columns)
        arrays = {
            "lists": lists, "rows": rows.reshape(-1, LANES), "tiles": _tiled(flat), "codes": codes,
            "adjust": adjust.reshape(-1, LANES), "errors": errors.reshape(-1, LANES),
            "means": means_tiles, "means_adjust": means_adjust, "columns": columns,
            "gaps": self._gaps(means, lists[:, 1]),
        }
        for array in arrays.values():
            array.flags.writeable = False
        return arrays

    def _places(self, means: Floats, bar: Any) -> tuple[Indices, Indices]:
        # Returns the first tile and the size of each partition, and the place of each row; the order of rows is kept.
        count = self.blocks.count
        near = np.empty(count, np.int64)
        for part in tiles(count, max(self.lists, self.dim)):
            near[part] = nearest_mean(self._prefixes(part), means, round_=self.metric == "cosine")
            bar.update(part.stop - part.start)
        sizes = np.bincount(near, minlength=self.lists)
        filled = -(-sizes // LANES)
        firsts = np.cumsum(filled) - filled
        places = np.empty(count, np.int64)
        before = np.cumsum(sizes) - sizes
        places[np.argsort(near, kind="stable")] = np.repeat(firsts * LANES - before, sizes) + np.arange(count)
        return np.stack([firsts, sizes], axis=1).astype(np.int64), places

    def _columns(self) -> Floats:
        # Maps the range of each column to the codes −127 … 127. Values outside the range of the sample are clipped.
        low, high = np.full(self.long, np.inf, np.float32), np.full(self.long, -np.inf, np.float32)
        rows_used = self.sample[:: -(-len(self.sample) // _SAMPLE) or 1]
        for part in tiles(len(rows_used), self.long):
            rows = self._scaled(rows_used[part], self.long)
            low, high = np.minimum(low, rows.min(0)), np.maximum(high, rows.max(0))
        if not len(rows_used):
            return np.ones((2, self.long), np.float32)
        steps = high / 254 - low / 254
        return np.stack([np.where(steps > 0, steps, 1), low / 2 + high / 2]).astype(np.float32)

    def _coded_means(self, means: Floats, columns: Floats) -> tuple[Array, Floats]:
        # Encodes the means like rows.
        if self.metric == "cosine":   # as long as the rows on average, so that they use the range of the codes
            norms = self.blocks.norms[self.sample]
            means = means * (norms[:, self.level] / np.maximum(norms[:, -1], _TINY)).mean(dtype=np.float32)
        codes = _encoded(means, columns[:, : self.dim])
        height = (-(-self.lists // LANES) + 1) * LANES
        flat = _aligned((height, -(-self.dim // 4) * 4), np.uint8, 0)
        flat[: self.lists, : self.dim] = codes.view(np.uint8) ^ 128
        adjust = _aligned((height, 1), np.float32, np.nan)
        adjust[: self.lists, 0] = self._adjust(codes, columns, np.sqrt(np.square(means).sum(1)))
        return _tiled(flat), adjust.reshape(-1, LANES)

    def _gaps(self, means: Floats, sizes: Indices) -> Floats:
        # For each share: how far below the best mean others may score, such that the partitions visited hold that share
        # of the rows on average over queries. Queries are assumed to be distributed like rows.
        shares = np.geomspace(1e-5, 1, _SHARES)
        if not self.blocks.count:
            return np.stack([shares, np.zeros(_SHARES)]).astype(np.float32)
        queries = self._prefixes(self.rng.permutation(self.blocks.count)[:_QUERIES])
        if self.metric == "ip":   # for queries of norm 1
            queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), _TINY)
        scores = queries @ means.T
        if self.metric == "l2":
            scores = 2 * scores - np.square(means).sum(1)
        gaps = (scores.max(1, keepdims=True) - scores).ravel()
        order = np.argsort(gaps, kind="stable")
        share = np.cumsum(np.tile(sizes, len(queries))[order]) / (len(queries) * self.blocks.count)
        gap = gaps[order][np.minimum(np.searchsorted(share, shares), len(order) - 1)]
        return np.stack([shares, gap]).astype(np.float32)

    def _adjust(self, codes: Codes, columns: Floats, norms: Floats) -> Floats:
        if self.metric == "ip":
            return np.zeros(len(codes), np.float32)
        if self.metric == "l2":
            return -np.square(norms)
        # The norm of the codes, not of the row: so no score exceeds 1, however short the row is.
        lengths = np.sqrt(np.square(codes * columns[0, : self.dim] + columns[1, : self.dim]).sum(1))
        return np.where((norms > 0) & (lengths > 0), 1 / np.maximum(lengths, _TINY), 0).astype(np.float32)

    def _scaled(self, rows: Any, dim: int, level: int = -1) -> Floats:
        # Returns the first columns of some rows; for cosine, divided by the norms at a level, by default the last.
        vectors = self.blocks.rows(rows, dim)
        if self.metric == "cosine":
            vectors /= np.maximum(self.blocks.norms[rows, level, None], _TINY)
        return vectors

    def _prefixes(self, rows: Any) -> Floats:
        return self._scaled(rows, self.dim, self.level)   # what k-means divides


def _encoded(rows: Floats, columns: Floats) -> Codes:
    made: Floats = rows - columns[1]
    made /= columns[0]
    np.clip(np.rint(made, out=made), -127, 127, out=made)
    return made.astype(np.int8)


def _errors(rows: Floats, codes: Codes, columns: Floats) -> Floats:
    # Distances of the rows from their codes, rounded up by more than the float32 errors of the sums below.
    decoded = codes * columns[0] + columns[1]
    arrays = rows - decoded, rows, decoded, columns[1]
    apart, *added = (np.sqrt(np.square(array, dtype=np.float64).sum(-1)) for array in arrays)
    return np.asarray((apart + 2.0**-21 * sum(added)) * (1 + 1e-6), np.float32)


def _tiled(flat: Array) -> Array:
    rows = flat.reshape(-1, LANES, flat.shape[1] // 4, 4)
    laid = _aligned((len(rows), LANES * flat.shape[1]), np.uint8, 0)
    laid.reshape(len(rows), -1, LANES, 4)[:] = rows.transpose(0, 2, 1, 3)
    return laid


def _aligned(shape: tuple[int, int], dtype: Any, value: Any) -> Array:
    # Aligned to a cache line, so that a tile spans as few lines as possible.
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    raw = np.empty(size + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    made: Array = raw[start : start + size].view(dtype).reshape(shape)
    made[:] = value
    return made
