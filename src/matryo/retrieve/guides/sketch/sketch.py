"""Sketch guide: a few bytes per row, with bounds on their error, so that exact search skips most rows.

The rows are rotated to their principal axes, which changes no inner product and puts most of the variance into the
first coordinates. The first few coordinates are stored in int8. The error of a row x is bounded: the coordinates after
the first m have the norm ``tail``, and rounding to codes moved the first m by at most ``error``. By the Cauchy–Schwarz
inequality, for every x, from about 64 bytes:

    q·x ≤ (q's first m)·(codes of x) + ‖q's first m‖ · error + ‖q's other coordinates‖ · tail

A sketch has levels: all rows are scanned at its first dim, the remaining ones are checked with the columns of the next
level, and so on. The first level is stored in tiles of 16 rows, with four columns of a row side by side, the layout in
which processors multiply bytes. The other levels are stored row by row.

The arrays depend on the rows alone. They are computed in float64 and rounded upwards where they bound.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.compiled import core, default_threads
from matryo.errors import EmbeddingsError, InputError
from matryo.retrieve.guides.guide import VERIFIED_BYTES, Guide, Search
from matryo.retrieve.vectors.array_folder import open_arrays, write_arrays
from matryo.retrieve.vectors.blocks import Blocks, tiles
from matryo.retrieve.vectors.metric import Metric, check_metric

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matryo.nesting import Nesting
    from matryo.retrieve.engines.execute import Engine
    from matryo.retrieve.plan.plan import Plan
    from matryo.retrieve.vectors.types import Codes, Doubles, Floats

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

HEADER = "sketch.json"
FORMAT = 1
"""The version of the folder layout. It grows when an older matryo can no longer read the layout."""

LANES = 16   # rows per tile
FEW = 64   # at most this many remaining rows are read in full at once, without another level
_LARGEST = 512   # the most columns that a level may add: 255 · 16,319 · 512 still fits 32 bits
_STEP = 64   # a level after the first adds a multiple of this many columns
_SAMPLE = 16_384   # rows from which the axes are computed
_QUERIES = 48   # rows that serve as queries when the dims are chosen
_FIRST = (16, 32, 64, 128, 192, 256)   # candidates for the first dim
_NEAR = 10   # the k for which the dims are chosen
_FAR = 1500   # bytes of a sequential scan that take as long as reading one row elsewhere
_TILE = 1 << 19   # numbers per tile of rows that are encoded together
_KEPT = 1 << 25   # rotated numbers that are kept in memory while the steps are not known; more are computed twice


@dataclass(frozen=True, eq=False)
class Level:
    """The codes of one level, and the bounds of what they omit."""

    dim: int
    """The number of coordinates known at this level, including the levels before."""
    codes: Bytes | Codes
    """The coordinates added, [row, column]; at the first level plus 128, in tiles [tile, four columns, row, column]."""
    tails: Floats
    """The norm of each row's coordinates that are not known yet; 0 for the lanes beyond the last row."""
    error: float
    """The largest distance of a row's known coordinates from their codes."""
    length: float
    """The largest norm of a row's codes added here."""


