"""An engine: a table of vectors in a database that runs plans, as the planner and the command line see it.

The class has what all engines share: checked arguments, exact search by one pass over the vectors, planning, suggesting
which first dims to index, and loading in batches. A subclass implements the methods that begin with ``_`` and are
abstract, for one database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from matryo.arguments import as_integer, checked
from matryo.engines.rows import Rows, batches_of, nesting_of
from matryo.engines.scan import nothing, scan
from matryo.engines.suggestion import suggested
from matryo.engines.view import View, chosen_without_margins
from matryo.errors import InputError
from matryo.nesting import Nesting
from matryo.progress import tqdm
from matryo.retrieve.hits import Hits
from matryo.retrieve.plan.choice import Choice, Cost, as_plan
from matryo.retrieve.plan.plan import Plan, Stage, size_text
from matryo.retrieve.plan.planner import choose_each
from matryo.retrieve.store.filters.language import Filter
from matryo.retrieve.vectors.metric import Metric
from matryo.retrieve.vectors.queries import as_floats, as_queries, check_not_zero

if TYPE_CHECKING:
    from matryo.engines.address import Address

_MANY = 8   # from this number of queries on, exact search reads all vectors once instead of once per query


@dataclass(frozen=True)
class Prepared:
    """An index of first dims in the database."""

    name: str
    dim: int
    bytes: int
    ours: bool
    """Whether matryo made it; only such an index is ever dropped."""


@dataclass(frozen=True)
class Work:
    """The work of :meth:`Engine.prepare`, estimated before it is done."""

    statements: tuple[str, ...]
    bytes: int
    seconds: float
    """NaN where they cannot be estimated."""

    def __str__(self) -> str:
        if not self.statements:
            return "nothing to build: the plan runs on what is there"
        taken = "an unknown time" if self.seconds != self.seconds else f"about {max(1, round(self.seconds))} s"
        text = f"builds about {size_text(self.bytes)} in {taken}:"
        return "\n".join([text, *(f"  {statement}" for statement in self.statements)])


class Engine(ABC):
    """A table (or collection) of vectors in a database; make one with :func:`matryo.engines.open`.

    It is a :class:`matryo.retrieve.Searcher`. One object has one connection: use one per thread.
    """

    schemes: ClassVar[tuple[str, ...]]
    """The schemes of its URLs; the first is its name."""
    extra: ClassVar[str]
    """The optional dependency of matryo that installs its drivers."""
    drivers: ClassVar[tuple[str, ...]]
    """The modules that must be installed."""
    needs_index: ClassVar[bool] = True
    """Whether a first stage of few dims needs an index; if not, every dim can be scanned."""
    address: Address
    count: int
    """The number of rows that have a vector; read when the engine is opened, and after a load."""
    nesting: Nesting
    metric: Metric
    dtype: str = "float32"
    _dims: Sequence[int] | None = None   # those that the caller of open asked for

    # ── what a database implements ────────────────────────────────────────────────────────────────────────────

    @classmethod
    @abstractmethod
    def _connected(cls, address: Address, dims: Sequence[int] | None) -> Self:
        """An engine on the table that ``address`` names, which may not exist yet."""

    @abstractmethod
    def prepared(self) -> list[Prepared]:
        """The indexes in the database that a first stage can use, also those that matryo did not make."""

    @abstractmethod
    def _search(self, queries: Any, k: int, plan: Plan | None, where: Filter | None) -> Hits:
        """The hits of float32 ``queries``; without a plan, of an exact scan in the database."""

    @abstractmethod
    def _stream(self, where: Filter | None) -> Iterator[tuple[Any, Any]]:
        """All ids with vectors, in batches."""

    @abstractmethod
    def sample(self, count: int, seed: int) -> tuple[Any, Any]:
        """Ids and vectors of ``count`` random rows."""

    @abstractmethod
    def _begin(self, dim: int, text_ids: bool, nesting: Nesting, into_existing: bool) -> None:
        """Create the table, unless it exists and may be loaded into."""

    @abstractmethod
    def _write(self, rows: Rows, overwrite: bool) -> int:
        """Write one batch in one transaction; return how many rows were new or replaced."""

    @abstractmethod
    def _refresh(self) -> None:
        """Read the size and the settings of the table again."""

    @abstractmethod
    def work(self, plan: Any) -> Work:
        """The statements that :meth:`prepare` would run for ``plan``, with their estimated bytes and seconds."""

    @abstractmethod
    def prepare(self, plan: Any) -> list[str]:
        """Create the indexes that ``plan`` needs, and return their names; existing ones are left as they are."""

    @abstractmethod
    def explain(self, plan: Any = None, k: int = 10, where: Mapping[str, Any] | None = None) -> str:
        """The exact statement or request of a search, to paste into other code."""

    @abstractmethod
    def drop(self, *, table: bool = False) -> list[str]:
        """Drop the indexes that matryo made, with ``table`` also a table that matryo made; return their names."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    # ── what all share ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def openings(self) -> Sequence[Plan]:
        """The first stages that the database has an index for, for the planner."""
        dims = sorted({index.dim for index in self.prepared() if index.dim in self.nesting.dims})
        return tuple(Plan((Stage(dim, 1),), ef=1) for dim in dims)

    @checked
    def search(
        self, queries: Any, k: int = 10, plan: Any = None, where: Mapping[str, Any] | None = None
    ) -> Hits:
        """Return the ``k`` nearest rows of each query; without a ``plan``, by exact search at full dim.

        A query with a plan is one round trip. ``where`` restricts the search to matching rows, in the language of
        :meth:`matryo.Index.search`: its fields are columns of the table, or fields of its payload.
        """
        self._check_there()
        k = as_integer(k, "k", 1)
        vectors = as_queries(np.atleast_2d(np.asarray(queries)), self.nesting.dim)
        vectors = as_floats(vectors, self.nesting.dim)
        if not np.isfinite(vectors).all():
            raise InputError("queries must have finite numbers", got="nan or inf", cure="encode them again")
        if self.metric == "cosine":
            check_not_zero(np.linalg.norm(vectors, axis=1))
        filter = None if where is None else Filter.of(where)
        chosen = None if plan is None else self._as_plan(plan, k)
        is_exact = chosen is None or chosen == Plan.single(self.nesting.dim, k=k)
        if is_exact and len(vectors) >= _MANY:
            return self._scan(vectors, k, filter)
        return self._search(vectors, k, chosen, filter)

    @checked
    def plan(
        self, recall: float | Sequence[float] = 0.99, k: int = 10, queries: Any = None, *,
        where: Mapping[str, Any] | None = None, dims: Sequence[int] | None = None, cost: Cost = "latency",
        budget: float | None = None, confidence: float = 0.95, seed: int = 0, progress: bool = True,
    ) -> Any:
        """Choose the plan that is fastest on this database and reaches ``recall`` on queries like these.

        Plans are run and timed here, with the indexes that are there (see :meth:`suggest` and :meth:`prepare`), or
        with those of ``dims`` only. With ``where``, the guarantee is for searches with this filter. Returns a
        :class:`Choice`, or for a list of recalls a list of choices. See :meth:`matryo.Index.plan` for the other
        arguments.
        """
        self._check_there()
        view = View(self, None if where is None else dict(where), None if dims is None else tuple(dims))
        recalls = [recall] if isinstance(recall, float | int) else list(recall)
        found = choose_each(view, queries, recalls=recalls, k=k, cost=cost, budget=budget, confidence=confidence,
                            seed=seed, progress=progress)
        choices = [chosen_without_margins(choice) for choice in found]
        return choices[0] if isinstance(recall, float | int) else choices

    def suggest(self, recall: float = 0.99, k: int = 10, queries: Any = None, seed: int = 0) -> list[Plan]:
        """Plans worth preparing, the most promising first, from one pass over the vectors; nothing is built.

        The pass counts how long a shortlist each prefix needs. Times are guessed, so :meth:`plan` measures them.
        """
        self._check_there()
        own = None
        if queries is None:
            own, queries = self.sample(min(200, self.count), seed)
        vectors = as_floats(as_queries(queries, self.nesting.dim), self.nesting.dim)
        chosen = np.random.default_rng(seed).permutation(len(vectors))[:200]
        lists = scan(self._stream(None), vectors[chosen], min(1000, self.count), self.metric, self.nesting.dims)
        return suggested(lists, recall, k, None if own is None else own[chosen])

    def load(
        self, source: Any, ids: Any = None, payload: Any = None, *, dims: Sequence[int] | None = None,
        overwrite: bool = False, into_existing: bool = False, progress: bool = True,
    ) -> int:
        """Load vectors by the bulk path of the database, and return the number of rows that were written.

        Each batch is one transaction, and ids that are there already are skipped, so an interrupted load is resumed
        by running it again. ``overwrite`` replaces such rows instead. A table that matryo did not make is refused,
        unless ``into_existing``. Rows without ids are numbered from 0: pass ids to add to them later. ``dims`` are
        those that plans may read [those of the source, or halving].
        """
        nesting, written, begun = nesting_of(source), 0, False
        with tqdm(desc=f"load into {self.address.options.get('table', '')}", unit="row", unit_scale=True, delay=2,
                  disable=not progress) as bar:
            for rows in batches_of(source, ids, payload):
                if not begun:
                    dim = rows.vectors.shape[1]
                    asked = dims or self._dims
                    own = Nesting(list(asked)) if asked else nesting or halving(dim)
                    own.check_fits(dim)
                    self._begin(dim, isinstance(rows.ids[0], str), own, into_existing)
                    begun = True
                written += self._write(rows, overwrite)
                bar.update(len(rows.ids))
        self._refresh()
        return written

    def advice(self, choice: Choice) -> str:
        """One sentence on a choice of :meth:`plan`: use the plan, or the full-dim index, or prepare one."""
        plan, full = choice.plan, self.nesting.dim
        if plan is None:
            return "no plan within the budget reaches the recall"
        if plan.stages[0].dim < full:
            return f"use this plan: the first {plan.stages[0].dim} dims, then {plan.dim}"
        if plan.ef is not None:
            return "use the full-dim index: no plan on a prepared index of fewer dims is faster here"
        return "no prepared index pays: use exact search, or prepare another index (see suggest)"

    def _scan(self, queries: Any, k: int, where: Filter | None) -> Hits:
        """Exact search by one pass over all vectors."""
        found = scan(self._stream(where), queries, k, self.metric, [self.nesting.dim])
        if self.nesting.dim in found:
            return found[self.nesting.dim]
        return self._hits([[]] * len(queries), k)

    def _hits(self, rows: Sequence[Sequence[tuple[Any, float]]], k: int) -> Hits:
        """Lists of (id, score), nearest first, as hits; a score of NaN is that of a row without a vector."""
        text = any(isinstance(id, str) for row in rows for id, _ in row)
        ids = np.full((len(rows), k), "", object) if text else np.full((len(rows), k), -1, np.int64)
        scores = np.full(ids.shape, -np.inf, np.float32)
        for number, row in enumerate(rows):
            kept = [(id, score) for id, score in row if score is not None and score == score][:k]
            if kept:
                ids[number, : len(kept)], scores[number, : len(kept)] = zip(*kept, strict=True)
        return Hits(np.where(np.isfinite(scores), ids, nothing(ids)), scores)

    def _as_plan(self, given: Any, k: int) -> Plan:
        plan = as_plan(given).for_k(k)
        plan.check_fits(self.nesting)
        if plan.probe is not None or any(stage.precision != "full" for stage in plan.stages):
            raise InputError(f"plans on {self.schemes[0]} have stages in full precision, without probe",
                             got="probe or int8", cure="choose the plan on this engine: engine.plan(recall=0.99)")
        if any(stage.margin is not None for stage in plan.stages):
            raise InputError("a database keeps a fixed number of rows per stage", got="a margin",
                             cure="drop the margin, or choose the plan on this engine")
        if plan.ef is not None and plan.stages[0].dim not in {index.dim for index in self.prepared()}:
            dim = plan.stages[0].dim
            raise InputError(f"the plan needs an index of the first {dim} dims", got="none",
                             cure=f"build it with engine.prepare(plan), or matryo plan URL --prepare {dim}")
        return plan

    def _check_there(self) -> None:
        if not self.count:
            raise InputError(f"{self!r} holds no vectors", cure="load some first: engine.load(…)")

    def another(self) -> Self:
        """Another engine on this table, with a connection of its own, for another thread."""
        return self._connected(self.address, self.nesting.dims if self.count else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        name = self.address.options.get("table", "")
        return f"{type(self).__name__}({self.address.safe!r}, table={name!r}): {self.count:,} × {self._width()}"

    def _width(self) -> int:
        return self.nesting.dim if self.count else 0


def halving(dim: int) -> Nesting:
    """The dims of a table that records none: halved down to 16 or a little more.

    >>> halving(1536).dims
    (24, 48, 96, 192, 384, 768, 1536)
    """
    dims = [dim]
    while dims[-1] % 2 == 0 and dims[-1] >= 32:
        dims.append(dims[-1] // 2)
    return Nesting(dims[::-1])


def score_of(metric: Metric, distance: float) -> float:
    """The score of a distance as databases give it: 1 − cosine, the negative product, or the length.

    >>> score_of("cosine", 0.25), score_of("ip", -3.0), score_of("l2", 2.0)
    (0.75, 3.0, -4.0)
    """
    if metric == "cosine":
        return 1 - distance
    return -distance if metric == "ip" else -distance * distance
