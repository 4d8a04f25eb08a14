"""Rows in partitions of near ones, so that a query looks at few of them; and a plan's search through these.

k-means on the first ``dim`` columns divides the rows. Inside a partition these columns lie in int8, in tiles of 16
rows, as the processor multiplies bytes; further ones, up to ``long``, lie row by row beside. A query visits the nearest
partitions, scans their tiles, and goes on with what looks best: a plan's later stages in int8, and in the end the
vectors as they are stored.

How many partitions are visited follows the query: those whose means are about as near as the best. How near is learned
from the rows, so that queries like them visit the share ``probe`` of all rows in the mean, and none three times that.

>>> from matryo.nesting import Nesting
>>> vectors = np.random.default_rng(0).standard_normal((300, 8)).astype("f4")
>>> blocks = Blocks.of(vectors, Nesting([4, 8]))
>>> partition = Partition.of(blocks, dim=4, lists=10)
>>> partition.dim, partition.long, len(partition.lists), int(partition.lists[:, 1].sum())
(4, 8, 10, 300)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError, InputError, MissingExtra
from matryo.retrieve.guides.partition.build import LANES, NOBODY, Build
from matryo.retrieve.guides.partition.steps import check_plan, steps_of
from matryo.retrieve.vectors.array_folder import open_arrays, picked, verify_arrays, write_arrays
from matryo.retrieve.vectors.blocks import Blocks, checked_norms
from matryo.retrieve.vectors.metric import METRICS, Metric, check_metric
from matryo.retrieve.vectors.queries import as_mask, as_queries, check_not_zero

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.nesting import Nesting
    from matryo.retrieve.plan.plan import Plan

    Array = np.ndarray[Any, np.dtype[Any]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Codes = np.ndarray[Any, np.dtype[np.int8]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["HEADER", "Partition", "PartitionSearch", "tile_dim"]

HEADER = "partition.json"
FORMAT = 1
"""The version of the folder's layout; it grows when an older matryo could no longer read it."""

_TILES = 64, 128   # the fewest and the most columns of the tiles by default, one or two cache lines a row
_SHARE = 16   # between them, this part of all columns: the longer the rows, the more it pays to pick few of them
_MOST = 3   # times the share that is visited in the mean, a query may visit
_LISTS = 4   # partitions by default, times the root of the number of rows


