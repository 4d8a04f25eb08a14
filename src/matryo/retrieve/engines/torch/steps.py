"""The steps of a search on a device, in plain torch; on a GPU, ``kernels.py`` fuses several of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from matryo.retrieve.engines.torch.device import FLOOR, SMALL, Rough, factors, to_unit
from matryo.retrieve.vectors.metric import NOTHING, Metric

if TYPE_CHECKING:
    from collections.abc import Sequence


_GATHER = 1 << 28   # numbers gathered at a time
_DEEP = 4   # from this many rows per group, selecting groups first is faster
_DEEPEST = 128   # rows per tile of a kernel
_FEW = 64   # up to this many queries, or
_SHORT = 256   # up to this dim, computing a product takes less time than reading its result again
ROUNDING = 2.0**-23   # exceeds the relative error of a sum; tensor cores truncate
FLUSHED = 2.0**-126   # the most that a product loses by underflow
_ROWS = 0xFFFFFFFF   # the lower half of a key holds the row


class Asked(NamedTuple):
    """Queries on a device; ``rough`` has them for the matrix product."""

    vectors: torch.Tensor
    """[n, last dim], float32; scaled to norms of about 1 if the metric is cosine."""
    lengths: torch.Tensor
    """[n, dims], the :func:`matryo.retrieve.engines.torch.device.factors` of their norms at each dim."""
    norms: torch.Tensor
    """[n, 1], the norms of the queries before scaling."""
    rough: torch.Tensor | None
    """[n, first dim], in the dtype of the matrix, scaled to norms of about 1."""
    by: torch.Tensor
    """[n], the query's factor that turns a product into an approximate score."""
    error: torch.Tensor
    """[n, 1], the most by which a score may exceed its approximation, plus the query's constant in all scores."""


def asked(given: torch.Tensor, dims: Sequence[int], metric: Metric, rough: Rough | None, wide: torch.dtype) -> Asked:
    """Prepare the queries ``given`` [n, d] for the ``dims`` of the stages, and for a product at the first of them.

    By the Cauchy–Schwarz inequality, the error of a product is at most both norms times the relative rounding errors of
    both sides and of the sum. Products that are too small for float32 lose ``FLUSHED`` each.
    """
    exact = given.to(wide)
    squares = exact.square().cumsum(1)
    norms = torch.stack([squares[:, dim - 1] for dim in dims], 1).sqrt()
    whole, exact = squares[:, -1:].sqrt(), exact[:, : dims[-1]]
    if metric == "cosine":
        unit = to_unit(whole)   # so that no sum overflows or underflows
        exact, norms = exact * unit, norms * unit
    lengths = factors(metric, norms.float())
    if rough is None:
        return Asked(exact.float(), lengths, whole.float(), None, whole[:, 0], whole)
    norm, squares = norms[:, :1], norms[:, :1].square()
    unit = to_unit(norm)
    scaled = exact[:, : dims[0]] * unit
    made = scaled.to(rough.matrix.dtype)
    lost = torch.linalg.vector_norm(scaled - made, dim=1, keepdim=True) / (norm * unit).clamp(min=FLOOR)
    error = lost * (1 + rough.loss) + rough.loss + (dims[0] + 16) * ROUNDING
    if metric == "cosine":
        by = lengths[:, :1] / unit
        error = error + 3.0 * ((norm > 0) & (norm < SMALL))   # no bound
    elif metric == "ip":
        by, error = 1 / unit, error * norm * rough.longest
    else:
        by = 2 / unit
        error = 2 * error * norm * rough.longest + 16 * ROUNDING * (squares + rough.longest**2) - squares
    error = error + (FLUSHED * (dims[0] * rough.largest * by + 8)).clamp(max=1e9)   # which no cosine exceeds
    return Asked(exact.float(), lengths, whole.float(), made, by[:, 0].float(), error.float())


