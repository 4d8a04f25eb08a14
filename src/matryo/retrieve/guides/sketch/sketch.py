"""A sketch: a few bytes of each row, and how far the row lies from them, so that most rows need not be read.

The rows are turned so that the first axes hold most of their energy (principal axes, which change no inner product),
and the first few coordinates are kept in int8. What the sketch leaves out of a row x is bounded: the coordinates
after the first m have the norm ``tail``, and rounding to codes moved the first m by at most ``error``. So

    q·x ≤ (q's first m)·(codes of x) + ‖q's first m‖ · error + ‖q's other coordinates‖ · tail,

by Cauchy and Schwarz, for every x, from some 64 bytes. A sketch has levels: all rows are scanned at its first dim,
those left are looked at with the columns of the next, and so on. The first level lies in tiles of 16 rows, four
columns of a row side by side, as the processor multiplies bytes; the others lie row by row, to be picked from.

Its arrays are a function of the rows alone, in float64 until they are stored, and rounded upwards where they bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError
from matryo.retrieve.vectors.array_folder import open_arrays, write_arrays
from matryo.retrieve.vectors.metric import Metric, check_metric

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from matryo.retrieve.vectors.blocks import Blocks

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Codes = np.ndarray[Any, np.dtype[np.int8]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["FEW", "HEADER", "Level", "Sketch", "scaled", "unit"]

HEADER = "sketch.json"
FORMAT = 1
"""The version of the folder's layout; it grows when an older matryo could no longer read it."""

LANES = 16   # rows of a tile
FEW = 64   # rows that are read in full rather than looked at once more
_LARGEST = 512   # columns a level may add: 255 · 16,319 · 512 still fits 32 bits
_STEP = 64   # columns of a level after the first are a multiple of this
_TILE = 4 << 20   # numbers turned at a time
_SAMPLE = 16_384   # rows the axes are found on
_ASKED = 48   # rows that the choice of dims is tried with
_FIRST = (16, 32, 64, 128, 192, 256)   # first dims to choose from
_NEAR = 10   # neighbours that the choice is made for
_FAR = 1500   # bytes read in order in the time that a row picked from afar takes


@dataclass(frozen=True, eq=False)
class Level:
    """What one level knows of each row, and what bounds the rest."""

    dim: int
    """How many coordinates are known at this level and those before."""
    codes: Bytes | Codes
    """The coordinates added, [row, column]; at the first level plus 128, in tiles [tile, four columns, row, column]."""
    tails: Floats
    """The norm of each row's coordinates that are not known yet; the tiles' lanes beyond the last row have 0."""
    error: float
    """The largest distance of a row's known coordinates from their codes."""
    length: float
    """The largest norm of a row's codes added here."""


@dataclass(frozen=True, eq=False)
class Sketch:
    """The sketches of all rows of some blocks, for one metric."""

    metric: Metric
    axes: Doubles
    """[columns of a vector, coordinates]; axes beyond the vectors' dim are zero."""
    steps: Doubles
    """What one unit of a code is worth, a coordinate."""
    levels: tuple[Level, ...]
    offsets: Floats | None
    """−‖x‖² of each row where the metric is L2."""
    exponent: int
    """Rows are sketched as 2⁻ᵉˣᵖᵒⁿᵉⁿᵗ of themselves, none longer than 1, so that float32 holds every product."""
    count: int

    @classmethod
    def of(
        cls, blocks: Blocks, metric: Metric = "cosine", *, dims: Sequence[int] | None = None, seed: int = 0
    ) -> Sketch:
        """Sketch every row. ``dims`` are the coordinates known at each level, chosen on a sample of rows by default.

        The first must be a multiple of 4, up to 512; each later one adds a multiple of 64, up to 512.
        """
        check_metric(metric)
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

    @property
    def nbytes(self) -> int:
        """Of the arrays that have a row a vector."""
        held = sum(level.codes.nbytes + level.tails.nbytes for level in self.levels)
        return held + (0 if self.offsets is None else self.offsets.nbytes)

    def write(self, folder: str | Path) -> None:
        """Write a new ``folder``, which appears whole or not at all."""
        levels = [{"dim": one.dim, "error": one.error, "length": one.length} for one in self.levels]
        about = {"metric": self.metric, "levels": levels, "exponent": self.exponent, "count": self.count}
        arrays: dict[str, Any] = {"axes": self.axes, "steps": self.steps}
        for number, level in enumerate(self.levels):
            arrays |= {f"codes-{number}": level.codes, f"tails-{number}": level.tails}
        if self.offsets is not None:
            arrays["offsets"] = self.offsets
        write_arrays(folder, HEADER, FORMAT, about, arrays)

    @classmethod
    def open(cls, folder: str | Path) -> Sketch:
        """Map a folder's files without reading them."""
        about, arrays = open_arrays(folder, HEADER, FORMAT)
        levels = tuple(
            Level(one["dim"], arrays[f"codes-{i}"], arrays[f"tails-{i}"], one["error"], one["length"])
            for i, one in enumerate(about["levels"])
        )
        fixed = arrays["axes"], arrays["steps"], levels, arrays.get("offsets")
        return cls(about["metric"], *fixed, about["exponent"], about["count"])


