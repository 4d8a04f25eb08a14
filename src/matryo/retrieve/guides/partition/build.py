"""Build partitions: compute the means, assign each row to its partitions, and encode its columns.

Rows are read in order and their codes are written to their places, so the vectors may be a mapped file of any size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.progress import tqdm
from matryo.retrieve.guides.partition.codes import (
    LANES,
    LINE,
    aligned,
    byte_columns,
    byte_errors,
    encode_bytes,
    encode_nibbles,
    nibble_columns,
    tiled,
)
from matryo.retrieve.guides.partition.means import SAMPLE, Means, find_means
from matryo.retrieve.guides.partition.placing import adjustments, partitions_of, squared_distance
from matryo.retrieve.guides.partition.visits import budgets_by_share, needed_budgets, scale_of, widening
from matryo.retrieve.vectors.blocks import tiles

if TYPE_CHECKING:
    from matryo.retrieve.guides.partition.space import Space
    from matryo.retrieve.vectors.types import Array, Doubles, Floats, Indices

NOBODY = 0xFFFFFFFF   # the slot of an empty place
_SAMPLE = 65_536   # the means and the codes of columns are computed from at least this many rows
_SAMPLE_NUMBERS = 1 << 27   # …unless they have more columns than this allows
_QUERIES = 256   # rows that serve as queries when budgets are learned
_NEIGHBOURS, _NEAR = 1000, 10   # of them, when the effect of filters is learned; and the k for which it is
_TINY = np.finfo(np.float32).tiny


class Build:
    """The construction of the partitions of the rows of a space."""

    def __init__(self, space: Space, long: int, lists: int, copies: int, rng: np.random.Generator) -> None:
        self.space, self.long, self.lists, self.copies, self.rng = space, long, lists, copies, rng
        self.blocks, self.round_ = space.blocks, space.metric == "cosine"
        most = max(SAMPLE * lists, min(_SAMPLE, _SAMPLE_NUMBERS // self.blocks.nesting.dim))
        self.sample = np.sort(rng.permutation(self.blocks.count)[:most])

    def arrays(self, progress: bool) -> tuple[dict[str, Array], float]:
        """Return the arrays of a partition by name, and its scale."""
        count, long = self.blocks.count, self.long
        with tqdm(desc="partition", total=2 * count, unit="row", unit_scale=True, delay=2, disable=not progress) as bar:
            self._learn()
            chosen = self._assigned(bar)
            bounds, slots, places, rows = _laid_out(chosen, self.lists)
            flat = np.zeros((len(slots), self.space.dim), np.uint8)
            adjust = aligned((len(slots), 1), np.float32, np.nan)
            codes = aligned((count, -(-long // LINE) * LINE), np.int8, 0)
            errors = np.zeros(count, np.float32)
            slot_of = np.empty(count, np.int64)
            slot_of[rows] = np.arange(count)
            for part in tiles(count, self.blocks.nesting.dim):
                whole, at = self.space.whole(part), slot_of[part]
                nibbles = encode_nibbles(self.space.tile(whole), self.tile_columns)
                for copy in places:   # the place of each row, for its home and for its copy
                    flat[copy[part]] = nibbles
                    adjust[copy[part], 0] = adjustments(nibbles, self.tile_columns, self.space.metric)
                coded = encode_bytes(whole[:, :long], self.columns)
                codes[at, :long] = coded
                errors[at] = byte_errors(whole[:, :long], coded, self.columns)
                bar.update(part.stop - part.start)
        means, means_adjust = self._coded_means()
        sizes = bounds[:, 1]
        scale, budgets, wider = self._visits(sizes, chosen)
        arrays = {
            "lists": bounds, "slots": slots.reshape(-1, LANES), "tiles": _aligned_copy(tiled(flat)),
            "adjust": adjust.reshape(-1, LANES), "means": means, "means_adjust": means_adjust, "centers": self.means,
            "axes": self.space.axes, "tile_columns": self.tile_columns, "rows": rows.astype(np.uint32),
            "homes": (chosen[rows, 0] if self.copies > 1 else np.empty(0)).astype(np.uint32), "codes": codes,
            "errors": errors, "columns": self.columns, "budgets": budgets, "wider": wider,
        }  # fmt: skip
        for array in arrays.values():
            array.flags.writeable = False
        return arrays, scale

    def _learn(self) -> None:
        """Compute the codes of the columns and the means from the sample."""
        coordinates = np.empty((len(self.sample), self.space.dim), np.float32)
        low, high = np.full(self.long, np.inf, np.float32), np.full(self.long, -np.inf, np.float32)
        for part in tiles(len(self.sample), self.blocks.nesting.dim):
            whole = self.space.whole(self.sample[part])
            coordinates[part] = self.space.tile(whole)
            low, high = np.minimum(low, whole[:, : self.long].min(0)), np.maximum(high, whole[:, : self.long].max(0))
        if not len(self.sample):
            low = high = np.zeros(self.long, np.float32)
        self.columns, self.tile_columns = byte_columns(low, high), nibble_columns(coordinates)
        self.length = float(np.linalg.norm(coordinates, axis=1).mean()) if len(coordinates) else 1.0
        self.means = find_means(self.space.divided(coordinates), self.lists, round_=self.round_, rng=self.rng)

    def _assigned(self, bar: Any) -> Indices:
        """The partitions of each row, [rows, copies]."""
        chosen, total = np.empty((self.blocks.count, self.copies), np.int64), 0.0
        means = Means(self.means, round_=self.round_)
        for part in tiles(self.blocks.count, max(self.lists, self.blocks.nesting.dim)):
            coordinates = self.space.tile(self.space.whole(part))
            chosen[part] = partitions_of(self.space, coordinates, means, self.copies)
            total += squared_distance(self.space, coordinates, self.means, chosen[part])
            bar.update(part.stop - part.start)
        self.distance = total / max(1, self.blocks.count) * self._overfitting()
        return chosen

    def _overfitting(self) -> float:
        """How much farther from the means new rows are than these, as a mean square: the means are those of these rows.

        A mean of n rows is off by the variance / n. So its own rows are nearer by a factor 1 − 1/n, new ones farther by
        1 + 1/n.
        """
        each, share = len(self.sample) / self.lists, len(self.sample) / max(1, self.blocks.count)
        return 1 + share * ((each + 1) / (each - 1) - 1) if each > 1 else 1.0

    def _coded_means(self) -> tuple[Array, Floats]:
        """Encode the means like rows."""
        # For cosine as long as the rows, so that they use the range of the codes.
        codes = encode_nibbles(self.means * (self.length if self.round_ else 1), self.tile_columns)
        height = (-(-self.lists // LANES) + 1) * LANES
        flat = np.zeros((height, self.space.dim), np.uint8)
        flat[: self.lists] = codes
        adjust = aligned((height, 1), np.float32, np.nan)
        adjust[: self.lists, 0] = adjustments(codes, self.tile_columns, self.space.metric)
        return _aligned_copy(tiled(flat)), adjust.reshape(-1, LANES)

    def _visits(self, sizes: Indices, chosen: Indices) -> tuple[float, Floats, Floats]:
        """Learn the scale, the budgets and the effect of filters, with rows as queries."""
        picked = np.sort(self.rng.permutation(self.blocks.count)[:_QUERIES])
        queries = self.space.whole(picked)
        if self.space.metric == "ip":   # of norm 1
            queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), _TINY)
        turned = self.space.tile(queries)
        if self.space.metric == "ip":
            turned /= np.maximum(np.linalg.norm(turned, axis=1, keepdims=True), _TINY)
        scores = self.space.divided(turned) @ self.means.T
        if self.space.metric == "l2":
            scores = 2 * scores - np.square(self.means).sum(1)
        scale = scale_of(scores)
        budgets, _ = needed_budgets(scores, sizes, scale)
        return scale, budgets_by_share(budgets, sizes), widening(self._ranked(queries, budgets, chosen), _NEAR)

    def _ranked(self, queries: Floats, budgets: Doubles, chosen: Indices) -> Doubles:
        """The budget that finds each of the nearest rows of the sample, nearest first."""
        few = self.sample[:: -(-len(self.sample) // (_SAMPLE // 4)) or 1]
        near = np.empty((len(queries), min(_NEIGHBOURS, max(0, len(few) - 1))), np.int64)
        if not near.size:
            return np.empty((0, 0))
        whole = self.space.whole(few)
        scores = queries @ whole.T
        if self.space.metric == "l2":
            scores = 2 * scores - np.square(whole).sum(1)
        best = np.argpartition(-scores, near.shape[1], axis=1)[:, : near.shape[1]]
        near = few[np.take_along_axis(best, np.argsort(-np.take_along_axis(scores, best, 1), axis=1), 1)]
        each = np.take_along_axis(budgets[:, None], chosen[near].reshape(len(near), 1, -1), 2)
        return np.asarray(each.reshape(*near.shape, -1).min(-1))


def _laid_out(chosen: Indices, lists: int) -> tuple[Indices, Array, list[Indices], Indices]:
    """The first tile and the places of each partition, the slot at each place, the places of each row, and the row of
    each slot."""
    count, copies = chosen.shape
    rows = np.argsort(chosen[:, 0], kind="stable")   # slot → row
    entries = chosen[rows].T.ravel()                 # homes by slot, then copies by slot
    order = np.argsort(entries, kind="stable")
    sizes = np.bincount(entries, minlength=lists)
    filled = -(-sizes // LANES)
    firsts = np.cumsum(filled) - filled
    where = np.empty(len(entries), np.int64)
    where[order] = np.repeat(firsts * LANES - (np.cumsum(sizes) - sizes), sizes) + np.arange(len(entries))
    slots = aligned(((int(filled.sum()) + 1) * LANES,), np.uint32, NOBODY)
    slots[where] = np.tile(np.arange(count), copies)
    places = []
    for copy in where.reshape(copies, count):
        place = np.empty(count, np.int64)
        place[rows] = copy
        places.append(place)
    return np.stack([firsts, sizes], axis=1).astype(np.int64), slots, places, rows


def _aligned_copy(array: Array) -> Array:
    # A tile then spans as few cache lines as possible.
    made = aligned(array.shape, array.dtype, 0)
    made[:] = array
    return made