def likely(
    vectors: torch.Tensor, by: torch.Tensor, rough: Rough, wanted: int, *, fused: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best ``wanted`` of ``by · times · product + plus`` and their rows, unsorted; ties are arbitrary.

    The best rows lie in the groups with the best maxima: two selections among few are faster than one among all.
    """
    depth = math.isqrt(len(rough.matrix) // wanted)
    if depth < _DEEP:
        return _scores(vectors, by, rough).topk(wanted, dim=1, sorted=False)
    group = min(_DEEPEST, 1 << (depth.bit_length() - 1))
    if fused:
        from matryo.retrieve.engines.torch import kernels

        formula = by, rough.times, rough.plus
        if len(vectors) <= _FEW or vectors.shape[1] <= _SHORT:
            sums, best = kernels.products(vectors, rough.matrix, *formula, group)
        else:
            sums = _product(vectors, rough.matrix)
            best = kernels.best_of_groups(sums, *formula, group)
        groups = best.topk(wanted, dim=1, sorted=False).indices
        inside = kernels.members(sums, *formula, groups, group)
    else:
        scores = _scores(vectors, by, rough)
        groups = _best_of_groups(scores, group).topk(wanted, dim=1, sorted=False).indices
        inside = _members(scores, groups, group)
    values, at = inside.topk(wanted, dim=1, sorted=False)
    return values, groups.gather(1, at // group) * group + at % group


def keys_at(
    columns: torch.Tensor, rows: torch.Tensor, asked: torch.Tensor, norms: torch.Tensor, lengths: torch.Tensor,
    metric: Metric, before: torch.Tensor | None, wide: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inner products of each of ``asked`` [n, width] with its own ``rows`` [n, m] of ``columns``, and keys.

    Products are summed in ``wide``, and added to the sums ``before``. Row −1 is an empty place.
    """
    there = rows.clamp(min=0)
    sums = torch.empty(rows.shape, dtype=wide, device=rows.device)
    step = max(1, _GATHER // max(1, rows.shape[1] * columns.shape[1]))
    for some, vector, out in zip(there.split(step), asked[:, None].split(step), sums.split(step), strict=True):
        read = columns.index_select(0, some.flatten()).unflatten(0, some.shape)
        # Not a matrix product: every row is summed in the same order, so equal rows have equal scores.
        out.copy_((read * vector).sum(-1, dtype=wide))
    if before is not None:
        sums += before
    return sums, _keys(_score(metric, sums.float(), norms[there], lengths[:, None]), rows)


def scores_at(
    columns: torch.Tensor, rows: torch.Tensor, asked: torch.Tensor, metric: Metric, wide: torch.dtype
) -> torch.Tensor:
    """Return the scores of each of ``asked`` [n, width] with its own ``rows`` [n, m] of ``columns``, in ``wide``.

    As :func:`matryo.retrieve.engines.exact.exact_scores`. Row −1, an empty place, has score −∞.
    """
    scores = torch.empty(rows.shape, dtype=wide, device=rows.device)
    across = max(1, min(rows.shape[1], _GATHER // columns.shape[1]))
    down = max(1, _GATHER // (across * columns.shape[1]))
    for top in range(0, len(rows), down):
        query = asked[top : top + down, None].to(wide)
        for first in range(0, rows.shape[1], across):
            part = slice(top, top + down), slice(first, first + across)
            there = rows[part].clamp(min=0)
            read = columns.index_select(0, there.flatten()).unflatten(0, there.shape).to(wide)
            if metric == "l2":   # from norms, small distances would be lost
                scores[part] = -_total((read - query).square())
                continue
            scores[part] = _total(read * query)
            if metric == "cosine":
                lengths = (_total(read.square()) * _total(query.square())).sqrt()
                scores[part] /= lengths.masked_fill(lengths == 0, 1)
    return scores.masked_fill(rows < 0, -math.inf)


def ranked(rows: torch.Tensor, scores: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best ``keep`` rows and their scores, as :func:`matryo.retrieve.engines.exact.ranked`."""
    rows, at = rows.sort(dim=1)
    scores, best = scores.gather(1, at).sort(dim=1, descending=True, stable=True)
    return rows.gather(1, best[:, :keep]), scores[:, :keep]


def _total(numbers: torch.Tensor) -> torch.Tensor:
    # The sum over the last axis, by halves: its order depends on nothing but the width, on every device. So equal rows
    # have equal scores, for one query and for many.
    width = 1 << (numbers.shape[-1] - 1).bit_length()
    numbers = torch.nn.functional.pad(numbers, (0, width - numbers.shape[-1]))
    while width > 1:
        width //= 2
        numbers = numbers[..., :width] + numbers[..., width:]
    return numbers[..., 0]


def key_rows(keys: torch.Tensor) -> torch.Tensor:
    """Return the rows of keys, as :func:`matryo.retrieve.vectors.metric.key_rows`."""
    return torch.where(keys == NOTHING, -1, _ROWS - (keys & _ROWS))


def key_scores(keys: torch.Tensor) -> torch.Tensor:
    """Return the scores of keys, as :func:`matryo.retrieve.vectors.metric.key_scores`."""
    ordered = (keys >> 32).int()
    scores = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)
    return scores.masked_fill(keys == NOTHING, -math.inf)


def _keys(scores: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    # As matryo.retrieve.vectors.metric.keys.
    bits = (scores + 0).view(torch.int32)
    made = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32) | (_ROWS - rows)
    return made.masked_fill(rows < 0, NOTHING)


def _score(metric: Metric, sums: torch.Tensor, norms: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    # As matryo.retrieve.vectors.metric.score, from the factors of norms.
    if metric == "ip":
        return sums
    return sums * norms * lengths if metric == "cosine" else sums * 2 - norms - lengths


def _product(vectors: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    if matrix.is_cuda and matrix.dtype == torch.float16:
        return torch.mm(vectors, matrix.T, out_dtype=torch.float32)
    return vectors.float() @ matrix.float().T


def _scores(vectors: torch.Tensor, by: torch.Tensor, rough: Rough) -> torch.Tensor:
    return _product(vectors, rough.matrix).mul_(rough.times).mul_(by[:, None]).add_(rough.plus)


def _best_of_groups(scores: torch.Tensor, group: int) -> torch.Tensor:
    padded = torch.nn.functional.pad(scores, (0, -scores.shape[1] % group), value=-math.inf)
    best: torch.Tensor = padded.unflatten(1, (-1, group)).amax(2)
    return best


def _members(scores: torch.Tensor, groups: torch.Tensor, group: int) -> torch.Tensor:
    """Return the scores of all rows of each query's own ``groups``, −∞ beyond the last row."""
    rows = (groups[:, :, None] * group + torch.arange(group, device=groups.device)).flatten(1)
    last = scores.shape[1] - 1
    return scores.gather(1, rows.clamp(max=last)).masked_fill(rows > last, -math.inf)
