"""The layout of partitions that suits some rows: how many columns a tile has, rotated or not, and copies of rows.

The layout is chosen on a sample, in which some rows serve as queries. For each candidate, the ranks of their true
neighbours by the codes of a tile give the shortlist that a search must re-rank. For the best of these, partitions of a
smaller sample give the share of the rows that a search must visit. The costs of reading were measured once; they need
not be exact, because the best layouts cost nearly the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from matryo.retrieve.guides.partition.codes import decode_nibbles, encode_nibbles, nibble_columns
from matryo.retrieve.guides.partition.means import find_means, two_means
from matryo.retrieve.guides.partition.optimism import radii, squared_gaps, typical
from matryo.retrieve.guides.partition.space import Space, principal_axes
from matryo.retrieve.guides.partition.visits import needed_budgets, scale_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Floats, Indices

_NUMBERS, _ROWS, _FEW_ROWS = 1 << 24, 65_536, 16_384   # samples: the most numbers, rows, and rows in partitions
_QUERIES, _NEAR = 128, 10
_MOST_COLUMNS = 4096   # vectors with more columns are not rotated
_DIMS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_FINALISTS = 4   # candidates for which partitions are made
_TARGETS = ((0.985, 0.97, 0.015), (0.998, 0.993, 0.05))
"""For a search with recall 0.95 and one with 0.99: the recalls of the shortlist and of the visits, and a first guess of
the share of the rows that it visits."""
_GROWTH = 0.6   # the share to visit falls with this power of the number of rows
_ROW, _BYTE, _SCAN, _TURN = 200.0, 0.06, 0.06, 0.04   # nanoseconds: per candidate and its byte, byte scanned, product
_COPIES = 0.85   # factor on the cost of a second copy, as it saves more among all rows than in the sample
LISTS = 4   # partitions by default: this times the square root of the number of rows


@dataclass(frozen=True)
class Layout:
    """The content of tiles, and the number of partitions per row."""

    dim: int
    """The number of columns."""
    rotated: bool
    """Whether these are principal coordinates; otherwise the first columns."""
    copies: int
    """The number of partitions that have each row."""


def choose_layout(
    blocks: Blocks, metric: Metric, rng: np.random.Generator, *, dim: int | None = None, rotated: bool | None = None,
    copies: int | None = None,
) -> tuple[Layout, Floats]:  # fmt: skip
    """Return the cheapest layout for ``blocks`` and its axes; a given ``dim``, ``rotated`` or ``copies`` is kept."""
    width = blocks.nesting.dim
    if dim is not None and rotated is False and copies is not None:
        return Layout(dim, False, copies), np.empty((0, dim), np.float32)
    most = max(4 * _QUERIES, min(_ROWS, _NUMBERS // width))
    rows = np.sort(rng.permutation(blocks.count)[:most])
    space = Space(blocks, metric, np.empty((0, width), np.float32), width)
    sample, lengths = space.whole(rows), space.lengths(rows)
    asked = np.sort(rng.permutation(len(rows))[: min(_QUERIES, len(rows) // 4)])
    may_rotate = rotated is not False and 1 < width <= _MOST_COLUMNS and len(rows) > 1
    axes = principal_axes(sample[rng.permutation(len(sample))[:_FEW_ROWS]]) if may_rotate else np.empty((0, 0))

    def space_of(number: int, turn: bool) -> Space:
        chosen = np.ascontiguousarray(axes[:, :number], np.float32) if turn else np.empty((0, number), np.float32)
        return Space(blocks, metric, chosen, number)

    candidates = list(_candidates(width, dim, rotated, may_rotate))
    if len(candidates) == 1 and copies is not None:
        chosen = space_of(*candidates[0])
        return Layout(chosen.dim, len(chosen.axes) > 0, copies), chosen.axes
    trials = []
    true = _neighbours(sample[asked], sample, asked, metric, lengths)
    for turn in sorted({turn for _, turn in candidates}):
        numbers = [number for number, turned in candidates if turned is turn]
        all_keeps = _keeps(space_of(numbers[-1], turn), numbers, sample, asked, true, lengths)
        for number, keeps in zip(numbers, all_keeps, strict=True):
            turned = space_of(number, turn)
            cost = _cost(turned, keeps, [share for _, _, share in _TARGETS], blocks.count, 1)
            trials.append((cost, turned, keeps))
    trials.sort(key=lambda trial: (trial[0], trial[1].dim))
    few = np.sort(rng.permutation(len(sample))[:_FEW_ROWS])
    best: tuple[float, Layout, Floats] | None = None
    for _, turned, keeps in trials[:_FINALISTS]:
        for number, share in _shares(turned, sample[few], lengths[few], rng).items():
            if copies in (None, number):
                cost = _cost(turned, keeps, share, blocks.count, len(few)) * (_COPIES if number > 1 else 1)
                if best is None or cost < best[0]:
                    best = cost, Layout(turned.dim, len(turned.axes) > 0, number), turned.axes
    assert best is not None   # there is a candidate
    return best[1], best[2]


def _candidates(width: int, dim: int | None, rotated: bool | None, may_rotate: bool) -> Iterator[tuple[int, bool]]:
    # A rotation of all columns has no effect.
    usual = sorted({*(each for each in _DIMS if each < width), min(width, _DIMS[-1])})
    for number in usual if dim is None else (dim,):
        for turn in (False, True) if rotated is None else (rotated,):
            if not turn or (may_rotate and number < width):
                yield number, turn
            elif rotated:
                yield number, False


def _neighbours(queries: Floats, sample: Floats, own: Indices, metric: Metric, lengths: Floats) -> Indices:
    """The nearest rows of each query in the sample, without itself."""
    scores = queries @ sample.T * lengths
    if metric == "l2":
        scores = 2 * scores - np.square(sample).sum(1)
    scores[np.arange(len(own)), own] = -np.inf
    near = min(_NEAR, sample.shape[0] - 1)
    return np.argpartition(-scores, near - 1, axis=1)[:, :near] if near > 0 else np.empty((len(own), 0), np.int64)


def _keeps(
    space: Space, dims: list[int], sample: Floats, own: Indices, true: Indices, lengths: Floats
) -> list[list[float]]:
    """The length of the shortlist that each target needs, for the first ``dims`` coordinates of a space.

    The products of a prefix are those of a shorter one and of the columns between.
    """
    coordinates = space.tile(sample)
    columns = nibble_columns(coordinates)
    decoded = decode_nibbles(encode_nibbles(coordinates, columns), columns)
    turned = coordinates[own]
    products = np.zeros((len(own), len(sample)), np.float32)
    squares, norms = np.zeros(len(sample), np.float32), np.zeros(len(sample), np.float32)
    # In a sample, neighbours are further away than among all rows, and fewer rows come between.
    growth = max(1.0, (space.blocks.count / max(1, len(sample))) ** 0.5)
    whole = sample[own] @ sample.T if space.metric == "ip" else products
    keeps, low = [], 0
    for high in dims:
        added = decoded[:, low:high]
        products += turned[:, low:high] @ added.T
        squares += np.einsum("ij,ij->i", added, added)
        norms += np.square(coordinates[:, low:high]).sum(1)
        low = high
        scores: Floats = products
        if space.metric == "cosine":
            scores = np.asarray(products / np.maximum(np.sqrt(squares), np.finfo(np.float32).tiny), np.float32)
        elif space.metric == "l2":
            scores = 2 * products - squares
        else:
            scores = products * np.sqrt(norms / np.maximum(squares, np.finfo(np.float32).tiny))
            scores = (scores + np.float32(typical(whole - scores, np.ones(len(sample))))) * lengths
        ranks = np.ones((1, 1))
        if true.size:
            ranks = np.array([
                [np.count_nonzero(line >= score) - (line[mine] >= score) for score in line[near]]
                for line, near, mine in zip(scores, true, own, strict=True)
            ])  # fmt: skip
        keeps.append([float(np.quantile(ranks, recall)) * growth for recall, _, _ in _TARGETS])
    return keeps


def _cost(space: Space, keeps: list[float], shares: list[float], count: int, sampled: int) -> float:
    """Nanoseconds of a search for each target, added up; ``shares`` of the rows are visited in a sample."""
    width = space.blocks.nesting.dim
    turn = _TURN * width * space.dim if len(space.axes) else 0.0
    means: float = LISTS * count**0.5
    fewer = min(1.0, (sampled / max(1, count)) ** _GROWTH) if sampled > 1 else 1.0
    return sum(
        turn + keep * (_ROW + _BYTE * width) + (fewer * share * count + means) * space.dim / 2 * _SCAN
        for keep, share in zip(keeps, shares, strict=True)
    )


def _shares(space: Space, sample: Floats, lengths: Floats, rng: np.random.Generator) -> dict[int, list[float]]:
    """The places visited for each target, as a share of the rows, by the number of copies."""
    lists = max(1, round(LISTS * len(sample) ** 0.5))
    own = rng.permutation(len(sample))[: min(2 * _QUERIES, len(sample) // 4)]
    true = _neighbours(sample[own], sample, own, space.metric, lengths)
    turned = space.tile(sample)
    coordinates = space.divided(turned, lengths)
    cosine = space.metric == "cosine"
    means = find_means(coordinates, lists, round_=cosine, rng=rng)
    chosen = two_means(coordinates, means, round_=cosine)
    scores = space.divided(turned[own], np.ones(len(own), np.float32)) @ means.T
    if space.metric == "l2":
        scores = 2 * scores - np.square(means).sum(1)
    shares, plain = {}, scores
    for copies in (1, 2):
        homes = chosen[:, :copies]
        if space.metric == "ip":
            gaps = squared_gaps(coordinates, lengths, means, homes)
            errors = sample[own] @ sample.T * lengths - plain[:, homes[:, 0]]
            scores = plain + radii(gaps, homes, lists) * typical(errors, np.sqrt(gaps[:, 0]))
        sizes = np.bincount(homes.ravel(), minlength=lists)
        budgets, visited = needed_budgets(scores, sizes, scale_of(scores))
        needed = budgets[np.arange(len(own))[:, None, None], homes[true]].min(2)
        shares[copies] = [
            float(np.where(budgets <= np.quantile(needed, recall), visited, 0).max(1).mean()) / len(sample)
            if needed.size else share
            for _, recall, share in _TARGETS
        ]  # fmt: skip
    return shares
