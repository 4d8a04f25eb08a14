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
    decode_nibbles,
    encode_bytes,
    encode_nibbles,
    nibble_columns,
    tiled,
)
from matryo.retrieve.guides.partition.means import SAMPLE, Means, find_means
from matryo.retrieve.guides.partition.optimism import radii, squared_gaps, typical
from matryo.retrieve.guides.partition.placing import adjustments, squared_distance
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
        self.spread, self.distance = 0.0, 0.0   # of a Partition
        most = max(SAMPLE * lists, min(_SAMPLE, _SAMPLE_NUMBERS // self.blocks.nesting.dim))
        self.sample = np.sort(rng.permutation(self.blocks.count)[:most])

    def arrays(self, progress: bool) -> tuple[dict[str, Array], float]:
        """Return the arrays of a partition by name, and its scale; ``spread`` and ``distance`` are set."""
        count, long = self.blocks.count, self.long
        with tqdm(desc="partition", total=2 * count, unit="row", unit_scale=True, delay=2, disable=not progress) as bar:
            self._learn()
            chosen, around = self._assigned(bar)
            bounds, slots, places, rows = _laid_out(chosen, self.lists)
            flat = np.zeros((len(slots), self.space.dim), np.uint8)
            adjust = aligned((len(slots), 1), np.float32, np.nan)
            codes = aligned((count, -(-long // LINE) * LINE), np.int8, 0)
            errors = np.zeros(count, np.float32)
            slot_of = np.empty(count, np.int64)
            slot_of[rows] = np.arange(count)
            for part in tiles(count, self.blocks.nesting.dim):
                whole, at = self.space.whole(part), slot_of[part]
                coordinates = self.space.tile(whole)
                nibbles = encode_nibbles(coordinates, self.tile_columns)
                norms = self.space.lengths(part) * np.linalg.norm(coordinates, axis=1)
                adjusted = adjustments(nibbles, self.tile_columns, self.space.metric, norms)
                for copy in places:   # the place of each row, for its home and for its copy
                    flat[copy[part]], adjust[copy[part], 0] = nibbles, adjusted
                coded = encode_bytes(whole[:, :long], self.columns)
                codes[at, :long] = coded
                errors[at] = byte_errors(whole[:, :long], coded, self.columns)
                bar.update(part.stop - part.start)
        means, means_adjust = self._coded_means()
        sizes = bounds[:, 1]
        scale, budgets, wider, reach = self._visits(sizes, chosen, around)
        arrays = {
            "lists": bounds, "slots": slots.reshape(-1, LANES), "tiles": _aligned_copy(tiled(flat)),
            "adjust": adjust.reshape(-1, LANES), "means": means, "means_adjust": means_adjust, "centers": self.means,
            "reach": self._compensated(reach, means_adjust),
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
        divided = self.space.divided(coordinates, self.space.lengths(self.sample))
        self.means = find_means(divided, self.lists, round_=self.round_, rng=self.rng)

    def _assigned(self, bar: Any) -> tuple[Indices, Doubles]:
        """The partitions of each row [rows, copies], and for inner products the radius of each partition."""
        chosen, total = np.empty((self.blocks.count, self.copies), np.int64), 0.0
        gaps = np.zeros(chosen.shape if self.space.metric == "ip" else (0, self.copies))
        means = Means(self.means, round_=self.round_)
        for part in tiles(self.blocks.count, max(self.lists, self.blocks.nesting.dim)):
            lengths = self.space.lengths(part)
            divided = self.space.divided(self.space.tile(self.space.whole(part)), lengths)
            chosen[part] = means.nearest(divided, self.copies)
            total += squared_distance(divided, self.means, chosen[part])
            if len(gaps):
                gaps[part] = squared_gaps(divided, lengths, self.means, chosen[part])
            bar.update(part.stop - part.start)
        self.distance = total / max(1, self.blocks.count) * self._overfitting()
        return chosen, radii(gaps, chosen, self.lists) if len(gaps) else np.zeros(self.lists)

    def _overfitting(self) -> float:
        """How much farther from the means new rows are than these, as a mean square: the means are those of these rows.

        A mean of n rows is off by the variance / n. So its own rows are nearer by a factor 1 − 1/n, new ones farther by
        1 + 1/n.
        """
        each, share = len(self.sample) / self.lists, len(self.sample) / max(1, self.blocks.count)
        return 1 + share * ((each + 1) / (each - 1) - 1) if each > 1 else 1.0

    def _coded_means(self) -> tuple[Array, Floats]:
        """Encode the means like rows."""
        # As long as the rows, so that they use the range of the codes.
        norms = np.linalg.norm(self.means, axis=1)
        factors = np.ones_like(norms) if self.space.metric == "l2" else self.length / np.maximum(norms, _TINY)
        codes = encode_nibbles(self.means * factors[:, None], self.tile_columns)
        height = (-(-self.lists // LANES) + 1) * LANES
        flat = np.zeros((height, self.space.dim), np.uint8)
        flat[: self.lists] = codes
        adjust = aligned((height, 1), np.float32, np.nan)
        adjust[: self.lists, 0] = adjustments(codes, self.tile_columns, self.space.metric, norms)
        return _aligned_copy(tiled(flat)), adjust.reshape(-1, LANES)

    def _compensated(self, reach: Floats, means_adjust: Floats) -> Floats:
        """``reach`` in the order of the means, less what the spread of rows adds to them; empty but for ip."""
        if self.space.metric != "ip":
            return np.empty((0, LANES), np.float32)
        made = aligned((means_adjust.size,), np.float32, 0)
        made[: self.lists] = reach - self.spread * means_adjust.ravel()[: self.lists]
        return made.reshape(-1, LANES)

    def _visits(self, sizes: Indices, chosen: Indices, around: Doubles) -> tuple[float, Floats, Floats, Floats]:
        """Learn the scale, the budgets, the effect of filters, and what is added to the scores of means.

        Rows serve as queries, of norm 1 but for L2.
        """
        picked = np.sort(self.rng.permutation(self.blocks.count)[:_QUERIES])
        few = self.sample[:: -(-len(self.sample) // (_SAMPLE // 4)) or 1]
        queries, whole, lengths = self.space.whole(picked), self.space.whole(few), self.space.lengths(few)
        turned, products = self.space.tile(queries), queries @ whole.T
        scores = self.space.divided(turned, np.ones(len(turned), np.float32)) @ self.means.T
        reach = np.zeros(self.lists, np.float32)
        if self.space.metric == "l2":
            scores = 2 * scores - np.square(self.means).sum(1)
            products = 2 * products - np.square(whole).sum(1)
        if self.space.metric == "ip":
            coordinates = self.space.tile(whole)
            self.spread = typical(products - turned @ self._decoded(coordinates).T, np.ones(len(few)))
            products *= lengths
            divided = self.space.divided(coordinates, lengths)
            gaps = np.sqrt(squared_gaps(divided, lengths, self.means, chosen[few, :1])[:, 0])
            reach = np.asarray(around * typical(products - scores[:, chosen[few, 0]], gaps), np.float32)
            scores = scores + reach
        scale = scale_of(scores)
        budgets, _ = needed_budgets(scores, sizes, scale)
        ranked = self._ranked(products, few, budgets, chosen)
        return scale, budgets_by_share(budgets, sizes), widening(ranked, _NEAR), reach

    def _decoded(self, coordinates: Floats) -> Floats:
        """The values of the 4-bit codes of rows, scaled to the norms of the rows."""
        made = decode_nibbles(encode_nibbles(coordinates, self.tile_columns), self.tile_columns)
        made *= (np.linalg.norm(coordinates, axis=1) / np.maximum(np.linalg.norm(made, axis=1), _TINY))[:, None]
        return made

    @staticmethod
    def _ranked(scores: Floats, few: Indices, budgets: Doubles, chosen: Indices) -> Doubles:
        """The budget that finds each of the nearest of ``few`` rows, nearest first, given their ``scores``."""
        most = min(_NEIGHBOURS, max(0, len(few) - 1))
        if not most or not len(scores):
            return np.empty((0, 0))
        best = np.argpartition(-scores, most, axis=1)[:, :most]
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
