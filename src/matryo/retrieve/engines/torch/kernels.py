"""The steps of a search on a GPU as fused Triton kernels, which read their input once and store no intermediate result.

Plain torch would write every score, gathered row and product to memory and read it again for the next operation. The
first line of each function defines its result; ``steps.py`` computes the same in plain torch.
"""

# mypy: ignore-errors
# The types of kernels are Triton's.

from __future__ import annotations

import torch
import triton
import triton.language as tl

from matryo.retrieve.engines.torch.device import FLOOR, SMALL, Rough
from matryo.retrieve.engines.torch.steps import FLUSHED, ROUNDING, Asked

_STEPS = 64, 512   # columns per step, for few and for many columns
_NUMBERS = 2048   # numbers per step of a program
_SPAN = 1024   # rows per program that finds the best of groups
_METRICS = {"cosine": 0, "ip": 1, "l2": 2}


def asked(given: torch.Tensor, dims: list[int], ends: torch.Tensor, metric: str, rough: Rough | None) -> Asked:
    """Prepare queries, as :func:`matryo.retrieve.engines.torch.steps.asked`; ``ends``: dims and d, on the device."""
    n, first = len(given), dims[0] if rough else 0
    made = torch.empty(n, first, dtype=torch.float16, device=given.device)
    vectors, lengths, norms, by, error = (
        torch.empty(n, width, device=given.device) for width in (dims[-1], len(dims), 1, 1, 1)
    )
    loss, longest, largest = (rough.loss, rough.longest, rough.largest) if rough else (0.0, 0.0, 0.0)
    with torch.cuda.device_of(given):   # Triton launches on the current device
        _asked[n,](
            given, given.stride(0), ends, vectors, lengths, norms, made, by, error, dims[-1], first, float(loss),
            float(longest), float(largest) * first, STAGES=len(dims), METRIC=_METRICS[metric], STEP=1024,
            ROUNDING=ROUNDING, FLUSHED=FLUSHED, FLOOR=FLOOR, SMALL=SMALL,
        )  # fmt: skip
    return Asked(vectors, lengths, norms, made if rough else None, by[:, 0], error)


