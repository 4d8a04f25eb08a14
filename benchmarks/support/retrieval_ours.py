"""matryo as engines to compare with other libraries: plans through partitions, plain scans, and exact search."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from matryo import Index, Plan
from matryo.retrieve import Blocks, Stage, execute
from matryo.retrieve.engines.compiled import best_engine
from matryo.retrieve.guides.partition import Partition, PartitionSearch
from matryo.retrieve.guides.sketch.certified import Certified
from matryo.retrieve.guides.sketch.sketch import Sketch
from support.retrieval_peers import Built, Database, Engine, Rows, Settings, Vectors, size

SHORT, PAPER = (16, 32), 200   # the dims and the length of the paper's shortlists


class Partitioned(Built):
    """A plan through partitions; the plan is the search setting."""

    def __init__(self, database: Database, _threads: int, dim: int | None, dtype: str = "float32") -> None:
        self.blocks = blocks_of(database, dtype)
        self.partition = Partition.of(self.blocks, "cosine", dim=dim)
        self.nbytes = stored(self.blocks) + self.partition.nbytes
        self.ready: dict[tuple[str, int], PartitionSearch] = {}

    def ask(self, queries: Vectors, k: int, **settings: Any) -> Rows:
        """Keep what was looked up once, as an index does."""
        key = str(settings["plan"]), k
        if key not in self.ready:
            self.ready[key] = PartitionSearch(self.blocks, self.partition, Plan.from_dict(settings["plan"]), k)
        return self.ready[key](queries)[0]

    def read(self, queries: Vectors, k: int, **settings: Any) -> float | None:
        """As the plan counts; the means of the partitions are read too."""
        del queries
        plan = Plan.from_dict(settings["plan"]).for_k(k)
        return plan.bytes(self.blocks.count, self.blocks.dtype) + self.partition.means.nbytes


class Scanned(Built):
    """A plan whose first stage scans every row, as the paper counts it."""

    def __init__(self, database: Database, _threads: int, dtype: str = "float32") -> None:
        self.blocks = blocks_of(database, dtype)
        self.nbytes = stored(self.blocks)

    def ask(self, queries: Vectors, k: int, **settings: Any) -> Rows:
        """The plan, by compiled loops."""
        plan = Plan.from_dict(settings["plan"])
        return execute(self.blocks, queries, plan, k, "cosine", engine=best_engine())[0]

    def read(self, queries: Vectors, k: int, **settings: Any) -> float | None:
        """As the plan counts."""
        del queries
        return Plan.from_dict(settings["plan"]).for_k(k).bytes(self.blocks.count, self.blocks.dtype)


class Exact(Built):
    """Certified search."""

    def __init__(self, database: Database, _threads: int, dtype: str = "float32") -> None:
        self.blocks = blocks_of(database, dtype)
        self.certified = Certified(self.blocks, Sketch.of(self.blocks, "cosine"))
        sketch = self.certified.sketch
        self.nbytes = stored(self.blocks) + sum(level.codes.nbytes + level.tails.nbytes for level in sketch.levels)

    def ask(self, queries: Vectors, k: int, **_settings: Any) -> Rows:
        """The exact answer."""
        return self.certified.search(queries, k)[0]

    def read(self, queries: Vectors, k: int, **_settings: Any) -> float | None:
        """The first level of every row, later ones of those that were left, and the vectors of the last."""
        levels, whole = self.certified.sketch.levels, self.blocks.nesting.dim * self.blocks.full[0].itemsize
        total = 0.0
        for left in self.certified.find(queries, k)[2].tolist():
            looked = zip((self.blocks.count, *left), levels, strict=False)
            total += sum(rows * (level.codes[0].nbytes / (16 if i == 0 else 1) + 4) for i, (rows, level) in
                         enumerate(looked)) + min(filter(None, left), default=0) * whole  # fmt: skip
        return total / len(queries)


class Stored(Built):
    """The whole of it: an index in a folder, with the plan that the planner finds for a recall."""

    def __init__(self, database: Database, _threads: int, dtype: str = "float32") -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.learn = database.learn
        self.index = Index.create(f"{self.folder.name}/index", database.nesting, dtype=dtype)
        self.index.add_batches(part for _, part in database.stored())
        self.index.compact()   # one segment
        self.index.build(sketch=True, partition=True)
        self.nbytes = size(Path(self.folder.name))
        self.plans: dict[tuple[float, int], Plan | None] = {}

    def ask(self, queries: Vectors, k: int, **settings: Any) -> Rows:
        """Plans are found at the first call, on queries that are not timed; without a recall search is exact."""
        recall = settings.get("recall")
        if recall is None:
            return np.asarray(self.index.search(queries, k, exact=True).ids, np.int64)
        if (recall, k) not in self.plans:
            self.plans[recall, k] = self.index.plan(recall, k, self.learn, progress=False).plan
        return np.asarray(self.index.search(queries, k, self.plans[recall, k]).ids, np.int64)


def blocks_of(database: Database, dtype: str) -> Blocks:
    """The vectors in blocks, straight from their file where all of them count."""
    vectors = database.vectors if database.rows is None else database.vectors[database.rows]
    return Blocks.of(vectors[:, : database.dim], database.nesting, dtype=dtype)


def stored(blocks: Blocks) -> int:
    """The bytes of blocks."""
    return sum(block.nbytes for block in blocks.full) + blocks.norms.nbytes


def plain_builds(database: Database) -> list[Settings]:
    """In half precision where the embeddings are: nothing is lost."""
    return [{"dtype": "float16"} if database.vectors.dtype == np.float16 else {}]


def partition_builds(database: Database) -> list[Settings]:
    """The layout that is chosen from the vectors, and tiles of the dims of the paper's first stages."""
    dims = [None, *(dim for dim in SHORT if dim in database.nesting.dims)]
    return [{"dim": dim, **about} for about in plain_builds(database) for dim in dims]


