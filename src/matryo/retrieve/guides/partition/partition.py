"""Partition guide (IVF): the rows in partitions of near ones, of which a query visits only the nearest.

k-means on the first ``dim`` columns divides the rows. Inside a partition these columns are stored in int8, in tiles of
16 rows, the layout in which processors multiply bytes. Further columns, up to ``long``, are stored in int8 row by row.
A query scans the tiles of the nearest partitions. The later stages of a plan re-rank the best rows, in int8 and in the
end with the stored vectors.

The number of partitions visited (nprobe) depends on the query: those whose means score within a gap of the best. The
gap is learned from the rows, such that queries like them visit the share ``probe`` of all rows on average, and none
visits more than three times that share.

>>> from matryo.nesting import Nesting
>>> from matryo.retrieve.vectors.blocks import Blocks
>>> vectors = np.random.default_rng(0).standard_normal((300, 8)).astype("f4")
>>> partition = Partition.of(Blocks.of(vectors, Nesting([4, 8])), dim=4, lists=10)
>>> partition.dim, partition.long, len(partition.lists), int(partition.lists[:, 1].sum())
(4, 8, 10, 300)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.compiled import core, require_core
from matryo.errors import EmbeddingsError, InputError
from matryo.mapped import map_again
from matryo.retrieve.guides.guide import VERIFIED_BYTES, Guide, Search
from matryo.retrieve.guides.partition.build import LANES, NOBODY, Build
from matryo.retrieve.guides.partition.search import PartitionSearch
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.vectors.array_folder import open_arrays, write_arrays
from matryo.retrieve.vectors.metric import Metric, check_metric

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matryo.nesting import Nesting
    from matryo.retrieve.engines.execute import Engine
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.types import Array, Codes, Floats, Indices

HEADER = "partition.json"
FORMAT = 1
"""The version of the folder layout. It grows when an older matryo can no longer read the layout."""

_TILES = 64, 128   # the fewest and the most columns of a tile by default: one or two cache lines per row
_SHARE = 16   # between these limits, a tile has this fraction of all columns: long rows gain most from a good shortlist
_LISTS = 4   # partitions by default: this times the square root of the number of rows
_PROBES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15)   # shares of the rows that the planner tries
_NUMBERS = ("metric", "dim", "long", "count")   # the fields that are not arrays


def tile_dim(nesting: Nesting) -> int:
    """Return the dim of the nesting whose columns are stored in tiles by default.

    >>> from matryo.nesting import Nesting
    >>> [tile_dim(Nesting.halving(dim)) for dim in (32, 512, 2048)]
    [32, 64, 128]
    """
    most = min(max(nesting.dim // _SHARE, _TILES[0]), _TILES[1])
    return max((dim for dim in nesting.dims if dim <= most), default=nesting.dims[0])


@dataclass(frozen=True, eq=False)
class Partition(Guide):
    """The rows of some blocks in partitions, for one metric.

    The place of a row is ``16 · tile + lane``. The last tile of a partition may have empty places, and one empty tile
    follows the last partition.
    """

    kind = "partition"
    plan_field = "probe"
    default = True
    threaded = True

    metric: Metric
    dim: int
    """The number of columns of the tiles, and of the means."""
    long: int
    """The number of columns in int8, including those of the tiles."""
    count: int
    """The number of rows."""
    lists: Indices
    """The first tile of each partition and the number of its rows, [partitions, 2]."""
    rows: Array
    """The row at each place, uint32 [tiles, 16]."""
    tiles: Array
    """Codes of the first columns plus 128, uint8 [tiles, four columns · row · column]."""
    codes: Codes
    """Codes of further columns, [places, columns], padded with 0 to whole cache lines; empty if there are none."""
    adjust: Floats
    """Turns a product into a score, [tiles, 16]: 1 / ‖x‖ of the codes for cosine, −‖x‖² for L2; NaN at empty places."""
    errors: Floats
    """The largest distance of a row from its codes, [tiles, 16]; both are divided by the row's norm for cosine."""
    means: Array
    """The means of the partitions, in the layout of the tiles."""
    means_adjust: Floats
    columns: Floats
    """The step of each column's codes and the middle of its range, [2, long]."""
    gaps: Floats
    """Shares of the rows, and how far the mean of a visited partition may score below the best, [2, shares]."""

    @classmethod
    def options(cls, nesting: Nesting, value: Any) -> dict[str, Any]:
        """Return the dim of the tiles; True selects :func:`tile_dim`."""
        return super().options(nesting, tile_dim(nesting) if value is True else value)

    @classmethod
    def of(
        cls, blocks: Blocks, metric: Metric = "cosine", *, dim: int | None = None, long: int | None = None,
        lists: int | None = None, seed: int = 0, progress: bool = False,
    ) -> Partition:
        """Divide the rows. ``dim`` and ``long`` are dims of the nesting; ``lists`` is the number of partitions.

        By default, up to 64 columns are in tiles (one cache line per row), or up to 128 of 2048 and more. All columns
        are also stored in int8, a quarter of the bytes of float32, so that few rows are read in full. There are
        4 · √count partitions.
        """
        check_metric(metric)
        dim = tile_dim(blocks.nesting) if dim is None else dim
        long = blocks.nesting.dim if long is None else long
        if blocks.level(long) < blocks.level(dim):
            raise InputError("long must be at least dim", got=f"long={long}, dim={dim}", cure=f"pass long={dim}")
        lists = max(1, min(round(_LISTS * blocks.count**0.5), blocks.count)) if lists is None else lists
        most = max(blocks.count, 1)
        if not isinstance(lists, int | np.integer) or isinstance(lists, bool) or not 1 <= lists <= most:
            rule = f"lists must be an integer in 1 … {most}, the number of rows"
            raise InputError(rule, got=repr(lists), cure="omit it")
        build = Build(blocks, metric, dim, long, int(lists), np.random.default_rng(seed))
        arrays: dict[str, Any] = build.arrays(progress)
        return cls(metric, dim, long, blocks.count, **arrays)

    @property
    def nbytes(self) -> int:
        """The size of all arrays."""
        return sum(array.nbytes for array in self.arrays().values())

    def write(self, folder: str | Path) -> None:
        """Write a new ``folder``, which appears complete or not at all: one ``.npy`` per array, and their checksums."""
        about = {name: getattr(self, name) for name in _NUMBERS}
        write_arrays(folder, HEADER, FORMAT, about, self.arrays())

    @classmethod
    def open(cls, folder: str | Path) -> Partition:
        """Map the files of a folder without reading most of them."""
        about, arrays = open_arrays(folder, HEADER, FORMAT, verify_bytes=VERIFIED_BYTES)
        parts: dict[str, Any] = {**about, **arrays, "codes": map_again(arrays["codes"])}
        opened = cls(**parts)
        ends = opened.lists[:, 0] + -(-opened.lists[:, 1] // LANES)
        empty = opened.rows == NOBODY
        inside = (opened.lists >= 0).all() and (ends < len(opened.tiles)).all()
        if not inside or not (empty | (opened.rows < opened.count)).all():
            raise EmbeddingsError(f"{folder} is damaged", got="rows or tiles out of range", cure="build it again")
        if not np.isnan(opened.adjust[empty]).all():
            raise EmbeddingsError(f"{folder} is damaged", got="rows in empty places", cure="build it again")
        return opened

    @classmethod
    def openings(cls, options: Mapping[str, Any]) -> Sequence[Plan]:
        """Return scans of the tiles: of all partitions, and of several shares."""
        return [Plan((Stage(options["dim"], 1, "int8"),), probe=probe) for probe in (None, *_PROBES)]

    @classmethod
    def serves(cls, plan: Plan | None, engine: Engine | None) -> bool:
        """Whether ``plan`` may scan tiles: those of the nearest partitions (``probe``), or all, as an int8 scan.

        Without the compiled core, plans scan the vectors instead.
        """
        if engine is not None or plan is None or plan.ef is not None or core() is None:
            return False
        return plan.probe is not None or plan.stages[0].precision == "int8"

    def searcher(self, blocks: Blocks, plan: Plan | None, engine: Engine | None) -> Search | None:  # noqa: ARG002
        """Return a search of the tiles, unless the plan has no ``probe`` and does not start with an int8 scan of them.

        A plan with ``probe`` that the partitions cannot follow raises.
        """
        assert plan is not None   # see serves
        first = plan.stages[0]
        if plan.probe is None and (first.precision != "int8" or first.dim != self.dim):
            return None
        prepared = cache(partial(PartitionSearch, blocks, self, plan))
        return lambda request, k: prepared(k)(request.queries, request.allowed, request.threads)

    @cached_property
    def compiled(self) -> Any:
        """The arrays as the core sees them: a ``matryo._core.Partition``."""
        arrays = {name: array for name, array in self.arrays().items() if name != "gaps"}
        return require_core().Partition(dim=self.dim, coded=self.long, **arrays)

    def check_fits(self, blocks: Blocks) -> None:
        """Raise unless these can be the partitions of ``blocks``."""
        if blocks.count != self.count or not {self.dim, self.long} <= set(blocks.nesting.dims):
            raise EmbeddingsError(
                "partitions must belong to the blocks that are searched",
                got=f"partitions of {self.count} rows at {self.dim} and {self.long} dims, {blocks!r}",
                cure="build them again with Partition.of(blocks)",
            )

    def gap(self, probe: float | None) -> float:
        """How far a partition's mean may score below the best, to visit the share ``probe`` of the rows on average."""
        return float("inf") if probe is None else float(np.interp(probe, *self.gaps))

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _NUMBERS}
