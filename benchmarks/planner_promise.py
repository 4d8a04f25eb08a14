"""Whether a planner keeps its promise: over many draws of queries, how often the recall held for all the others.

    python benchmarks/planner_promise.py runs/tiny-imagenet-rn18 --rows docs/results/planner.jsonl
    python benchmarks/planner_promise.py runs/tiny-imagenet-rn18 --index

The planner sees a draw of queries and promises a recall; the other queries measure the recall. Plans on bare blocks
minimise bytes: each first stage runs once for all queries, and draws share its results. With ``--index``, plans on an
index with a sketch and partitions minimise latency, measured in each draw, as users do.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from matryo import EmbeddingSet, Index, truncate
from matryo.results import append_rows, stamp
from matryo.retrieve.engines.compiled import best_engine
from matryo.retrieve.engines.execute import Hits, within
from matryo.retrieve.engines.numpy.shortlist import Shortlist
from matryo.retrieve.engines.request import Request
from matryo.retrieve.plan.choice import Cost, Point
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.plan.planner import choose
from matryo.retrieve.plan.searcher import Searcher, openings
from matryo.retrieve.vectors.blocks import Blocks

_DEPTH, _BATCH = 4096, 128
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Promise:
    """How a promised recall fared over ``draws`` of ``seen`` queries each."""

    target: float
    confidence: float
    k: int
    rows: int
    seen: int
    judged: int
    """The other queries, which say what the recall truly is."""
    draws: int
    kept: int
    """Draws whose plan truly has the promised recall."""
    exact: int
    """Draws in which nothing but exact search could be promised."""
    recall: float
    """The true one, on average."""
    least: float
    """The true one of the worst draw."""
    bytes: float
    """Read a query by the chosen plans, on average."""
    exact_bytes: float
    searcher: str = "blocks"
    """Or an index."""
    cost: Cost = "bytes"
    """The cost that was minimised."""
    plans: int = 0
    """How many different ones were chosen."""
    milliseconds: float | None = None
    """Of a query by the chosen plans, the median over draws, where that was measured."""
    exact_milliseconds: float | None = None


class Pool:
    """Blocks, and queries for which every first stage is run once: a query is its number, in each column.

    First stages read int8 where there is any. What they keep beyond the deepest ``_DEPTH`` is not kept here.
    """

    def __init__(self, blocks: Blocks, queries: Array) -> None:
        self.blocks, self.queries = blocks, queries
        self.count, self.nesting, self.dtype = blocks.count, blocks.nesting, blocks.dtype
        small = [self.nesting.dims[number] for number in blocks.int8]
        self.openings = [plan for plan in openings(self.nesting, int8=small)
                         if plan.stages[0].precision == "int8" or plan.stages[0].dim not in small]  # fmt: skip
        self.known = {plan.stages[0]: self._order(plan.stages[0]) for plan in self.openings}

    def search(self, queries: Array, k: int, plan: Plan | None = None) -> Hits:
        """The hits of a plan whose first stage is known."""
        plan = (plan or Plan.single(self.nesting.dim, k=k)).for_k(k)
        first, numbers = plan.stages[0], queries[:, 0].astype(np.int64)
        rows, scores = (part[numbers, : first.keep] for part in self.known[replace(first, keep=1, margin=None)])
        if len(plan.stages) == 1:
            return Hits(rows.astype(np.int64), scores)
        found = within(Shortlist(rows.astype(np.int64), np.zeros_like(scores), scores), first.margin, k)
        # Those that keep alike many go together, so that few are ranked for most.
        kept = (found.rows >= 0).sum(axis=1)
        hits = Hits(np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32))
        for some in np.array_split(np.argsort(kept), -(-len(kept) // _BATCH)):
            part = Shortlist(*(one[some, : kept[some].max()] for one in found))   # type: ignore[arg-type]
            hits.ids[some], hits.scores[some] = self._ranked(plan, numbers[some], part)
        return hits

    def _ranked(self, plan: Plan, numbers: Array, found: Shortlist) -> tuple[Array, Array]:
        done, before, request = 0, plan.stages[0], Request(self.blocks, self.queries[numbers])
        for stage in plan.stages[1:]:
            done = done if stage.precision == before.precision else 0
            found = best_engine().rerank(request, found, stage, done)
            done, before = stage.dim, stage
        return found.rows, found.scores

    def sample(self, count: int, seed: int) -> tuple[Array, Array]:
        """Rows never stand in for queries here."""
        raise NotImplementedError

    def _order(self, stage: Stage) -> tuple[Array, Array]:
        print(f"the pool at {stage.dim} dims, {stage.precision}", flush=True)
        rows = self.blocks.rows(slice(0, self.count), stage.dim, stage.precision)
        rows = rows / self.blocks.norms[:, self.blocks.level(stage.dim), None]
        depth = min(_DEPTH if stage.dim < self.nesting.dim else _DEPTH // 16, self.count)
        found = np.empty((len(self.queries), depth), np.int32)
        scores = np.empty(found.shape, np.float32)
        for start in range(0, len(found), _BATCH):
            asked = truncate(self.queries[start : start + _BATCH], stage.dim)
            every = asked @ rows.T
            top = np.argpartition(every, -depth, axis=1)[:, -depth:]
            near = np.take_along_axis(every, top, 1)
            order = np.argsort(-near, axis=1)
            found[start : start + _BATCH] = np.take_along_axis(top, order, 1)
            scores[start : start + _BATCH] = np.take_along_axis(near, order, 1)
        return found, scores


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a run folder with embeddings, or a folder of embeddings folders")
    parser.add_argument("--database", default="train")
    parser.add_argument("--queries", default="val")
    parser.add_argument("--recalls", type=float, nargs="+", default=[0.95, 0.99])
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--seen", type=int, default=500, help="queries that the planner sees")
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--int8-up-to", type=int, default=128, help="of bare blocks")
    parser.add_argument("--index", action="store_true", help="plan for an index, by latency")
    parser.add_argument("--count", type=int, help="draw this many vectors of the database at random (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, default=Path("docs/results/planner.jsonl"))
    args = parser.parse_args()
    inside = args.folder / "embeddings" if (args.folder / "embeddings").is_dir() else args.folder
    database, asked = (EmbeddingSet.open(inside / split) for split in (args.database, args.queries))
    if args.count:
        chosen = np.random.default_rng(args.seed).permutation(database.count)[: args.count]
        database = database.select(np.sort(chosen))
    queries = np.ascontiguousarray(asked.vectors, np.float32)
    subject = " ".join(filter(None, (args.folder.name, database.manifest.dataset, args.queries)))
    with tempfile.TemporaryDirectory() as work:
        trial = indexed(Path(work), database, queries) if args.index else pooled(database, queries, args.int8_up_to)
        for recall in args.recalls:
            found = promise(trial, recall, args.k, args.seen, args.draws, args.seed)
            about = f"kept {found.kept} of {found.draws} times, {found.recall:.4f} on average"
            print(f"recall {recall:g}: {about}", flush=True)
            append_rows(args.rows, [stamp("planner-promise", subject, asdict(found), seed=args.seed)])


@dataclass(frozen=True)
class Searched:
    """The searcher, and the queries in its format."""

    searcher: Searcher
    queries: Array
    name: str
    cost: Cost


def pooled(database: EmbeddingSet, queries: Array, int8_up_to: int) -> Searched:
    """Bare blocks; a query is its number."""
    pool = Pool(Blocks.of(database.vectors, database.nesting, int8_up_to=int8_up_to), queries)
    return Searched(pool, np.broadcast_to(np.arange(len(queries))[:, None], queries.shape), "blocks", "bytes")


def indexed(work: Path, database: EmbeddingSet, queries: Array) -> Searched:
    """An index of all vectors in one segment, with the guides that it has by default."""
    index = Index.create(work / "index", database.nesting, dtype=str(database.vectors.dtype))
    index.add(database.vectors)
    index.build()
    return Searched(index, queries, "index", "latency")


def promise(trial: Searched, recall: float, k: int, seen: int, draws: int, seed: int) -> Promise:
    """Plan for ``draws`` draws of the queries, and look at what is true of the others."""
    searcher, everyone = trial.searcher, trial.queries
    true = searcher.search(everyone, k).ids
    hits: dict[Plan, Array] = {}
    recalls, points, exact = [], [], []
    for turn in range(draws):
        drawn = np.random.default_rng([seed, turn]).choice(len(everyone), seen, replace=False)
        choice = choose(searcher, everyone[drawn], recall=recall, k=k, cost=trial.cost, seed=turn, progress=False)
        assert choice.plan is not None and choice.point is not None   # no budget forbids
        if choice.plan not in hits:
            found = searcher.search(everyone, k, choice.plan).ids
            hits[choice.plan] = (found[:, :, None] == true[:, None]).any(axis=1).mean(axis=1)
        recalls.append(float(np.delete(hits[choice.plan], drawn).mean()))
        points.append(choice.point)
        exact.append(choice.frontier[0])
        print(f"{recall:g}, draw {turn}: truly {recalls[-1]:.4f}, {choice.point.cost(trial.cost):.4g}", flush=True)
    return Promise(
        target=recall, confidence=0.95, k=k, rows=searcher.count, seen=seen, judged=len(everyone) - seen, draws=draws,
        kept=sum(one >= recall for one in recalls), recall=mean(recalls), least=min(recalls),
        exact=sum(one == other for one, other in zip(points, exact, strict=True)),
        bytes=mean(one.bytes for one in points), exact_bytes=exact[-1].bytes,
        searcher=trial.name, cost=trial.cost, plans=len(hits),
        milliseconds=taken(points), exact_milliseconds=taken(exact),
    )  # fmt: skip


def taken(points: list[Point]) -> float | None:
    """The median of the milliseconds that were measured, if any were."""
    known = [one.latency for one in points if one.latency is not None]
    return median(known) if known else None


if __name__ == "__main__":
    main()
