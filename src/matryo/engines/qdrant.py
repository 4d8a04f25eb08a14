"""Qdrant, in this process (qdrant-edge): a named vector of first dims, and one request with a nested prefetch.

:meth:`Qdrant.prepare` adds the named vector ``first_64`` to every point, and lets the optimiser build its HNSW graph; a
load fills it. The request that :meth:`Qdrant.explain` prints is that of any Qdrant server.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import quote

import numpy as np

from matryo.engines.engine import Engine, Prepared, Work
from matryo.engines.qdrant_where import edge_filter, rest_filter
from matryo.errors import EngineError, InputError, MissingExtra
from matryo.files import write_json
from matryo.nesting import Nesting
from matryo.retrieve.plan.choice import as_plan
from matryo.retrieve.store.filters.language import Filter
from matryo.retrieve.vectors.metric import check_metric

if TYPE_CHECKING:
    from matryo.engines.address import Address
    from matryo.engines.rows import Rows
    from matryo.retrieve.hits import Hits
    from matryo.retrieve.plan.plan import Plan

_DISTANCES = {"cosine": "Cosine", "ip": "Dot", "l2": "Euclid"}
_FULL, _FIRST, _ID = "embedding", "first_", "_id"
_ABOUT = "matryo.json"
_PAGE = 1000   # points per request
_PER_ROW, _RATE = 200, 4000.0   # bytes of a graph per point, and points that are indexed per second, approximately
_NAMES = uuid.UUID("6b3f1f0e-64f1-4f0e-8a36-0d8f0c1f2a11")   # of the points whose ids are text


class Qdrant(Engine):
    """A collection of Qdrant with one named vector of all dims, in a folder of this machine."""

    schemes: ClassVar[tuple[str, ...]] = ("qdrant-edge",)
    extra, drivers = "qdrant", ("qdrant_edge",)

    def __init__(self, address: Address, folder: Path, dims: Sequence[int] | None) -> None:
        self.address, self._folder, self._dims = address, folder, dims
        self._shard: Any = None
        self._refresh()

    @classmethod
    def _connected(cls, address: Address, dims: Sequence[int] | None) -> Self:
        with MissingExtra.unless_installed("qdrant-edge-py", "qdrant", "qdrant_edge"):
            import qdrant_edge  # noqa: F401
        if "table" not in address.options:
            raise InputError("a Qdrant engine needs the name of a collection", got="none", cure="add ?table=docs")
        return cls(address, Path(address.path) / quote(address.options["table"], safe=""), dims)

    @property
    def _edge(self) -> Any:
        import qdrant_edge

        return qdrant_edge

    def another(self) -> Self:
        """This engine: a shard is opened once per process, and threads may share it."""
        return self

    def _refresh(self) -> None:
        path = self._folder / _ABOUT
        if not path.exists():
            self.count, self.nesting, self.metric, self._names = 0, Nesting([1]), "cosine", []
            return
        about = json.loads(path.read_text(encoding="utf-8"))
        self.nesting, self._text_ids = Nesting(list(self._dims or about["dims"])), about["text_ids"]
        self.nesting.check_fits(about["dims"][-1])
        self.metric, self._names = about["metric"], about["first"]
        if self._shard is None:
            with self._errors():
                self._shard = self._edge.EdgeShard.load(str(self._folder / "shard"))
        self.count = int(self._shard.count(self._edge.CountRequest(exact=True)))

    def _remember(self, **changes: Any) -> None:
        path = self._folder / _ABOUT
        about = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        write_json(path, about | changes)

    # ── named vectors ─────────────────────────────────────────────────────────────────────────────────────────

    def prepared(self) -> list[Prepared]:
        """The named vectors, with the bytes of their numbers and an estimate for their graphs."""
        found = [Prepared(f"{_FIRST}{dim}", dim, self._bytes(dim), True) for dim in sorted(self._names)]
        is_indexed = bool(self.count) and self._shard.info().indexed_vectors_count > 0
        full = self.nesting.dim
        return [*found, Prepared(_FULL, full, self._bytes(full), False)] if is_indexed else found

    def _bytes(self, dim: int) -> int:
        return self.count * (4 * dim + _PER_ROW)

    def _missing(self, plan: Any) -> int | None:
        self._check_there()
        dim = plan if isinstance(plan, int) else as_plan(plan).stages[0].dim
        if dim not in self.nesting.dims:
            raise InputError("a vector must be of dims of the nesting", got=dim,
                             cure=f"choose from {', '.join(map(str, self.nesting.dims))}, or open with dims=")
        return None if dim in {index.dim for index in self.prepared()} else dim

    def work(self, plan: Any) -> Work:
        """The cost of :meth:`prepare`; its seconds are a rough guess."""
        dim = self._missing(plan)
        if dim is None:
            return Work((), 0, 0.0)
        add = [] if dim == self.nesting.dim else [f"add the vector {_FIRST}{dim} of {dim} dims to every point"]
        return Work((*add, "build the HNSW graphs"), self._bytes(dim), self.count / _RATE)

    def prepare(self, plan: Any) -> list[str]:
        """Add the named vector of first dims, and build the graphs."""
        dim = self._missing(plan)
        if dim is None:
            return []
        name, operation = f"{_FIRST}{dim}", self._edge.UpdateOperation
        with self._errors():
            if dim < self.nesting.dim:
                distance = getattr(self._edge.Distance, _DISTANCES[self.metric])
                self._shard.update(operation.create_dense_vector(name, dim, distance))
                for points, vectors in self._points(None):
                    parts = [self._edge.PointVectors(point, {name: vector[:dim].tolist()})
                             for point, vector in zip(points, vectors, strict=True)]
                    self._shard.update(operation.update_vectors(parts))
                self._shard.flush()
                self._names = [*self._names, dim]
                self._remember(first=self._names)
            self._shard.optimize()
            self._shard.flush()
        return [name if dim < self.nesting.dim else _FULL]

    def drop(self, *, table: bool = False) -> list[str]:
        """Drop the named vectors of first dims, with ``table`` the collection."""
        if self._shard is None:
            rule = f"the collection {self._folder.name} does not exist"
            raise InputError(rule, got=self.address.safe, cure="load vectors into it")
        names = [f"{_FIRST}{dim}" for dim in self._names]
        for name in names:
            with self._errors():
                self._shard.update(self._edge.UpdateOperation.delete_vector_name(name))
        self._names = []
        self._remember(first=[])
        if table:
            self.close()
            shutil.rmtree(self._folder)
            names.append(self.address.options["table"])
        self._refresh()
        return names

    # ── searching ─────────────────────────────────────────────────────────────────────────────────────────────

    def _search(self, queries: Any, k: int, plan: Plan | None, where: Filter | None) -> Hits:
        filter = None if where is None else edge_filter(where.condition)
        found = []
        for query in queries:
            with self._errors():
                points = self._shard.query(self._request(query, k, plan, filter))
            found.append([(self._id_of(point), self._score(point.score)) for point in points])
        return self._hits(found, k)

    def _request(self, query: Any, k: int, plan: Plan | None, filter: Any) -> Any:
        edge, stages = self._edge, () if plan is None else plan.stages
        exact = edge.SearchParams(exact=True)
        walk = exact if plan is None or plan.ef is None else edge.SearchParams(hnsw_ef=plan.ef)
        inner: Any = None
        for number, stage in enumerate(stages[:-1]):
            inner = edge.Prefetch(limit=stage.keep, query=self._nearest(query, stage.dim), prefetches=inner and [inner],
                                  params=None if number else walk, filter=None if number else filter)
        last = stages[-1].dim if stages else self.nesting.dim
        payload = edge.PayloadSelector.Include([_ID]) if hasattr(edge.PayloadSelector, "Include") else True
        return edge.QueryRequest(limit=k, query=self._nearest(query, last), prefetches=inner and [inner],
                                 params=None if inner else walk, filter=None if inner else filter,
                                 with_payload=payload if self._text_ids else False)

    def _nearest(self, query: Any, dim: int) -> Any:
        name = _FULL if dim == self.nesting.dim else f"{_FIRST}{dim}"
        return self._edge.Query.Nearest(query[:dim].tolist(), name)

    def _score(self, score: float) -> float:
        return -score * score if self.metric == "l2" else score

    def _id_of(self, point: Any) -> Any:
        return point.payload[_ID] if self._text_ids else int(point.id)

    def _as_plan(self, given: Any, k: int) -> Plan:
        plan = super()._as_plan(given, k)
        lacking = [stage.dim for stage in plan.stages if stage.dim not in (*self._names, self.nesting.dim)]
        if lacking:
            raise InputError("each stage needs a named vector", got=f"none of {lacking[0]} dims",
                             cure=f"engine.prepare({lacking[0]}), or matryo plan URL --prepare {lacking[0]}")
        return plan

    def explain(self, plan: Any = None, k: int = 10, where: Mapping[str, Any] | None = None) -> str:
        """The request of a search, to paste; ``query[:64]`` stands for the first 64 numbers of the query."""
        self._check_there()
        chosen = None if plan is None else self._as_plan(plan, k)
        stages = () if chosen is None else chosen.stages
        filter = {} if where is None else {"filter": rest_filter(Filter.of(where).condition)}
        walk = {"exact": True} if chosen is None or chosen.ef is None else {"hnsw_ef": chosen.ef}
        inner: dict[str, Any] = {"params": walk, **filter}
        for stage in stages[:-1]:
            inner = {"prefetch": {**self._asked(stage.dim), "limit": stage.keep, **inner}}
        last = stages[-1].dim if stages else self.nesting.dim
        body = json.dumps({**self._asked(last), "limit": k, **inner}, ensure_ascii=False, indent=2)
        return f"POST /collections/{quote(self.address.options['table'], safe='')}/points/query\n{body}"

    def _asked(self, dim: int) -> dict[str, Any]:
        full = dim == self.nesting.dim
        return {"query": "query" if full else f"query[:{dim}]", "using": _FULL if full else f"{_FIRST}{dim}"}

    def _stream(self, where: Filter | None) -> Iterator[tuple[Any, Any]]:
        yield from self._points(where, ids=True)

    def _points(self, where: Filter | None, *, ids: bool = False) -> Iterator[tuple[Any, Any]]:
        """Points (or their ids as they were loaded) and vectors, in pages."""
        filter, offset = None if where is None else edge_filter(where.condition), None
        while True:
            with self._errors():
                found, offset = self._shard.scroll(self._edge.ScrollRequest(
                    limit=_PAGE, offset=offset, filter=filter, with_vector=[_FULL], with_payload=self._text_ids))
            if found:
                points = [self._id_of(record) if ids else record.id for record in found]
                kind = object if self._text_ids or not ids else np.int64
                yield np.array(points, kind), np.array([record.vector[_FULL] for record in found], np.float32)
            if offset is None:
                return

    def sample(self, count: int, seed: int) -> tuple[Any, Any]:
        """Ids and vectors of ``count`` random rows."""
        ids, vectors = (np.concatenate(parts) for parts in zip(*self._stream(None), strict=True))
        chosen = np.random.default_rng(seed).permutation(len(ids))[:count]
        return ids[chosen], vectors[chosen]

    # ── loading ───────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, dim: int, text_ids: bool, nesting: Nesting, into_existing: bool) -> None:
        del into_existing   # only matryo's own collections are opened
        if self._shard is not None:
            if dim != self.nesting.dim or text_ids != self._text_ids:
                got = f"{dim} dims, {'text' if text_ids else 'integer'} ids"
                rule = f"rows must have the dims and the kind of ids of {self._folder.name}"
                raise InputError(rule, got=got, cure="choose another collection")
            return
        metric = self.address.options.get("metric", "cosine")
        check_metric(metric)
        shard = self._folder / "shard"
        shard.mkdir(parents=True, exist_ok=True)
        distance = getattr(self._edge.Distance, _DISTANCES[metric])
        config = self._edge.EdgeConfig(
            vectors={_FULL: self._edge.EdgeVectorParams(size=dim, distance=distance)},
            optimizers=self._edge.EdgeOptimizersConfig(indexing_threshold=100),
        )
        with self._errors():
            self._shard = self._edge.EdgeShard.create(str(shard), config)
        self._remember(dims=nesting.dims, metric=metric, text_ids=text_ids, first=[])
        self._refresh()

    def _write(self, rows: Rows, overwrite: bool) -> int:
        if not self._text_ids and min(rows.ids) < 0:
            raise InputError("ids in Qdrant are integers of at least 0, or text", got=min(rows.ids), cure="pass text")
        points = [str(uuid.uuid5(_NAMES, name)) if self._text_ids else name for name in rows.ids]
        there: set[Any] = set()
        with self._errors():
            if not overwrite:
                there = {str(record.id) for record in self._shard.retrieve(points, False, False)}
            new = [number for number, point in enumerate(points) if str(point) not in there]
            made = []
            for number in new:
                payload = json.loads(rows.payload[number] or "{}") | ({_ID: rows.ids[number]} if self._text_ids else {})
                vector = rows.vectors[number]
                named = {_FULL: vector.tolist()} | {f"{_FIRST}{dim}": vector[:dim].tolist() for dim in self._names}
                made.append(self._edge.Point(points[number], named, payload))
            if made:
                self._shard.update(self._edge.UpdateOperation.upsert_points(made))
                self._shard.flush()
        return len(new)

    def _errors(self) -> _Errors:
        return _Errors(self.address)

    def close(self) -> None:
        """Close the shard."""
        if self._shard is not None:
            self._shard.close()
            self._shard = None


class _Errors:
    """Errors of qdrant-edge as one line."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, _: object) -> None:
        if error is not None and type(error).__module__.startswith("qdrant_edge"):
            rule = f"Qdrant refused a request at {self.address.safe}"
            raise EngineError(rule, got=error, cure="see its message") from None