def scaled(queries: Doubles, metric: Metric, exponent: int) -> tuple[Doubles, Indices]:
    """Queries [n, d] as they are sketched, and the power of two that each was divided by.

    That is one of its own, or for L2 the ``exponent`` of the rows. For the cosine they are of length 1.
    """
    norms = np.sqrt(np.square(queries).sum(1))
    exponents = np.full(len(queries), exponent) if metric == "l2" else np.frexp(norms)[1].astype(np.int64)
    vectors = np.ldexp(queries, -exponents[:, None])
    if metric == "cosine":
        vectors /= np.sqrt(np.square(vectors).sum(1, keepdims=True))
    return vectors, exponents


def unit(blocks: Blocks, metric: Metric) -> int:
    """The power of two that rows are divided by, so that none is longer than 1; the cosine divides by norms instead."""
    return 0 if metric == "cosine" else int(np.frexp(blocks.norms[:, -1].max(initial=0))[1]) + 1


def _rows(blocks: Blocks, rows: Any, metric: Metric, exponent: int) -> Doubles:
    found = np.ldexp(blocks.rows(rows, blocks.nesting.dim).astype(np.float64), -exponent)
    if metric == "cosine":
        found /= np.maximum(np.sqrt(np.square(found).sum(1, keepdims=True)), np.finfo(np.float64).tiny)
    return found


def _tiles(count: int, dim: int) -> Iterator[slice]:
    step = max(1, _TILE // dim)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _fill(blocks: Blocks, metric: Metric, axes: Doubles, dims: tuple[int, ...], exponent: int) -> Sketch:
    count, dim = blocks.count, blocks.nesting.dim
    peaks, squares = np.zeros(dims[-1]), np.zeros(count)
    for part in _tiles(count, dim):
        rows = _rows(blocks, part, metric, exponent)
        squares[part] = np.square(rows).sum(1)
        peaks = np.maximum(peaks, np.abs(rows @ axes).max(0, initial=0))
    steps = np.where(peaks > 0, peaks, 1.0) / 127
    padded = -(-count // LANES) * LANES
    widths = np.diff((0, *dims))
    codes = [np.zeros((padded if i == 0 else count, width), np.int8) for i, width in enumerate(widths)]
    tails = np.zeros((len(dims), padded), np.float32)
    errors, lengths = np.zeros(len(dims)), np.zeros(len(dims))
    for part in _tiles(count, dim):
        turned = _rows(blocks, part, metric, exponent) @ axes
        rounded = np.rint(turned / steps)
        missed = np.cumsum(np.square(turned - rounded * steps), axis=1)
        held = np.cumsum(np.square(turned), axis=1)
        for i, high in enumerate(dims):
            added = rounded[:, high - widths[i] : high]
            codes[i][part] = added
            # The sums above are right to some 2⁻⁵⁰ of ‖x‖²: its root and float32 are rounded up by more.
            rest = np.sqrt(np.maximum(squares[part] - held[:, high - 1], 0)) * (1 + 1e-6)
            tails[i, part] = rest + 1e-6 * np.sqrt(squares[part])
            errors[i] = max(errors[i], np.sqrt(missed[:, high - 1].max(initial=0)) * (1 + 1e-6))
            lengths[i] = max(lengths[i], np.sqrt(np.square(added).sum(1).max(initial=0)))
    first = (codes[0].view(np.uint8) ^ 128).reshape(-1, LANES, dims[0] // 4, 4).transpose(0, 2, 1, 3)
    laid = (np.ascontiguousarray(first), *codes[1:])
    made = [Level(*level) for level in zip(dims, laid, tails, errors.tolist(), lengths.tolist(), strict=True)]
    offsets = None
    if metric == "l2":
        offsets = np.zeros(padded, np.float32)
        offsets[:count] = -squares
    return Sketch(metric, axes, steps, tuple(made), offsets, exponent, count)


def _choose(turned: Doubles, count: int) -> tuple[int, ...]:
    """The dims that leave least to do: bytes scanned at the first level, and what its bounds leave of the sample."""
    if len(turned) < _ASKED:
        return (_FIRST[0],)
    sample, asked = turned.astype(np.float32), turned[:_ASKED].astype(np.float32)
    full = asked @ sample.T

    def left(dim: int) -> float:
        # As a search does it: what looks best sets the bar.
        looks = asked[:, :dim] @ sample[:, :dim].T
        seeds = np.argpartition(looks, -_ASKED // 2, axis=1)[:, -_ASKED // 2 :]
        bars = np.partition(np.take_along_axis(full, seeds, 1), -_NEAR, axis=1)[:, -_NEAR, None]
        rest = np.sqrt(np.square(sample[:, dim:]).sum(1))
        return float((looks + rest[:_ASKED, None] * rest >= bars).mean())

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
        raise InputError(
            "a sketch's first dim must be a multiple of 4, and each later one add a multiple of 64, none more than 512",
            got=tuple(dims),
            cure="(64, 128, 256) suits most vectors",
        )