def partition_asks(database: Database, build: Settings) -> list[Settings]:
    """Shares of the rows that are visited; what is found is ranked at full dim, in 8 bits first where it pays.

    About as many settings as a graph is tried at. With tiles of few dims, the paper's shortlist of 200.
    """
    last = database.dim
    first = build["dim"] or last // 4
    if first in SHORT:
        guides: list[dict[str, Any]] = [{"probe": 0.005}, {"probe": 0.01}, {"probe": 0.02}, {}]
        return [{"plan": plan.to_dict() | guide} for plan in paper_plans(first, last) for guide in guides]
    asks = []
    for probe in (0.002, 0.005, 0.01, 0.02, 0.04, 0.08, None):
        for keep, between in ((100, 40), (200, 50)):
            stages = [Stage(first, keep, "int8"), Stage(last // 4, between, "int8"), Stage(last, 15, "int8")]
            asks.append({"plan": Plan((*stages, Stage(last, 10)), probe=probe).to_dict()})
    return asks


def paper_plans(short: int, last: int) -> list[Plan]:
    """Ways to re-rank the paper's shortlist: as the paper has it, or in 8 bits for as long as that serves."""
    adaptive, funnel = (make(short, last, keep=PAPER, precision="int8") for make in (Plan.adaptive, Plan.funnel))
    whole, most = Stage(last, 20, "int8"), Stage(last // 8, 60, "int8")
    first, *between, end = funnel.stages
    small = [replace(stage, precision="int8") for stage in between]
    return [
        adaptive, Plan((first, whole, end)), Plan((first, most, whole, end)), funnel, Plan((first, *small, end)),
    ]  # fmt: skip


def scan_asks(database: Database, _build: Settings) -> list[Settings]:
    """The paper's plans, and one that scans everything at full dim."""
    last, short = database.dim, [dim for dim in database.nesting.dims[:-1] if 16 <= dim <= 128]
    plans = [Plan.adaptive(dim, last, keep=200) for dim in short]
    plans += [Plan.funnel(dim, last, keep=200) for dim in short]
    return [{"plan": plan.to_dict()} for plan in (*plans, Plan.single(last))]


OURS = (
    Engine("matryo", "matryo", "matryo", Partitioned, partition_builds, partition_asks),
    Engine("matryo scan", "matryo", "matryo", Scanned, plain_builds, scan_asks),
    Engine("matryo exact", "matryo", "matryo", Exact, plain_builds),
    Engine("matryo index", "matryo", "matryo", Stored, plain_builds,
           lambda _, __: [{}, *({"recall": recall} for recall in (0.95, 0.99))]),
)  # fmt: skip
"""All of them, in the order in which tables show them."""
