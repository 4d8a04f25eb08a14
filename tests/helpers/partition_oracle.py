"""Plain numpy versions of partitions: what their codes stand for, what a query visits, and what a plan finds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from matryo.retrieve.guides.partition import Partition
from matryo.retrieve.plan.plan import Plan
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import Metric

Array = Any
TINY = float(np.finfo(np.float32).tiny)


def true_score(metric: Metric, query: Array, row: Array) -> float:
    """The score in float64; 0 for a cosine with zeros."""
    q, x = query.astype(np.float64), row.astype(np.float64)
    if metric == "ip":
        return float(q @ x)
    if metric == "l2":
        return -float((q - x) @ (q - x))
    lengths = float(np.sqrt(q @ q) * np.sqrt(x @ x))
    return float(q @ x) / lengths if lengths else 0.0


def whole(blocks: Blocks, metric: Metric) -> Array:
    """All columns of all rows; divided by their norms, but for L2."""
    rows = blocks.rows(slice(None), blocks.nesting.dim).astype(np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), TINY) if metric != "l2" else rows


def coordinates(partition: Partition, vectors: Array) -> Array:
    """The coordinates of the tiles."""
    return vectors @ partition.axes.astype(np.float64) if len(partition.axes) else vectors[:, : partition.dim]


def nibbles(tiles: Array, dim: int) -> Array:
    """The 4-bit codes of tiles, one number at a time: [16 · tiles, dim]."""
    made = np.empty((16 * len(tiles), dim), int)
    for column in range(dim):
        eight, inside = divmod(column, 8)
        for lane in range(16):
            both = tiles[:, 64 * eight + 4 * lane + inside % 4]
            made[lane::16, column] = both & 15 if inside < 4 else both >> 4
    return made


def decoded_tiles(partition: Partition, tiles: Array) -> Array:
    """The values that the codes of tiles stand for, [16 · tiles, dim]."""
    return nibbles(tiles, partition.dim) * partition.tile_columns[0].astype(float) + partition.tile_columns[1]


def decoded_bytes(partition: Partition) -> Array:
    """The values that the 8-bit codes stand for, [slots, long]."""
    codes = partition.codes[:, : partition.long].astype(int)
    return codes * partition.columns[0].astype(float) + partition.columns[1]


def places_of(partition: Partition) -> list[Array]:
    """The places of each partition."""
    return [np.arange(16 * first, 16 * first + size) for first, size in partition.lists.tolist()]


def turned_query(partition: Partition, query: Array) -> Array:
    """A query in the coordinates of the tiles; for cosine, divided by its norm."""
    q = query.astype(np.float64)
    return coordinates(partition, (q / np.linalg.norm(q) if partition.metric == "cosine" else q)[None])[0]


def query_unit(partition: Partition, turned: Array) -> float:
    """The unit of the codes of a query: 1/35 of the typical product with a step, but the largest code has 15 bits."""
    products = np.abs(turned * partition.tile_columns[0])
    return float(max(np.sqrt(np.square(products).mean()) / 35, products.max() / (127 * 128 + 63)))


def tile_scores(partition: Partition, tiles: Array, adjust: Array, query: Array) -> Array:
    """The score of every place of some tiles, with a query in codes."""
    turned = turned_query(partition, query)
    length, unit = float(np.linalg.norm(turned)), query_unit(partition, turned)
    codes = np.rint(turned * partition.tile_columns[0] / unit) if unit else 0 * turned
    products = nibbles(tiles, partition.dim) @ codes * unit + turned @ partition.tile_columns[1]
    added = adjust.ravel().astype(float)
    if partition.metric == "cosine":
        return products * added / length if length else 0 * added
    if partition.metric == "ip":
        return (products + partition.spread * np.linalg.norm(query.astype(np.float64))) * added
    return 2 * products + added


def code_slack(partition: Partition, query: Array) -> float:
    """How far the score of a row may be from ``tile_scores``: float32, and two codes of the query that round apart."""
    turned = turned_query(partition, query)
    largest = np.nanmax(partition.adjust)
    factor = {"ip": largest, "l2": 2.0, "cosine": largest / max(np.linalg.norm(turned), TINY)}
    rounding = 1e-6 * np.abs(turned) @ (np.abs(partition.tile_columns[1]) + 15 * partition.tile_columns[0])
    return float(factor[partition.metric] * (2 * 15 * query_unit(partition, turned) + rounding))


def list_scores(partition: Partition, query: Array) -> Array:
    """The score of the mean of each partition, in multiples of the scale."""
    scores = tile_scores(partition, partition.means, partition.means_adjust, query)[: len(partition.lists)]
    if partition.metric == "ip":   # the scale is that of queries of norm 1
        scores = scores / np.linalg.norm(query.astype(np.float64)) + partition.reach.ravel()[: len(scores)]
    return np.asarray(scores / partition.scale)


def visited(partition: Partition, scores: Array, budget: float, k: int, wider: float = 1.0) -> list[int]:
    """The partitions that a query visits, best first, given the scores of their means in multiples of the scale."""
    lists, sizes = len(scores), partition.lists[:, 1]
    if budget < 0:
        return list(range(lists))
    most = min(lists, math.ceil(1.5 * max(budget, 4 * k) / max(1, sizes.sum()) * lists) + 16)
    order = np.argsort(-scores, kind="stable")[: min(lists, int(most * max(wider, 1.0)))]
    chosen: list[int] = []
    places = 0
    for number in order.tolist():
        gap = float(scores[order[0]]) - float(scores[number])
        if places >= 4 * k and places >= budget * wider * math.exp(-gap):
            break
        chosen.append(number)
        places += int(sizes[number])
    return chosen


def candidates(
    partition: Partition, scores: Array, lists: list[int], query: Array, k: int, allowed: Array | None = None
) -> dict[int, float]:
    """The slots that a scan of some partitions finds, with their scores; of all partitions if these are too few."""
    every, places = tile_scores(partition, partition.tiles, partition.adjust, query), places_of(partition)
    slots = partition.slots.ravel()
    found: dict[int, float] = {}
    for number in lists:
        for place in places[number].tolist():
            slot = int(slots[place])
            if allowed is None or allowed[partition.rows[slot]]:
                found[slot] = float(every[place])
    if len(found) < k and len(lists) < len(scores):
        return candidates(partition, scores, list(range(len(scores))), query, k, allowed)
    return found


def replay(
    blocks: Blocks, partition: Partition, plan: Plan, query: Array, k: int, found: dict[int, float]
) -> list[int]:
    """Follow the stages of a plan in float64, from the candidates of the scan; returns rows."""
    metric, plan = partition.metric, plan.for_k(k)
    q = query.astype(np.float64)
    if metric == "cosine":
        q = q / np.linalg.norm(q)
    slots, held = np.array(sorted(found), int), decoded_bytes(partition)
    for number, stage in enumerate(plan.stages):
        rows = partition.rows[slots].astype(int)
        if number == 0:
            scores = np.array([found[slot] for slot in slots.tolist()])
        else:
            if stage.precision == "int8":
                sums, norms = held[slots, : stage.dim] @ q[: stage.dim], blocks.norms[rows, blocks.level(stage.dim)]
                norms = norms / blocks.norms[rows, -1] if metric == "cosine" else norms
                sums = sums * blocks.norms[rows, -1] if metric == "ip" else sums
            else:
                stored = blocks.rows(rows, stage.dim).astype(float)
                sums, norms = stored @ q[: stage.dim], np.linalg.norm(stored, axis=1)
            length = np.linalg.norm(q[: stage.dim])
            scores = {"ip": sums, "l2": 2 * sums - norms.astype(float) ** 2,
                      "cosine": sums / np.maximum(norms * length, 1e-30)}[metric]   # fmt: skip
        order = np.argsort(-scores, kind="stable")[: stage.keep]
        if stage.margin is not None and len(order) > k:
            order = order[scores[order] >= scores[order[k - 1]] - stage.margin]
        slots = slots[order]
    if plan.stages[-1].precision != "full" or len(plan.stages) == 1:   # scores are those of the stored vectors
        rows = partition.rows[slots].astype(int)
        scores = np.array([true_score(metric, query[: plan.dim], row) for row in blocks.rows(rows, plan.dim)])
        slots = slots[np.argsort(-scores, kind="stable")]
    return [int(row) for row in partition.rows[slots[:k]]]