def products(
    asked: torch.Tensor, matrix: torch.Tensor, by: torch.Tensor, times: torch.Tensor, plus: torch.Tensor, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``asked @ matrix.T`` [n, count] of two float16 matrices in float32, and its :func:`best_of_groups`."""
    (n, dim), count = asked.shape, len(matrix)
    sums = torch.empty(n, count, device=asked.device)
    best = torch.empty(n, triton.cdiv(count, group), device=asked.device)
    queries = min(128, max(16, triton.next_power_of_2(n)))
    step = min(64 if queries > 32 else 128, max(16, triton.next_power_of_2(dim)))
    across = triton.cdiv(n, queries)
    with torch.cuda.device_of(asked):
        _products[across * triton.cdiv(count, 128),](
            asked, asked.stride(0), matrix, matrix.stride(0), by, times, plus, sums, best, n, count, dim, across,
            QUERIES=queries, ROWS=128, STEP=step, EVEN=dim % step == 0, GROUP=group,
            num_warps=8 if queries > 64 else 4, num_stages=3,
        )  # fmt: skip
    return sums, best


def best_of_groups(
    sums: torch.Tensor, by: torch.Tensor, times: torch.Tensor, plus: torch.Tensor, group: int
) -> torch.Tensor:
    """Return the largest of ``by · times · sums + plus`` per ``group`` of consecutive rows."""
    n, count = sums.shape
    best = torch.empty(n, triton.cdiv(count, group), device=sums.device)
    with torch.cuda.device_of(sums):
        _best_of_groups[triton.cdiv(count, _SPAN), triton.cdiv(n, 4)](
            sums, by, times, plus, best, n, count, QUERIES=4, ROWS=_SPAN, GROUP=group
        )
    return best


def members(
    sums: torch.Tensor, by: torch.Tensor, times: torch.Tensor, plus: torch.Tensor, groups: torch.Tensor, group: int
) -> torch.Tensor:
    """Return ``by · times · sums + plus`` of the rows of each query's ``groups`` [n, m]: [n, m · group]; −∞ beyond."""
    (n, count), many = sums.shape, groups.shape[1] * group
    scores = torch.empty(n, many, device=sums.device)
    with torch.cuda.device_of(sums):
        _members[n, triton.cdiv(many, _SPAN)](
            sums, by, times, plus, groups.contiguous(), scores, count, many, GROUP=group, STEP=_SPAN
        )
    return scores


def keys_at(
    columns: torch.Tensor,
    rows: torch.Tensor,
    asked: torch.Tensor,
    norms: torch.Tensor,
    lengths: torch.Tensor,
    metric: str,
    before: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inner products of each of ``asked`` [n, width] with its own ``rows`` [n, m] of ``columns``, and keys.

    Products are summed in float64, and added to the sums ``before``. Row −1 is an empty place.
    """
    sums = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
    keys = torch.empty_like(sums, dtype=torch.int64)
    step = _STEPS[columns.shape[1] > _STEPS[0]]
    if rows.numel():
        with torch.cuda.device_of(rows):
            _keys_at[len(rows), triton.cdiv(rows.shape[1], _NUMBERS // step)](
                columns, columns.stride(0), rows.contiguous(), rows.shape[1], asked, asked.stride(0), norms,
                lengths.contiguous(), None if before is None else before.contiguous(), sums, keys, columns.shape[1],
                METRIC=_METRICS[metric], ROWS=_NUMBERS // step, STEP=step,
            )  # fmt: skip
    return sums, keys


@triton.jit
def _to_unit(norm):
    # As matryo.retrieve.engines.torch.device.to_unit: the negated exponent of a float64.
    exponent = norm.to(tl.int64, bitcast=True) >> 52
    return tl.where(norm > 0, ((2045 - exponent) << 52).to(tl.float64, bitcast=True), 1.0)


@triton.jit
def _norm(here, width, STEP: tl.constexpr):
    squares = tl.zeros((STEP,), tl.float64)
    for start in range(0, width, STEP):
        column = start + tl.arange(0, STEP)
        read = tl.load(here + column, column < width, 0.0).to(tl.float64)
        squares += read * read
    return tl.sqrt(tl.sum(squares, 0))


@triton.jit
def _asked(
    given, apart, ends, vectors, lengths, norms, made, by, error, dim, first, loss, longest, flushed,
    STAGES: tl.constexpr, METRIC: tl.constexpr, STEP: tl.constexpr, ROUNDING: tl.constexpr, FLUSHED: tl.constexpr,
    FLOOR: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    here = given + query * apart
    whole = _norm(here, tl.load(ends + STAGES), STEP)
    tl.store(norms + query, whole.to(tl.float32))
    unit = tl.where(METRIC == 0, _to_unit(whole), 1.0)   # so that no sum overflows or underflows
    for stage in range(STAGES):   # the query is in the cache, so each prefix is read again
        norm = (_norm(here, tl.load(ends + stage), STEP) * unit).to(tl.float32)
        length = norm * norm if METRIC == 2 else (1 / tl.maximum(norm, FLOOR).to(tl.float64)).to(tl.float32)
        tl.store(lengths + query * STAGES + stage, length)
    norm = _norm(here, first, STEP) * unit
    rough = _to_unit(norm)
    lost = tl.zeros((STEP,), tl.float64)
    for start in range(0, dim, STEP):
        column = start + tl.arange(0, STEP)
        exact = tl.load(here + column, column < dim, 0.0).to(tl.float64) * unit
        tl.store(vectors + query * dim + column, exact.to(tl.float32), column < dim)
        half = (exact * rough).to(tl.float16)
        tl.store(made + query * first + column, half, column < first)
        gone = tl.where(column < first, exact * rough - half.to(tl.float64), 0.0)
        lost += gone * gone
    part = tl.sqrt(tl.sum(lost, 0)) / tl.maximum(norm * rough, FLOOR)
    part = part * (1 + loss) + loss + (first + 16) * ROUNDING
    squares = norm * norm
    times = 1 / rough
    if METRIC == 0:
        times = times / tl.maximum(norm, FLOOR)
        part = part + tl.where((norm > 0) & (norm < SMALL), 3.0, 0.0)
    if METRIC == 1:
        part = part * norm * longest
    if METRIC == 2:
        times = times * 2
        part = 2 * part * norm * longest + 16 * ROUNDING * (squares + longest * longest) - squares
    tl.store(by + query, times.to(tl.float32))
    tl.store(error + query, (part + tl.minimum(FLUSHED * (flushed * times + 8), 1e9)).to(tl.float32))


@triton.jit
def _group_maxima(sums, by, times, plus, inside, QUERIES: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr):
    scores = tl.where(inside[None, :], sums * times[None, :] * by[:, None] + plus[None, :], float("-inf"))
    return tl.max(tl.reshape(scores, (QUERIES, ROWS // GROUP, GROUP)), 2)


@triton.jit
def _products(
    asked, apart, matrix, stride, by, times, plus, sums, best, n, count, dim, across,
    QUERIES: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, EVEN: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    # Adjacent programs share their rows, which are read from memory once; the queries are in the cache.
    tile = tl.program_id(0) // across
    query = (tl.program_id(0) % across) * QUERIES + tl.arange(0, QUERIES)
    row = tile * ROWS + tl.arange(0, ROWS)
    there, inside = query < n, row < count
    left = asked + query.to(tl.int64)[:, None] * apart
    right = matrix + row.to(tl.int64)[:, None] * stride
    total = tl.zeros((QUERIES, ROWS), tl.float32)
    for start in range(0, dim, STEP):
        column = start + tl.arange(0, STEP)
        if EVEN:
            vector = tl.load(left + column[None, :], there[:, None], 0.0)
            read = tl.load(right + column[None, :], inside[:, None], 0.0)
        else:
            vector = tl.load(left + column[None, :], there[:, None] & (column < dim)[None, :], 0.0)
            read = tl.load(right + column[None, :], inside[:, None] & (column < dim)[None, :], 0.0)
        total = tl.dot(vector, tl.trans(read), total)
    at = query.to(tl.int64)[:, None]
    tl.store(sums + at * count + row[None, :], total, there[:, None] & inside[None, :])
    maxima = _group_maxima(
        total, tl.load(by + query, there, 0.0), tl.load(times + row, inside, 0.0), tl.load(plus + row, inside, 0.0),
        inside, QUERIES, ROWS, GROUP,
    )  # fmt: skip
    groups = (count + GROUP - 1) // GROUP
    group = tile * (ROWS // GROUP) + tl.arange(0, ROWS // GROUP)
    tl.store(best + at * groups + group[None, :], maxima, there[:, None] & (group < groups)[None, :])


@triton.jit
def _best_of_groups(
    sums, by, times, plus, best, n, count, QUERIES: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr
):
    query = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there, inside = query < n, row < count
    at = query.to(tl.int64)[:, None]
    read = tl.load(sums + at * count + row[None, :], there[:, None] & inside[None, :], 0.0)
    maxima = _group_maxima(
        read, tl.load(by + query, there, 0.0), tl.load(times + row, inside, 0.0), tl.load(plus + row, inside, 0.0),
        inside, QUERIES, ROWS, GROUP,
    )  # fmt: skip
    groups = (count + GROUP - 1) // GROUP
    group = tl.program_id(0) * (ROWS // GROUP) + tl.arange(0, ROWS // GROUP)
    tl.store(best + at * groups + group[None, :], maxima, there[:, None] & (group < groups)[None, :])


@triton.jit
def _members(sums, by, times, plus, groups, scores, count, many, GROUP: tl.constexpr, STEP: tl.constexpr):
    query = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * STEP + tl.arange(0, STEP)
    here = place < many
    row = tl.load(groups + query * (many // GROUP) + place // GROUP, here, 0) * GROUP + place % GROUP
    inside = here & (row < count)
    read = tl.load(sums + query * count + row, inside, 0.0)
    score = read * tl.load(times + row, inside, 0.0) * tl.load(by + query) + tl.load(plus + row, inside, 0.0)
    tl.store(scores + query * many + place, tl.where(inside, score, float("-inf")), here)


@triton.jit
def _keys_at(
    columns, stride, rows, many, asked, apart, norms, lengths, before, sums, keys, width,
    METRIC: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    here = place < many
    row = tl.load(rows + query * many + place, here, -1)
    there = tl.maximum(row, 0)
    # Summed per lane over all steps, then once across the lanes: the same order for every row, wherever it lies.
    total = tl.zeros((ROWS, STEP), tl.float64)
    for start in range(0, width, STEP):
        column = start + tl.arange(0, STEP)
        inside = column < width
        vector = tl.load(asked + query * apart + column, inside, 0.0)
        read = tl.load(columns + there[:, None] * stride + column[None, :], (row >= 0)[:, None] & inside[None, :], 0.0)
        total += (read.to(tl.float32) * vector[None, :]).to(tl.float64)
    out = tl.sum(total, 1)
    if before is not None:
        out += tl.load(before + query * many + place, here, 0.0)
    tl.store(sums + query * many + place, out, here)
    # As matryo.retrieve.vectors.metric.score and keys.
    score = out.to(tl.float32)
    if METRIC == 0:
        score = score * tl.load(norms + there) * tl.load(lengths + query)
    if METRIC == 2:
        score = score * 2 - tl.load(norms + there) - tl.load(lengths + query)
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
    made = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) << 32) | (0xFFFFFFFF - row)
    tl.store(keys + query * many + place, tl.where(row < 0, -0x8000000000000000, made), here)