@dataclass(frozen=True, eq=False)
class Sketch(Guide):
    """The sketches of all rows of some blocks, for one metric."""

    kind = "sketch"
    default = True
    joins = True
    threaded = True

    metric: Metric
    axes: Doubles
    """The rotation, [columns of a vector, coordinates]; axes beyond the dim of the vectors are zero."""
    steps: Doubles
    """The value of one unit of a code, per coordinate."""
    levels: tuple[Level, ...]
    offsets: Floats | None
    """−‖x‖² of each row if the metric is L2."""
    exponent: int
    """Rows are scaled by 2⁻ᵉˣᵖᵒⁿᵉⁿᵗ to norms of at most 1, so that no product overflows float32."""
    count: int

    @classmethod
    def of(
        cls, blocks: Blocks, metric: Metric = "cosine", *, dims: Sequence[int] | None = None,
        like: Sketch | None = None, seed: int = 0,
    ) -> Sketch:  # fmt: skip
        """Sketch every row. ``dims`` are the coordinates known at each level, by default chosen on a sample of rows.

        The first must be a multiple of 4, up to 512; each later one adds a multiple of 64, up to 512. With ``like``,
        the dims and the axes are those of another sketch, which saves the time to find them.
        """
        check_metric(metric)
        if like is not None:
            return _fill(blocks, metric, like.axes, like.dims, unit(blocks, metric))
        if dims is not None:
            _check_dims(dims)
        sample = np.random.default_rng(seed).permutation(blocks.count)[:_SAMPLE]
        exponent = unit(blocks, metric)
        rows = _rows(blocks, sample, metric, exponent)
        axes = np.linalg.eigh(rows.T @ rows)[1][:, ::-1]
        chosen = tuple(dims) if dims is not None else _choose(rows @ axes, blocks.count)
        missing = max(0, chosen[-1] - axes.shape[1])
        axes = np.ascontiguousarray(np.pad(axes, ((0, 0), (0, missing)))[:, : chosen[-1]])
        return _fill(blocks, metric, axes, chosen, exponent)

    @property
    def dims(self) -> tuple[int, ...]:
        """The coordinates known at each level."""
        return tuple(level.dim for level in self.levels)

    def write(self, folder: str | Path) -> None:
        """Write a new ``folder``, which appears complete or not at all."""
        levels = [{"dim": level.dim, "error": level.error, "length": level.length} for level in self.levels]
        about = {"metric": self.metric, "levels": levels, "exponent": self.exponent, "count": self.count}
        arrays: dict[str, Any] = {"axes": self.axes, "steps": self.steps}
        for number, level in enumerate(self.levels):
            arrays |= {f"codes-{number}": level.codes, f"tails-{number}": level.tails}
        if self.offsets is not None:
            arrays["offsets"] = self.offsets
        write_arrays(folder, HEADER, FORMAT, about, arrays)

    @classmethod
    def open(cls, folder: str | Path) -> Sketch:
        """Map the files of a folder without reading most of them."""
        about, arrays = open_arrays(folder, HEADER, FORMAT, verify_bytes=VERIFIED_BYTES)
        levels = tuple(
            Level(level["dim"], arrays[f"codes-{i}"], arrays[f"tails-{i}"], level["error"], level["length"])
            for i, level in enumerate(about["levels"])
        )
        fixed = arrays["axes"], arrays["steps"], levels, arrays.get("offsets")
        return cls(about["metric"], *fixed, about["exponent"], about["count"])

    @classmethod
    def options(cls, nesting: Nesting, value: Any) -> dict[str, Any]:  # noqa: ARG003
        """A sketch has no options: the dims of its levels are chosen."""
        return {}

    @classmethod
    def serves(cls, plan: Plan | None, engine: Engine | None) -> bool:
        """Whether the search may be exact, on the default engine, and the core is installed."""
        exact = plan is None or (len(plan.stages) == 1 and plan.stages[0].precision == "full" and plan.probe is plan.ef)
        return exact and engine is None and core() is not None

    def searcher(self, blocks: Blocks, plan: Plan | None, engine: Engine | None) -> Search | None:  # noqa: ARG002
        """Return the certified exact search of ``blocks``; None for a plan at a shorter dim."""
        if plan is not None and plan.dim != blocks.nesting.dim:
            return None
        from matryo.retrieve.guides.sketch.certified import Certified

        if (self.count, len(self.axes)) != (blocks.count, blocks.nesting.dim):
            got = f"a sketch of {self.count} × {len(self.axes)}, {blocks!r}"
            rule = "a sketch must belong to the blocks that are searched"
            raise EmbeddingsError(rule, got=got, cure="build it again")
        certified = Certified(blocks, self)
        return lambda request, k: certified.search(request.queries, k, request.allowed, request.threads, request.bars)


def unit(blocks: Blocks, metric: Metric) -> int:
    """Return the exponent e for which 2⁻ᵉ scales all rows to norms of at most 1; 0 for cosine, which normalises."""
    return 0 if metric == "cosine" else int(np.frexp(blocks.norms[:, -1].max(initial=0))[1]) + 1


def _rows(blocks: Blocks, rows: Any, metric: Metric, exponent: int) -> Doubles:
    vectors = blocks.rows(rows, blocks.nesting.dim).astype(np.float64)
    if exponent:
        vectors = np.ldexp(vectors, -exponent)
    if metric == "cosine":
        vectors /= np.maximum(np.sqrt(_squares(vectors)), np.finfo(np.float64).tiny)[:, None]
    return vectors


