"""Graph guide (HNSW, by faiss) over the first dims of the rows: a walk finds near rows without scoring most of them.

Compared with a graph at full dim, the graph of a short prefix takes a fraction of the time to build and reads a
fraction of the bytes per walk. Later stages re-rank the rows that the walk finds, as they do every shortlist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError, InputError, MissingExtra
from matryo.retrieve.engines.compiled import best_engine
from matryo.retrieve.engines.execute import Engine, execute
from matryo.retrieve.engines.numpy.scan import unscored
from matryo.retrieve.guides.guide import Guide, Search, unguided
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.vectors.array_folder import open_arrays, write_arrays
from matryo.retrieve.vectors.blocks import Blocks, tiles
from matryo.retrieve.vectors.metric import Metric, check_metric

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.retrieve.engines.numpy.shortlist import Shortlist
    from matryo.retrieve.engines.request import Request
    from matryo.retrieve.vectors.types import Array, Bools, Doubles, Floats, Indices

FORMAT = 1
"""The version of the folder layout. It grows when an older matryo can no longer read the layout."""

@dataclass(frozen=True, eq=False)
class Graph(Guide):
    """The HNSW graph of the rows of some blocks at one dim, for one metric."""

    kind = "graph"
    plan_field = "ef"

    metric: Metric
    dim: int
    stored: Array
    """The graph as serialised by faiss, bytes."""

    @classmethod
    def of(cls, blocks: Blocks, metric: Metric = "cosine", *, dim: int, degree: int = 32, effort: int = 40) -> Graph:
        """Link each row to ``degree`` near rows, searched among ``effort`` candidates (efConstruction)."""
        faiss = _faiss()
        check_metric(metric)
        blocks.level(dim)
        measure = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        graph = faiss.IndexHNSWFlat(dim, degree, measure)
        graph.hnsw.efConstruction = effort
        for part in tiles(blocks.count, dim):
            graph.add(_comparable(blocks.rows(part, dim), metric))
        return cls(metric, dim, faiss.serialize_index(graph))

    def write(self, folder: str | Path) -> None:
        """Write a new ``folder``, which appears complete or not at all."""
        about = {"metric": self.metric, "dim": self.dim}
        write_arrays(folder, f"{self.kind}.json", FORMAT, about, {"graph": self.stored})

    @classmethod
    def open(cls, folder: str | Path) -> Graph:
        """Open a folder, and compare its checksum: faiss may crash on a damaged graph."""
        about, arrays = open_arrays(folder, f"{cls.kind}.json", FORMAT, verify_bytes=math.inf)
        return cls(about["metric"], about["dim"], arrays["graph"])

    def opening(self) -> Plan:
        """Return a walk at the dim of the graph."""
        return Plan((Stage(self.dim, 1),), ef=1)

    def searcher(self, blocks: Blocks, plan: Plan | None, engine: Engine | None) -> Search:
        """Return a search whose first stage walks through the graph; the engine runs the other stages."""
        assert plan is not None and plan.ef is not None   # see serves
        if plan.stages[0].dim != self.dim:
            rule = f"the first stage of a plan with ef must be at the dim of the graph, {self.dim}"
            raise InputError(rule, got=plan.stages[0].dim, cure=f"start the plan with Stage({self.dim}, keep)")
        if self._graph.ntotal != blocks.count:
            got = f"a graph of {self._graph.ntotal} rows, {blocks!r}"
            raise EmbeddingsError("a graph must belong to the blocks that are searched", got=got, cure="build it again")
        effort, follow, alone = plan.ef, engine or best_engine(), unguided(plan, blocks)

        def first_stage(request: Request, stage: Stage) -> Shortlist:
            rows = self.walk(request.queries, stage.keep, effort, request.allowed)
            return follow.rerank(request, unscored(rows), stage, 0)

        def search(request: Request, k: int) -> tuple[Indices, Doubles]:
            given = request.blocks, request.queries, alone, k, request.metric, request.allowed
            return execute(*given, engine=Engine(first_stage, follow.rerank, score=follow.score))

        return search

    def walk(self, queries: Floats, keep: int, ef: int, allowed: Bools | None = None) -> Indices:
        """Return about the best ``keep`` rows of each of the ``queries`` [n, d], unsorted; −1 where there are none.

        The walk holds ``ef`` candidates.
        """
        faiss = _faiss()
        options: dict[str, Any] = {"efSearch": max(ef, keep)}
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            options["sel"] = faiss.IDSelectorBitmap(bits)
        vectors = _comparable(np.ascontiguousarray(queries[:, : self.dim], np.float32), self.metric)
        _, rows = self._graph.search(vectors, keep, params=faiss.SearchParametersHNSW(**options))
        return np.asarray(rows, np.int64)

    @cached_property
    def _graph(self) -> Any:
        return _faiss().deserialize_index(np.asarray(self.stored))


def _comparable(rows: Floats, metric: Metric) -> Floats:
    # The inner product of unit vectors is the cosine. A zero row stays zero.
    if metric != "cosine":
        return rows
    lengths = np.sqrt(np.square(rows, dtype=np.float64).sum(1, keepdims=True))
    return np.asarray(rows / np.maximum(lengths, np.finfo(np.float64).tiny), np.float32)


def _faiss() -> Any:
    with MissingExtra.unless_installed("faiss", "graph"):
        import faiss
    return faiss
