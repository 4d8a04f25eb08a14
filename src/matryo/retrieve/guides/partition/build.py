"""Partitions in the making: means, where each row goes, and its columns in codes.

A column's codes −127 … 127 span its range, so a column of small numbers is held as finely as one of large ones. Rows
are read in order and their codes written to their places, so vectors may be a mapped file of any size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from matryo.retrieve.guides.partition.means import SAMPLE, find_means, nearest_mean, parts

if TYPE_CHECKING:
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.metric import Metric

    Array = np.ndarray[Any, np.dtype[Any]]
    Codes = np.ndarray[Any, np.dtype[np.int8]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["LANES", "NOBODY", "Build"]

LANES = 16   # rows of a tile
NOBODY = 0xFFFFFFFF   # the row of a place where there is none
_LINE = 64   # bytes of a cache line
_SAMPLE = 65_536   # rows, at least, that the means and the ranges of columns are learned from
_SHARES, _ASKED = 64, 256   # for how many shares, on how many rows, it is found how far partitions may be
_TINY = np.finfo(np.float32).tiny


class Build:
    """What it takes to divide the rows of some blocks."""

    def __init__(
        self, blocks: Blocks, metric: Metric, dim: int, long: int, lists: int, rng: np.random.Generator
    ) -> None:
        self.blocks, self.metric, self.dim, self.long, self.lists, self.rng = blocks, metric, dim, long, lists, rng
        self.level = blocks.level(dim)
        self.sample = np.sort(rng.permutation(blocks.count)[: max(_SAMPLE, SAMPLE * lists)])

    def arrays(self, progress: bool) -> dict[str, Array]:
        """Those that a partition has."""
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
            for part in parts(blocks.count, long):
                scaled, at = self._scaled(part, long), places[part]
                coded = _encoded(scaled, columns)
                errors[at, 0] = _errors(scaled, coded, columns)
                flat[at, :dim] = coded[:, :dim].view(np.uint8) ^ 128
                if stride:
                    codes[at, : long - dim] = coded[:, dim:]
                adjust[at, 0] = self._adjust(coded[:, :dim], columns, blocks.norms[part, self.level])
                bar.update(part.stop - part.start)
        means_tiles, means_adjust = self._beacons(means, columns)
        made = {
            "lists": lists,
            "rows": rows.reshape(-1, LANES),
            "tiles": _tiled(flat),
            "codes": codes,
            "adjust": adjust.reshape(-1, LANES),
            "errors": errors.reshape(-1, LANES),
            "means": means_tiles,
            "means_adjust": means_adjust,
            "columns": columns,
            "gaps": self._gaps(means, lists[:, 1]),
        }
        for array in made.values():
            array.flags.writeable = False
        return made

    def _places(self, means: Floats, bar: Any) -> tuple[Indices, Indices]:
        # The partitions' first tiles and sizes, and where each row goes; inside a partition rows are in order.
        count = self.blocks.count
        near = np.empty(count, np.int64)
        for part in parts(count, max(self.lists, self.dim)):
            near[part] = nearest_mean(self._prefixes(part), means, round_=self.metric == "cosine")
            bar.update(part.stop - part.start)
        sizes = np.bincount(near, minlength=self.lists)
        tiles = -(-sizes // LANES)
        firsts = np.cumsum(tiles) - tiles
        places = np.empty(count, np.int64)
        before = np.cumsum(sizes) - sizes
        places[np.argsort(near, kind="stable")] = np.repeat(firsts * LANES - before, sizes) + np.arange(count)
        return np.stack([firsts, sizes], axis=1).astype(np.int64), places

    def _columns(self) -> Floats:
        # The range of each column becomes the codes −127 … 127; what lies outside that of a sample is cut off.
        low, high = np.full(self.long, np.inf, np.float32), np.full(self.long, -np.inf, np.float32)
        some = self.sample[:: -(-len(self.sample) // _SAMPLE) or 1]
        for part in parts(len(some), self.long):
            rows = self._scaled(some[part], self.long)
            low, high = np.minimum(low, rows.min(0)), np.maximum(high, rows.max(0))
        if not len(some):
            return np.ones((2, self.long), np.float32)
        steps = high / 254 - low / 254
        return np.stack([np.where(steps > 0, steps, 1), low / 2 + high / 2]).astype(np.float32)

    def _beacons(self, means: Floats, columns: Floats) -> tuple[Array, Floats]:
        # The means as if they were rows, in codes.
        if self.metric == "cosine":   # as long as rows are, so that they fill the codes' range
            norms = self.blocks.norms[self.sample]
            means = means * (norms[:, self.level] / np.maximum(norms[:, -1], _TINY)).mean(dtype=np.float32)
        made = _encoded(means, columns[:, : self.dim])
        height = (-(-self.lists // LANES) + 1) * LANES
        flat = _aligned((height, -(-self.dim // 4) * 4), np.uint8, 0)
        flat[: self.lists, : self.dim] = made.view(np.uint8) ^ 128
        adjust = _aligned((height, 1), np.float32, np.nan)
        adjust[: self.lists, 0] = self._adjust(made, columns, np.sqrt(np.square(means).sum(1)))
        return _tiled(flat), adjust.reshape(-1, LANES)

    def _gaps(self, means: Floats, sizes: Indices) -> Floats:
        # How far below the best mean others may be, for the partitions visited to hold some share of the rows in the
        # mean over queries; these are taken to be like rows.
        shares = np.geomspace(1e-5, 1, _SHARES)
        if not self.blocks.count:
            return np.stack([shares, np.zeros(_SHARES)]).astype(np.float32)
        asked = self._prefixes(self.rng.permutation(self.blocks.count)[:_ASKED])
        if self.metric == "ip":   # for a query of length 1
            asked /= np.maximum(np.linalg.norm(asked, axis=1, keepdims=True), _TINY)
        looks = asked @ means.T
        if self.metric == "l2":
            looks = 2 * looks - np.square(means).sum(1)
        gaps = (looks.max(1, keepdims=True) - looks).ravel()
        order = np.argsort(gaps, kind="stable")
        held = np.cumsum(np.tile(sizes, len(asked))[order]) / (len(asked) * self.blocks.count)
        found = gaps[order][np.minimum(np.searchsorted(held, shares), len(order) - 1)]
        return np.stack([shares, found]).astype(np.float32)

    def _adjust(self, codes: Codes, columns: Floats, norms: Floats) -> Floats:
        if self.metric == "ip":
            return np.zeros(len(codes), np.float32)
        if self.metric == "l2":
            return -np.square(norms)
        # Of the codes rather than of the row: so no score is above 1, however short the row is.
        lengths = np.sqrt(np.square(codes * columns[0, : self.dim] + columns[1, : self.dim]).sum(1))
        return np.where((norms > 0) & (lengths > 0), 1 / np.maximum(lengths, _TINY), 0).astype(np.float32)

    def _scaled(self, rows: Any, dim: int) -> Floats:
        # What is put into codes: columns of rows of length 1 where the metric is the cosine.
        found = self.blocks.rows(rows, dim)
        if self.metric == "cosine":
            found /= np.maximum(self.blocks.norms[rows, -1:], _TINY)
        return found

    def _prefixes(self, rows: Any) -> Floats:
        # What k-means divides: prefixes, of length 1 where the metric is the cosine.
        found = self.blocks.rows(rows, self.dim)
        if self.metric == "cosine":
            found /= np.maximum(self.blocks.norms[rows, self.level, None], _TINY)
        return found


def _encoded(rows: Floats, columns: Floats) -> Codes:
    made: Floats = rows - columns[1]
    made /= columns[0]
    np.clip(np.rint(made, out=made), -127, 127, out=made)
    return made.astype(np.int8)


def _errors(rows: Floats, codes: Codes, columns: Floats) -> Floats:
    # How far codes are from their rows, rounded up. What float32 took here is a part of all that was added.
    held = codes * columns[0] + columns[1]
    lengths = (np.sqrt(np.square(one, dtype=np.float64).sum(-1)) for one in (rows - held, rows, held, columns[1]))
    apart, *added = lengths
    return np.asarray((apart + 2.0**-21 * sum(added)) * (1 + 1e-6), np.float32)


def _tiled(flat: Array) -> Array:
    tiles = flat.reshape(-1, LANES, flat.shape[1] // 4, 4)
    laid = _aligned((len(tiles), LANES * flat.shape[1]), np.uint8, 0)
    laid.reshape(len(tiles), -1, LANES, 4)[:] = tiles.transpose(0, 2, 1, 3)
    return laid


def _aligned(shape: tuple[int, int], dtype: Any, value: Any) -> Array:
    # At the start of a cache line, so that a tile's lines are as few as they can be.
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    raw = np.empty(size + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    made: Array = raw[start : start + size].view(dtype).reshape(shape)
    made[:] = value
    return made
