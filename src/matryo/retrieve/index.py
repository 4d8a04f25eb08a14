"""Index: a folder of vectors, searched with few dims first and with more dims for the shortlist.

>>> import tempfile
>>> index = Index.create(f"{tempfile.mkdtemp()}/mine", nesting=[2, 4])
>>> index.add([[3, 4, 0, 0], [0, 1, 1, 0], [4, 3, 0, 1]], ids=["a", "b", "c"])
['a', 'b', 'c']
>>> index.search([3, 4, 0, 0], k=2).ids.tolist()
[['a', 'c']]
>>> index.search([3, 4, 0, 0], k=2, plan=Plan.adaptive(2, 4, keep=2, k=2)).scores.round(2)
array([[1.  , 0.94]], dtype=float32)
>>> "a" in index, index["a"].vector.tolist()
(True, [3.0, 4.0, 0.0, 0.0])
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from matryo.arguments import as_integer, as_number, checked
from matryo.errors import EmbeddingsError, IndexFolderError, InputError, MatryoError, MissingExtra
from matryo.files import storage
from matryo.retrieve.coded import Coded
from matryo.retrieve.compaction import Compaction, Task
from matryo.retrieve.description import Description, describe, lacks, outline_guides
from matryo.retrieve.engines.execute import Engine
from matryo.retrieve.guides import GUIDES, Partition
from matryo.retrieve.hits import Hits, widened
from matryo.retrieve.nearest import Nearest, search_parts
from matryo.retrieve.parts import drift_of, missing_guide, needs_own
from matryo.retrieve.plan.choice import Choice, Cost
from matryo.retrieve.plan.plan import Plan
from matryo.retrieve.plan.shift import Watches
from matryo.retrieve.routes import Routes
from matryo.retrieve.search_arguments import check_search
from matryo.retrieve.store import Limits, Snapshot
from matryo.retrieve.store.opening import Opened, index_exists
from matryo.retrieve.store.rotating.coding import outlined

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from matryo.retrieve.plan.check import Check
    from matryo.retrieve.vectors.types import Array, Doubles, Floats

    Result = TypeVar("Result")


class Entry(NamedTuple):
    """A stored vector [d] and its payload."""

    vector: Floats
    payload: dict[str, Any]


class Index(Coded):
    """A searchable store of vectors; make one with :meth:`create` or :meth:`open`."""

    def __init__(self, opened: Opened, limits: Limits) -> None:
        super().__init__(opened, limits)
        self.to(None)
        self._watches = Watches()
        self._compaction = Compaction()   # none yet
        self._last_search: tuple[Plan | None, int] | None = None   # since the last change

    @staticmethod
    @checked
    def exists(folder: str | Path) -> bool:
        """Whether ``folder`` holds an index."""
        return index_exists(Path(folder))

    def describe(self) -> Description:
        """The size, settings, guides and payload fields of the index."""
        return describe(self, *drift_of(self.snapshot().segments, self._routes.guide), self.measured)

    @property
    def ids(self) -> Array:
        """All ids in the order of insertion: int64, or str objects."""
        return self.snapshot().ids()

    def __repr__(self) -> str:
        name = f"Index({str(self.given)!r})"
        if self.closed:
            return f"{name}: closed"
        guides = outline_guides({kind: options.get("dim") for kind, options in self.wanted().items()})
        if (own := self.compression) is not None:
            return f"{name}: {len(self):,} × {self.nesting.dim}, {self.metric}\n  no full vectors: {outlined(own)}"
        return (f"{name}: {len(self):,} × {self.nesting.dim}, {self.metric}, {self.dtype}\n"
                f"  dims {', '.join(map(str, self.nesting.dims))}; guides: {guides or 'none'}")  # fmt: skip

    def __getitem__(self, id: int | str) -> Entry:
        (vector,), (payload,) = self.get([id])
        return Entry(vector, payload)

    @checked
    def search(
        self,
        queries: Any,
        k: int = 10,
        plan: Plan | Choice | Mapping[str, Any] | str | Path | None = None,
        exact: bool = False,
        where: Mapping[str, Any] | None = None,
        threads: int = 1,
        payload: bool = False,
    ) -> Hits:
        """Return the ``k`` nearest vectors of each query, [queries, k], nearest first; ties in order of insertion.

        Without a ``plan``, or with ``exact``, the search is exact at full dim: the hits are those of a scan in float64.
        With a sketch (see :meth:`build`) it reads few of the vectors. ``plan`` is a plan, a choice of :meth:`plan`, or
        the path of a saved plan. ``where`` restricts the search to matching payloads (``{"year": {"$gte": 2020}}``);
        if few match, they are all scored, and the hits are exact whatever the plan. If fewer than ``k`` match, the
        remaining scores are −∞ and the ids −1 or "". A single query may be one-dimensional. ``threads`` share the
        queries. With ``payload`` the hits carry the payloads of their rows. With a plan of the planner, queries that
        score differently from those of the planner issue one :class:`matryo.errors.ShiftWarning`.
        """
        if exact or plan is not None:
            self._check_full("an exact search" if exact else "a plan", "search without it; the codes are scanned")
        vectors, stages = check_search(queries, k, plan, exact, threads, lambda: self.model)
        hits = self._on_current(
            lambda: self.snapshot() if where is None else self.where(where, check=True),
            lambda snapshot: self._search(snapshot, vectors, k, stages, threads, payload),
        )
        if where is None:
            self._last_search = stages, k
            if stages is not None and stages.promise is not None:
                self._watches.see(stages.promise, hits.scores)
        return hits

    def nearest(
        self, queries: Array, k: int, plan: Plan | None = None, where: Mapping[str, Any] | None = None,
        threads: int = 1, bars: Doubles | None = None,
    ) -> Nearest:  # fmt: skip
        """The hits of :meth:`search` with scores in float64 and row numbers, for a caller that merges several indexes.

        ``where`` may compare fields that no payload of this index has. ``bars`` are scores of which each query has
        ``k`` at least as high in other indexes: rows below may be left out.
        """
        return self._on_current(
            lambda: self.snapshot() if where is None else self.where(where),
            lambda snapshot: self._nearest(snapshot, queries, k, plan, threads, numbers=True, bars=bars),
        )

    @checked
    def build(self, **guides: int | bool | None) -> None:
        """Build the guides that speed up searches, for every segment that has none yet or a damaged one.

        ``sketch=True`` is for exact search, ``partition=dim`` (IVF) for plans with ``probe`` and first stages in int8
        (True selects a dim), ``graph=dim`` (HNSW, needs faiss) for plans with ``ef``. Without arguments, the guides
        built before are completed; a new index gets a sketch and partitions. Vectors added later join these; only a
        graph does not cover them until the next call.
        """
        for kind in guides:
            if kind not in GUIDES:
                raise InputError(f"guides are {', '.join(GUIDES)}", got=kind, cure="index.build(sketch=True)")
        given = {kind: value for kind, value in guides.items() if value is not None}
        wanted = {} if given else self.wanted()
        if not wanted:
            given = given or {kind: True for kind, guide in GUIDES.items() if guide.default}
            wanted = {kind: GUIDES[kind].options(self.nesting, value) for kind, value in given.items() if value}
        self._check_full("a guide", "drop it; codes are scanned")
        self._refit_if_due()
        self.drop_damaged_guides()   # they are built again
        self._settle()
        largest = max((segment for segment in self.snapshot().segments if segment.name), key=len, default=None)
        if largest is not None:
            wanted = {kind: GUIDES[kind].settled(options, largest.blocks, self.metric)
                      for kind, options in wanted.items()}   # fmt: skip
        own = needs_own if Partition.kind in wanted else None   # small segments join the partitions of a large one
        for kind, guide in GUIDES.items():
            if kind in wanted:
                make = partial(guide.of, metric=self.metric, **wanted[kind])
                self.build_guide(kind, wanted[kind], make, own if guide.joins else None)
        self._join()

    @checked
    def to(self, device: str | None) -> Index:
        """Run later searches on a torch ``device`` such as "cuda"; None returns to the CPU."""
        engine: Engine | None = None
        if device is not None:
            with MissingExtra.unless_installed("torch", "train"):
                from matryo.retrieve.engines.torch.engine import torch_engine

            engine = torch_engine(device)
            self._check_full("a search on a device", "index.to(None)")
        self._routes = Routes(self.nesting, self.metric, engine, self.wanted)
        self._latest = None   # it holds what the former engine prepared
        return self

    @checked
    def plan(
        self,
        recall: float | Sequence[float] = 0.99,
        k: int = 10,
        queries: Any = None,
        *,
        cost: Cost = "latency",
        budget: float | None = None,
        labels: tuple[Any, Any] | None = None,
        robust: Any = False,
        confidence: float = 0.95,
        bytes_per_vector: int | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> Any:
        """Choose the cheapest plan that finds ``recall`` of the ``k`` nearest, for queries like these.

        Returns a :class:`Choice`, or for a list of recalls a list of choices, which share most of the work. See
        :func:`matryo.retrieve.plan.planner.choose_each`. With ``bytes_per_vector`` instead, returns the
        :class:`matryo.Compression` that keeps the most, for an index that stores only codes.
        """
        from matryo.retrieve.plan.planner import choose_each

        if bytes_per_vector is not None:
            return self._compressed(bytes_per_vector, queries, k=k, confidence=confidence, seed=seed, progress=progress)
        self._check_full("a plan", "plan on an index of full vectors; codes are scanned")
        recalls = [recall] if isinstance(recall, float | int) else list(recall)
        choices = choose_each(
            self, queries, recalls=recalls, k=k, cost=cost, budget=budget, labels=labels,
            robust=robust, confidence=confidence, seed=seed, progress=progress,
        )  # fmt: skip
        return choices[0] if isinstance(recall, float | int) else choices

    @checked
    def check(
        self, queries: Any, plan: Any, k: int | None = None, *,
        recall: float | None = None, confidence: float = 0.95, seed: int = 0,
    ) -> Check:   # fmt: skip
        """Measure whether ``plan`` (see :meth:`search`) reaches the recall that the planner promised on these queries.

        ``recall`` and ``k`` are those of the promise by default. See :func:`matryo.retrieve.plan.check.check`.
        """
        from matryo.retrieve.plan.check import check

        self._check_full("a check", "compression.table has what the codes keep")
        return check(self, queries, plan, k=k, recall=recall, confidence=confidence, seed=seed)

    @property
    def openings(self) -> Sequence[Plan]:
        """The first stages that this index supports, for the planner: those of the largest segment's guides, too."""
        from matryo.retrieve.plan.searcher import openings

        nesting, segments = self.nesting, self.snapshot().segments
        stages = [*openings(nesting, int8=[dim for dim in nesting.dims if dim <= self.about.int8_up_to])]
        for kind, guide in GUIDES.items():
            largest = max((segment for segment in segments if kind in segment.guides), key=len, default=None)
            opening = None if largest is None else self._routes.guide(largest, kind).opening()
            if opening is not None and guide.serves(opening, self._routes.engine):
                stages.append(opening)
        return tuple(dict.fromkeys(stages))

    @checked
    def sample(self, count: int, seed: int) -> tuple[Array, Array]:
        """Ids and vectors of ``count`` random rows."""
        return self.snapshot().sample(as_integer(count, "count", 0, len(self)), seed)

    @overload
    def compact(self, *, background: Literal[False] = False, share: float | None = None) -> None: ...

    @overload
    def compact(self, *, background: Literal[True], share: float | None = None) -> Compaction: ...

    def compact(self, *, background: bool = False, share: float | None = None) -> Compaction | None:
        """Rewrite the index into as few files as possible, free deleted space, and complete the guides.

        With ``background``, a child process does the work, with a ``share`` of one core (0.25 by default), while
        searches, additions and deletions continue. The result appears in one commit, with its guides. The call returns
        a :class:`matryo.retrieve.Compaction` at once; if one runs already, the call returns that one. Closing the index
        or compacting it without ``background`` cancels it. ``share`` alone limits the work in the same way, and waits.
        """
        if background or share is not None:
            share = 0.25 if share is None else as_number(share, "share", 0.01, 1, cure="pass share=0.25")
            compaction = self._start_compaction(share)
            if background:
                return compaction
            try:
                compaction.wait()
            except BaseException:   # for example at Ctrl-C
                compaction.cancel()
                raise
            return None
        self._compaction.cancel()
        super().compact()
        with self._tidying("guides are not complete"):
            if self.wanted():
                self.build()
        return None

    def close(self) -> None:
        """Close the files, and cancel a compaction in the background; snapshots in use stay valid."""
        self._compaction.cancel()
        super().close()

    def _start_compaction(self, share: float) -> Compaction:
        with self._changing():
            if not self._compaction.done:
                return self._compaction
            wanted = self.wanted()
            if self._is_compact() and not any(lacks(segment, wanted) for segment in self.snapshot().segments):
                return Compaction()
            scratch = self._reserve()

            def adopt() -> None:
                self._adopt(scratch)
                if self.wanted() != wanted:   # guides of another kind were built meanwhile
                    with self._tidying("guides are not complete"):
                        self.build()

            try:
                task = Task(str(self.path), str(scratch.path), scratch.names, self._limits, share)
                self._compaction = Compaction(task, adopt, lambda: self._release(scratch))
            except BaseException:
                self._release(scratch)
                raise
            return self._compaction

    def _search(
        self, snapshot: Snapshot, queries: Array, k: int, plan: Plan | None, threads: int, payload: bool
    ) -> Hits:
        """Search each segment, and merge the best hits."""
        found = self._nearest(snapshot, queries, k, plan, threads, numbers=payload)
        payloads = None if found.numbers is None else self.payloads(widened(found.numbers, k, -1))
        return found.to_hits(k, "" if snapshot.text_ids else -1, payloads)

    def _nearest(
        self, snapshot: Snapshot, queries: Array, k: int, plan: Plan | None, threads: int, *, numbers: bool,
        bars: Doubles | None = None,
    ) -> Nearest:  # fmt: skip
        nothing: Any = "" if snapshot.text_ids else -1
        if snapshot.rotation is not None:
            queries = snapshot.rotation.turn_queries(queries)
        parts = self._routes.of(snapshot, plan, k)
        return search_parts(parts, queries, self.metric, k, threads, nothing, numbers=numbers, bars=bars)

    def _on_current(self, current: Callable[[], Snapshot], work: Callable[[Snapshot], Result]) -> Result:
        """Run ``work`` on the current snapshot, again if another process changed the index meanwhile."""
        while True:
            snapshot = current()
            try:
                return work(snapshot)
            except (EmbeddingsError, IndexFolderError, OSError):
                # Another process may have replaced a guide, or deleted a hit before its payload was read. If the index
                # is unchanged, the error is real.
                if current() is snapshot:
                    with storage(self.path, "read"):
                        raise

    def _prepare(self) -> None:
        """Load a commit at once if the program searched since the one before, so that its next search need not wait."""
        last, self._last_search = self._last_search, None
        with suppress(MatryoError, OSError):   # the next search raises it; the commit has succeeded
            for part in [] if last is None else self._routes.of(self.snapshot(), *last):
                part.prepare()

    def _before_rotation(self) -> None:
        super()._before_rotation()
        self._compaction.cancel()

    def _after_rotation(self) -> None:
        with self._tidying("guides are not complete: call index.build()"):
            if self.wanted():
                self.build()

    def _join(self) -> None:
        def missing() -> Any:
            return missing_guide(self.snapshot().segments, self._routes.guide, self.metric, self.wanted())

        while (made := missing()) is not None:
            self.add_guide(*made)