def _squares(rows: Doubles) -> Doubles:
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def _fill(blocks: Blocks, metric: Metric, axes: Doubles, dims: tuple[int, ...], exponent: int) -> Sketch:
    count, dim = blocks.count, blocks.nesting.dim
    squares = np.zeros(count)
    parts = list(tiles(count, dim, _TILE))
    kept: list[Doubles | None] = [None] * len(parts)
    keeps = count * dims[-1] <= _KEPT

    def peaks_of(number: int) -> Doubles:
        rows = _rows(blocks, parts[number], metric, exponent)
        squares[parts[number]] = _squares(rows)
        turned = rows @ axes
        if keeps:
            kept[number] = turned
        return np.asarray(np.maximum(turned.max(0, initial=0), -turned.min(0, initial=0)))

    padded = -(-count // LANES) * LANES
    widths = np.diff((0, *dims))
    codes = [np.zeros((padded if i == 0 else count, width), np.int8) for i, width in enumerate(widths)]
    tails = np.zeros((len(dims), padded), np.float32)

    def encode(number: int) -> tuple[Doubles, Doubles]:
        """Write the codes of some rows; return the largest error and the largest length at each level."""
        part, turned = parts[number], kept[number]
        if turned is None:
            turned = _rows(blocks, part, metric, exponent) @ axes
        kept[number] = None
        energy, missed = np.zeros(len(turned)), np.zeros(len(turned))
        errors, lengths = np.zeros(len(dims)), np.zeros(len(dims))
        for i, high in enumerate(dims):
            here = slice(high - widths[i], high)
            known = turned[:, here]
            energy += _squares(known)
            added = np.rint(known / steps[here])
            codes[i][part] = added
            lengths[i] = np.sqrt(_squares(added).max(initial=0))
            added *= steps[here]
            missed += _squares(np.subtract(known, added, out=added))
            # The sums above are exact to about 2⁻⁵⁰ of ‖x‖²: the margins below round up by more.
            rest = np.sqrt(np.maximum(squares[part] - energy, 0)) * (1 + 1e-6)
            tails[i, part] = rest + 1e-6 * np.sqrt(squares[part])
            errors[i] = np.sqrt(missed.max(initial=0)) * (1 + 1e-6)
        return errors, lengths

    with ThreadPoolExecutor(default_threads()) as pool:   # numpy releases the GIL
        peaks = np.max([np.zeros(dims[-1]), *pool.map(peaks_of, range(len(parts)))], axis=0)
        steps = np.where(peaks > 0, peaks, 1.0) / 127
        measured = [(np.zeros(len(dims)), np.zeros(len(dims))), *pool.map(encode, range(len(parts)))]
    errors, lengths = (np.max(each, axis=0) for each in zip(*measured, strict=True))
    first = (codes[0].view(np.uint8) ^ 128).reshape(-1, LANES, dims[0] // 4, 4).transpose(0, 2, 1, 3)
    laid = (np.ascontiguousarray(first), *codes[1:])
    levels = [Level(*level) for level in zip(dims, laid, tails, errors.tolist(), lengths.tolist(), strict=True)]
    offsets = None
    if metric == "l2":
        offsets = np.zeros(padded, np.float32)
        offsets[:count] = -squares
    return Sketch(metric, axes, steps, tuple(levels), offsets, exponent, count)


def _choose(turned: Doubles, count: int) -> tuple[int, ...]:
    """Return the cheapest dims: bytes scanned at the first level, and the share of the sample that its bounds leave."""
    if len(turned) < _QUERIES:
        return (_FIRST[0],)
    sample, queries = turned.astype(np.float32), turned[:_QUERIES].astype(np.float32)
    full = queries @ sample.T

    def left(dim: int) -> float:
        # As in a search: the exact scores of the rows that look best set the bar.
        looks = queries[:, :dim] @ sample[:, :dim].T
        seeds = np.argpartition(looks, -_QUERIES // 2, axis=1)[:, -_QUERIES // 2 :]
        bars = np.partition(np.take_along_axis(full, seeds, 1), -_NEAR, axis=1)[:, -_NEAR, None]
        rest = np.sqrt(np.square(sample[:, dim:]).sum(1))
        return float((looks + rest[:_QUERIES, None] * rest >= bars).mean())

    most = turned.shape[1]
    shares = {dim: left(dim) for dim in _FIRST if dim < most or dim == _FIRST[0]}
    dims = [min(shares, key=lambda dim: dim + _FAR * shares[dim])]
    width = _STEP
    while dims[-1] + width <= most and left(dims[-1]) * count > 4 * FEW:
        dims.append(dims[-1] + width)
        width *= 2
    return tuple(dims)


def _check_dims(dims: Sequence[int]) -> None:
    widths = np.diff((0, *dims))
    good = len(widths) > 0 and 0 < widths[0] <= _LARGEST and widths[0] % 4 == 0
    if not good or any(not 0 < width <= _LARGEST or width % _STEP for width in widths[1:]):
        rule = "the first dim of a sketch must be a multiple of 4, each later one must add a multiple of 64, up to 512"
        raise InputError(rule, got=tuple(dims), cure="(64, 128, 256) suits most vectors")
