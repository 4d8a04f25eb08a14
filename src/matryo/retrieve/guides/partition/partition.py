"""Partition guide (IVF): the rows in partitions of near ones, of which a query visits only the nearest.

k-means divides the rows. Inside a partition, 4-bit codes of the rows are stored in tiles of 16 rows, the layout in
which processors multiply them. They are codes of the first columns, or of the first principal coordinates: what suits
the rows is chosen on a sample (:mod:`matryo.retrieve.guides.partition.layout`). All columns are also stored in 8 bits,
row by row. A query scans the tiles of the nearest partitions. The later stages of a plan re-rank the best rows, by the
8-bit codes and in the end by the stored vectors.

A row may be in two partitions, so that a query finds it in either. The number of partitions visited (nprobe) depends on
the query, see :mod:`matryo.retrieve.guides.partition.visits`; the share ``probe`` of a plan is an average.

>>> from matryo.nesting import Nesting
>>> from matryo.retrieve.vectors.blocks import Blocks
>>> vectors = np.random.default_rng(0).standard_normal((300, 8)).astype("f4")
>>> partition = Partition.of(Blocks.of(vectors, Nesting([4, 8])), dim=4, lists=10, copies=1)
>>> partition.dim, partition.long, len(partition.lists), int(partition.lists[:, 1].sum())
(4, 8, 10, 300)
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict, dataclass, fields
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.compiled import core, require_core
from matryo.errors import EmbeddingsError, InputError
from matryo.mapped import map_again
from matryo.retrieve.guides.guide import VERIFIED_BYTES, Guide, Search
from matryo.retrieve.guides.partition.build import NOBODY, Build
from matryo.retrieve.guides.partition.codes import LANES
from matryo.retrieve.guides.partition.layout import LISTS, choose_layout
from matryo.retrieve.guides.partition.means import Means
from matryo.retrieve.guides.partition.search import PartitionSearch
from matryo.retrieve.guides.partition.space import Space
from matryo.retrieve.plan.plan import Plan, Stage, check_count
from matryo.retrieve.vectors.array_folder import open_arrays, write_arrays
from matryo.retrieve.vectors.metric import Metric, check_metric

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.nesting import Nesting
    from matryo.retrieve.engines.execute import Engine
    from matryo.retrieve.engines.request import Request
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.types import Array, Bools, Codes, Doubles, Floats, Indices

HEADER = "partition.json"
FORMAT = 4
"""The version of the folder layout. It grows when the layout changes; guides of another version are built again."""

MOST_COLUMNS = 8192
"""The most columns of a tile (``kMostNibbles`` in ``src/core/codes.h``)."""

_MANY = 16   # a mask that excludes more than one row in so many is read as a whole
_NUMBERS = ("metric", "dim", "long", "count", "scale", "distance", "spread")   # the fields that are not arrays
_PYTHON = ("centers", "budgets", "wider")   # arrays that searches do not read


@dataclass(frozen=True, eq=False)
class Partition(Guide):
    """The rows of some blocks in partitions, for one metric.

    The slot of a row is its position in the order of the partitions. A place is ``16 · tile + lane``; the places of a
    partition hold the slots of its own rows and of the copies of others. The last tile of a partition may have empty
    places, and one empty tile follows the last partition.
    """

    kind = "partition"
    plan_field = "probe"
    default = True
    joins = True
    threaded = True

    metric: Metric
    dim: int
    """The number of columns of the tiles, and of the means."""
    long: int
    """The number of columns in 8 bits."""
    count: int
    """The number of rows."""
    scale: float
    """The unit of the differences between scores of means."""
    distance: float
    """The mean squared distance of new rows of this kind from the means of their homes."""
    spread: float
    """The typical error of a score by 4-bit codes for inner products, of a query and a row of norm 1; otherwise 0."""
    lists: Indices
    """The first tile of each partition and the number of its places, [partitions, 2]."""
    slots: Array
    """The slot at each place, uint32 [tiles, 16]."""
    tiles: Array
    """4-bit codes, uint8 [tiles, eight columns · row · column]."""
    adjust: Floats
    """Turns a product into a score, [tiles, 16]; NaN at empty places.

    1 / ‖codes‖ for cosine, −‖codes‖² for L2, and for inner products, where codes are those of rows of norm 1,
    ‖row‖ / ‖codes‖.
    """
    means: Array
    """The means of the partitions, in the layout of the tiles."""
    means_adjust: Floats
    reach: Floats
    """Added to the scores of the means for inner products, times the norm of the query, [tiles of means, 16].

    See :mod:`matryo.retrieve.guides.partition.optimism`. Empty for other metrics.
    """
    centers: Floats
    """The means in full precision, [partitions, dim]: rows that join later are placed by them."""
    axes: Floats
    """The rotation to the coordinates of the tiles, [columns, dim]; empty if these are the first columns."""
    tile_columns: Floats
    """The step of each column's 4-bit codes and the lowest value, [2, dim]."""
    rows: Array
    """The row of each slot, uint32 [count]."""
    homes: Array
    """The partition of each slot, uint32 [count]; empty if no row has a copy."""
    codes: Codes
    """8-bit codes, [count, columns], padded with 0 to whole cache lines."""
    errors: Floats
    """The largest distance of a row from its 8-bit codes, [count]; both are divided by the row's norm, but for L2."""
    columns: Floats
    """The step of each column's 8-bit codes and the middle of its range, [2, long]."""
    budgets: Floats
    """Shares of the places, and the budget with which a query visits each on average, [2, shares]."""
    wider: Floats
    """Shares of the rows that a filter may leave, in decreasing order, and factors on the budget, [2, shares]."""

    @classmethod
    def options(cls, nesting: Nesting, value: Any) -> dict[str, Any]:
        """Return the dim of the tiles; True chooses one."""
        if value is True:
            return {}
        check_count("partition", value, example=64)
        most = min(nesting.dim, MOST_COLUMNS)
        if value > most:
            rule = f"partition must be at most {most}, the columns of a row or of a tile"
            raise InputError(rule, got=value, cure="partition=True chooses a dim")
        return {"dim": int(value)}

    @classmethod
    def settled(cls, options: dict[str, Any], blocks: Blocks, metric: Metric) -> dict[str, Any]:
        """Return the options with a layout that suits the vectors."""
        if {"dim", "rotated", "copies"} <= options.keys():
            return options
        layout, _ = choose_layout(blocks, metric, np.random.default_rng(0), **options)
        return asdict(layout)

    @classmethod
    def of(
        cls, blocks: Blocks, metric: Metric = "cosine", *, dim: int | None = None, rotated: bool | None = None,
        copies: int | None = None, long: int | None = None, lists: int | None = None, seed: int = 0,
        progress: bool = False,
    ) -> Partition:  # fmt: skip
        """Divide the rows. By default, the layout is chosen on a sample of them, and there are 4 · √count partitions.

        ``dim`` columns are in tiles, ``rotated`` to principal axes or not, in ``copies`` partitions per row (1 or 2).
        The columns up to ``long``, a dim of the nesting, are also stored in 8 bits, by default all.
        """
        check_metric(metric)
        rng = np.random.default_rng(seed)
        long = blocks.nesting.dim if long is None else long
        blocks.level(long)
        lists = max(1, min(round(LISTS * blocks.count**0.5), blocks.count)) if lists is None else lists
        most = max(blocks.count, 1)
        if not isinstance(lists, int | np.integer) or isinstance(lists, bool) or not 1 <= lists <= most:
            rule = f"lists must be an integer in 1 … {most}, the number of rows"
            raise InputError(rule, got=repr(lists), cure="omit it")
        _check_layout(dim, copies, min(blocks.nesting.dim, MOST_COLUMNS))
        layout, axes = choose_layout(blocks, metric, rng, dim=dim, rotated=rotated, copies=copies)
        space = Space(blocks, metric, axes, layout.dim)
        build = Build(space, long, int(lists), layout.copies if lists > 1 else 1, rng)
        arrays, scale = build.arrays(progress)
        return cls(metric, layout.dim, long, blocks.count, scale, build.distance, build.spread, **arrays)

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
        about, arrays = open_arrays(folder, HEADER, FORMAT, oldest=FORMAT, verify_bytes=VERIFIED_BYTES)
        parts: dict[str, Any] = {**about, **arrays, "codes": map_again(arrays["codes"])}
        opened = cls(**parts)
        ends = opened.lists[:, 0] + -(-opened.lists[:, 1] // LANES)
        empty = opened.slots == NOBODY
        inside = (opened.lists >= 0).all() and (ends < len(opened.tiles)).all()
        exist = (empty | (opened.slots < opened.count)).all() and (opened.rows < opened.count).all()
        if not inside or not exist:
            raise EmbeddingsError(f"{folder} is damaged", got="rows or tiles out of range", cure="build it again")
        if not np.isnan(opened.adjust[empty]).all():
            raise EmbeddingsError(f"{folder} is damaged", got="rows in empty places", cure="build it again")
        return opened

    def opening(self) -> Plan:
        """Return a scan of the tiles."""
        return Plan((Stage(self.dim, 1, "int4"),), probe=1.0)

    def reads(self, plan: Plan, share: float) -> float:
        """Return the bytes of tiles that a search along ``plan`` reads under a filter."""
        probe = 1.0 if plan.probe is None else plan.probe * self.wider_for(share)
        return min(1.0, probe) * self._places * self.dim / 2

    @cached_property
    def _places(self) -> float:
        return float(self.lists[:, 1].sum())

    @classmethod
    def serves(cls, plan: Plan | None, engine: Engine | None) -> bool:
        """Whether ``plan`` visits partitions. Without the compiled core, it scans the vectors instead."""
        return engine is None and plan is not None and plan.probe is not None and core() is not None

    def searcher(self, blocks: Blocks, plan: Plan | None, engine: Engine | None) -> Search:  # noqa: ARG002
        """Return a search of the partitions."""
        assert plan is not None   # see serves
        prepared = cache(partial(PartitionSearch, blocks, self, plan))

        def search(request: Request, k: int) -> tuple[Indices, Doubles]:
            share = 1.0 if request.allowed is None else request.count / max(1, len(request.allowed))
            return prepared(k)(request.queries, request.allowed, request.threads, share, request.tail)

        return search

    @cached_property
    def compiled(self) -> Any:
        """The arrays as the core sees them: a ``matryo._core.Partition``."""
        arrays = {name: array for name, array in self.arrays().items() if name not in _PYTHON}
        return require_core().Partition(dim=self.dim, coded=self.long, spread=self.spread, **arrays)

    @cached_property
    def homes_of(self) -> Means:
        """The means in full precision, prepared to place the rows that join."""
        return Means(self.centers, round_=self.metric == "cosine")

    def check_fits(self, blocks: Blocks) -> None:
        """Raise unless these can be the partitions of ``blocks``."""
        width = blocks.nesting.dim
        if blocks.count != self.count or self.long not in blocks.nesting.dims or len(self.axes) not in (0, width):
            raise EmbeddingsError(
                "partitions must belong to the blocks that are searched",
                got=f"partitions of {self.count} rows with {self.long} columns, {blocks!r}",
                cure="build them again with Partition.of(blocks)",
            )

    def budget(self, probe: float | None) -> float:
        """The budget with which a query visits the share ``probe`` of the places on average; −1 for all."""
        return -1.0 if probe is None or probe >= 1 else float(np.interp(probe, *self.budgets))

    def wider_for(self, share: float) -> float:
        """The factor on the budget under a filter that leaves a ``share`` of the rows."""
        shares, factors = self._wider
        at = bisect_right(shares, share)
        if at in (0, len(shares)):
            return factors[max(0, at - 1)]
        part = (share - shares[at - 1]) / (shares[at] - shares[at - 1])
        return factors[at - 1] + part * (factors[at] - factors[at - 1])

    @cached_property
    def _wider(self) -> tuple[list[float], list[float]]:
        shares, factors = self.wider[:, ::-1].tolist()   # in increasing order
        return shares, factors

    def by_slot(self, mask: Bools) -> Bools:
        """A mask of the rows, and of further rows behind them, in the order of the slots."""
        out = np.flatnonzero(~mask[: self.count])
        if _MANY * len(out) > self.count:
            return np.concatenate([mask[: self.count][self.rows], mask[self.count :]])
        made = np.ones_like(mask)
        made[self._slot_of[out]] = False
        made[self.count :] = mask[self.count :]
        return made

    @cached_property
    def _slot_of(self) -> Indices:
        slots = np.empty(self.count, np.int64)
        slots[self.rows] = np.arange(self.count)
        return slots

    @property
    def copies(self) -> int:
        """The number of partitions that have each row."""
        return 2 if len(self.homes) else 1

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _NUMBERS}


def _check_layout(dim: int | None, copies: int | None, most: int) -> None:
    if dim is not None:
        check_count("dim", dim, example=64)
        if dim > most:
            raise InputError(f"dim must be at most {most}, the columns of a row or of a tile", got=dim, cure="omit it")
    if copies not in (None, 1, 2):
        raise InputError("copies must be 1 or 2", got=repr(copies), cure="omit it")