def tile_dim(nesting: Nesting) -> int:
    """The dim of the nesting whose columns lie in tiles by default.

    >>> from matryo.nesting import Nesting
    >>> [tile_dim(Nesting.halving(dim)) for dim in (32, 512, 2048)]
    [32, 64, 128]
    """
    most = min(max(nesting.dim // _SHARE, _TILES[0]), _TILES[1])
    return max((dim for dim in nesting.dims if dim <= most), default=nesting.dims[0])


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of some blocks in partitions, for one metric.

    A place is where a row lies here: number ``16 · tile + lane``. A partition's last tile may have places of nobody,
    and one tile of nobody follows the last.
    """

    metric: Metric
    dim: int
    """Columns of the tiles, and of the means."""
    long: int
    """Columns in int8, those of the tiles among them."""
    count: int
    """How many rows there are."""
    lists: Indices
    """The first tile of each partition and the number of its rows, [partitions, 2]."""
    rows: Array
    """The row at each place, uint32 [tiles, 16]."""
    tiles: Array
    """Codes of the first columns plus 128, uint8 [tiles, four columns · row · column]."""
    codes: Codes
    """Codes of further columns, [places, columns], filled up with 0 to whole cache lines; none if there are none."""
    adjust: Floats
    """What makes a score of a product, [tiles, 16]: 1 / ‖x‖ of codes for the cosine, −‖x‖² for L2; NaN for nobody."""
    errors: Floats
    """How far a row is from its codes, at most, [tiles, 16]; both are divided by the row's norm for the cosine."""
    means: Array
    """Like the tiles."""
    means_adjust: Floats
    columns: Floats
    """The step of each column's codes and the middle of its range, [2, long]."""
    gaps: Floats
    """Shares of the rows, and how far the mean of a partition may be below the best, [2, shares]."""

    @classmethod
    def of(
        cls,
        blocks: Blocks,
        metric: Metric = "cosine",
        *,
        dim: int | None = None,
        long: int | None = None,
        lists: int | None = None,
        seed: int = 0,
        progress: bool = False,
    ) -> Partition:
        """Divide the rows. ``dim`` and ``long`` are dims of the nesting; ``lists`` is the number of partitions.

        By default 64 columns or fewer lie in tiles, which is one cache line a row, or up to 128 of 2048 and more; all
        are held in int8, a quarter of the bytes of float32, so that few rows are read in full; and there are
        4 · √count partitions.
        """
        check_metric(metric)
        dim = tile_dim(blocks.nesting) if dim is None else dim
        long = blocks.nesting.dim if long is None else long
        if blocks.level(long) < blocks.level(dim):
            raise InputError("long must be at least dim", got=f"long={long}, dim={dim}", cure="tiles are held in int8")
        lists = max(1, min(round(_LISTS * blocks.count**0.5), blocks.count)) if lists is None else lists
        if not isinstance(lists, int | np.integer) or isinstance(lists, bool) or not 1 <= lists <= max(blocks.count, 1):
            raise InputError("lists must be a number from 1 to that of rows", got=repr(lists), cure="leave it out")
        build = Build(blocks, metric, dim, long, int(lists), np.random.default_rng(seed))
        arrays: dict[str, Any] = build.arrays(progress)
        return cls(metric, dim, long, blocks.count, **arrays)

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in self._arrays().values())

    def write(self, folder: str | Path) -> None:
        """Write a new ``folder``, which appears whole or not at all: a ``.npy`` an array, and a header of checksums."""
        about = {name: getattr(self, name) for name in _NUMBERS}
        write_arrays(folder, HEADER, FORMAT, about, self._arrays())

    @classmethod
    def open(cls, folder: str | Path, blocks: Blocks | None = None) -> Partition:
        """Map a folder's files without reading most of them; :meth:`verify` reads every byte.

        Raises where they are not of ``blocks``, if these are given.
        """
        about, arrays = open_arrays(folder, HEADER, FORMAT)
        held: dict[str, Any] = {**about, **arrays, "codes": picked(arrays["codes"])}
        made = cls(**held)
        # Compiled loops go where these point to.
        ends = made.lists[:, 0] + -(-made.lists[:, 1] // LANES)
        rows = made.rows[made.rows != NOBODY]
        if (made.lists < 0).any() or (ends >= len(made.tiles)).any() or (rows >= made.count).any():
            found = "rows or tiles that are not there"
            raise EmbeddingsError(f"{folder} is damaged", got=found, cure="build the partitions anew")
        if blocks is not None:
            made.check_fits(blocks)
        return made

    @staticmethod
    def verify(folder: str | Path) -> None:
        """Read every byte of a folder and raise, naming the file, where a checksum differs."""
        verify_arrays(folder, HEADER)

    def check_fits(self, blocks: Blocks) -> None:
        """Raise unless these may be partitions of ``blocks``."""
        if blocks.count != self.count or not {self.dim, self.long} <= set(blocks.nesting.dims):
            raise EmbeddingsError(
                "partitions must be of the blocks that are searched",
                got=f"partitions of {self.count} rows at {self.dim} and {self.long} dims, {blocks!r}",
                cure="build them anew with Partition.of(blocks)",
            )

    def gap(self, probe: float | None) -> float:
        """How far the mean of a partition may be below the best, for the share ``probe`` to be visited in the mean."""
        return float("inf") if probe is None else float(np.interp(probe, *self.gaps))

    def _arrays(self) -> dict[str, Array]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _NUMBERS}


_NUMBERS = ("metric", "dim", "long", "count")


class PartitionSearch:
    """A plan on partitions for one k: all is checked and looked up once, so that a query costs its own work alone.

    Any number of threads may search at a time.
    """

    def __init__(self, blocks: Blocks, partition: Partition, plan: Plan, k: int) -> None:
        partition.check_fits(blocks)
        plan = plan.for_k(k)
        plan.check_fits(blocks.nesting)
        check_plan(plan, partition)
        self._kernels = _kernels()
        self._k, self._metric, self._nesting, self._count = k, partition.metric, blocks.nesting, blocks.count
        self._stages, self._margins = steps_of(plan, blocks, partition)
        self._everyone = np.empty(0, np.bool_)
        # The machine has addresses only: what lies there is held here.
        stored = zip(blocks.picked, blocks.nesting.blocks, strict=True)
        whole = [(block.ctypes.data, *columns) for block, columns in stored]
        self._tables = np.array(whole, np.int64), np.array(blocks.nesting.dims, np.int64)
        self._held = blocks.picked, blocks.norms, partition
        self._machine = self._assembled(blocks, partition, plan)

    def __call__(self, queries: Any, allowed: Any = None) -> tuple[Indices, Floats]:
        """The best k rows of each of the ``queries`` [n, d], or of one [d], and their scores; both [n, k].

        Nearest first; of equal scores the smaller row. Scores are those of the metric at the plan's last dim, of the
        vectors as they are stored. ``allowed`` is a mask of the rows that may be found, among those of the partitions
        visited. Where there are fewer than k, the rest has row −1 and score −∞.
        """
        asked = np.asarray(queries)
        asked = as_queries(asked[None] if asked.ndim == 1 else asked, self._nesting.dim)
        if asked.dtype != np.float32 or not asked.flags.c_contiguous:
            with np.errstate(over="ignore"):   # told by the norms, with the row
                asked = np.ascontiguousarray(asked, np.float32)
        mask = as_mask(allowed, self._count) if self._count else None
        mask = self._everyone if mask is None else np.ascontiguousarray(mask)   # an empty one allows all
        rows, scores = np.empty((len(asked), self._k), np.int64), np.empty((len(asked), self._k), np.float32)
        bad = self._kernels.search(self._machine, self._stages, self._margins, asked, mask, rows, scores)
        if bad >= 0:
            norms = checked_norms(asked[bad : bad + 1], self._nesting, "queries", bad)
            check_not_zero(norms[:, -1:], bad)
        return rows, scores

    def _assembled(self, blocks: Blocks, partition: Partition, plan: Plan) -> Indices:
        lists = len(partition.lists)
        everywhere = plan.probe in (None, 1) or not blocks.count
        share = min(1.0, _MOST * (plan.probe or 1.0))
        numbers = {
            "metric": METRICS.index(partition.metric),
            "width": blocks.nesting.dim,
            "dim": partition.dim,
            "long": partition.long,
            "fours": partition.tiles.shape[1] // (4 * LANES),
            "list_count": lists,
            "tile_count": len(partition.tiles),
            "mean_tiles": len(partition.means),
            "wanted": -1 if everywhere else max(1, round(share * blocks.count)),
            # About twice as many partitions as hold that share: sizes differ.
            "most": min(lists, int(2 * share * lists) + 16),
            "k": self._k,
            "stride": partition.codes.shape[1],
            "levels": len(blocks.nesting),
            "block_count": len(blocks.full),
            "count": blocks.count,
            "half": int(blocks.dtype == "float16"),
        }
        arrays = {**partition._arrays(), "norms": blocks.norms, "blocks": self._tables[0], "dims": self._tables[1]}
        numbers |= {name: array.ctypes.data for name, array in arrays.items()}
        return np.array([numbers[name] for name in self._kernels.FIELDS], np.int64)


def _kernels() -> Any:
    with MissingExtra.unless_installed("numba", "retrieve"):
        from matryo.retrieve.guides.partition import kernels
    return kernels
