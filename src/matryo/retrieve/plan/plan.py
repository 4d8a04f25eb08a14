"""A plan: the stages of a search, the dim and the shortlist length of each, and their cost.

A stage scores its input at ``dim`` and keeps the best ``keep``. The input of the first stage is every row, or the rows
that a guide of the index selects. A later stage reads only the columns it adds, because the inner product of a longer
prefix is that of the shorter one plus the rest. A stage with a ``margin`` also drops rows that score too far below the
k-th best, so the shortlist length depends on the query.

>>> print(Plan.adaptive(16, 2048, keep=200))
 dim  keep  precision       rows  MFLOPs     bytes
  16   200       full  1,000,000      16   64.0 MB
2048    10       full        200   0.406    1.6 MB
 all                                16.4   65.6 MB
per query, among 1,000,000 vectors of float32
>>> [(stage.dim, stage.keep) for stage in Plan.funnel(16, 2048, keep=200).stages]
[(16, 200), (32, 100), (64, 50), (128, 25), (256, 10), (2048, 10)]
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, get_args

from matryo.arguments import as_integer, checked
from matryo.errors import InputError, NestingError, shown
from matryo.metrics import vector_bytes
from matryo.nesting import as_nesting
from matryo.retrieve.plan.promise import Promise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from matryo.nesting import Nesting

Precision = Literal["full", "int8", "int4"]
"""The data that a stage reads: the stored vectors, their 8-bit codes, or the 4-bit codes of partitions."""

_FINER = ("int4", "int8", "full")   # in the order of stages

_DEGREE = 16   # rows scored per step through an HNSW graph, approximately
_SHOWN = 1_000_000   # `print(plan)` shows the cost for this many vectors


@dataclass(frozen=True)
class Stage:
    """Score the input at ``dim`` and keep the best ``keep``."""

    dim: int
    keep: int
    precision: Precision = "full"
    margin: float | None = None
    """Drop rows that score more than this below the k-th best of the stage, for the k of the search."""

    def __post_init__(self) -> None:
        for name in ("dim", "keep"):
            check_count(name, getattr(self, name), example=64)
            object.__setattr__(self, name, int(getattr(self, name)))
        if not isinstance(self.precision, str) or self.precision not in get_args(Precision):
            rule = "precision must be full, int8 or int4"
            raise InputError(rule, got=shown(self.precision), cure="full is the default")
        margin: Any = self.margin
        if margin is not None and not (isinstance(margin, Real) and 0 <= float(margin) < float("inf")):
            cure = "None sets no margin"
            raise InputError("margin must be a number of at least 0", got=shown(self.margin), cure=cure)


@checked
@dataclass(frozen=True)
class Plan:
    """Stages in order: dims never decrease, keeps never increase, and coarse precisions come first."""

    stages: tuple[Stage, ...]
    probe: float | None = None
    """IVF: the first stage reads only the nearest partitions, which hold about this share of the rows.

    The share is an average: a query that is about equally near to many partitions reads more. The first stage reads the
    4-bit codes of the partitions, whose dim each segment chooses; its own dim and precision describe its cost only.
    """
    ef: int | None = None
    """HNSW: the first stage walks the graph with this many candidates (``efSearch``)."""
    promise: Promise | None = field(default=None, compare=False, repr=False)
    """The guarantee of the planner that chose this plan; searches compare their queries with it."""

    def __post_init__(self) -> None:
        stages = self.stages
        if not stages:
            raise InputError("a plan must have at least one stage", got="none", cure="use Plan.single(dim)")
        if any(after.dim < before.dim for before, after in pairwise(stages)):
            raise InputError(
                "dims must not decrease from stage to stage", got=[s.dim for s in stages], cure="put short dims first"
            )
        if any(after.keep > before.keep for before, after in pairwise(stages)):
            raise InputError(
                "keeps must not increase from stage to stage", got=[s.keep for s in stages], cure="keep more before"
            )
        if any(_FINER.index(after.precision) < _FINER.index(before.precision) for before, after in pairwise(stages)):
            got = [stage.precision for stage in stages]
            raise InputError("precision must not decrease from stage to stage", got=got, cure="put int8 stages first")
        if any(stage.precision == "int4" for stage in (stages if self.probe is None else stages[1:])):
            cure = "pass probe=0.05, or use int8"
            raise InputError("int4 is for the first stage of a plan with probe", got="int4 elsewhere", cure=cure)
        self._check_guide()

    def _check_guide(self) -> None:
        if self.probe is not None and self.ef is not None:
            raise InputError("a plan can use one guide", got="probe and ef", cure="remove probe or ef")
        if self.probe is not None and not 0 < self.probe <= 1:
            raise InputError("probe must be a share of the rows in (0, 1]", got=self.probe, cure="try probe=0.05")
        if self.ef is not None and self.ef < self.stages[0].keep:
            raise InputError(
                "ef must be at least the keep of the first stage",
                got=f"ef={self.ef}, keep={self.stages[0].keep}",
                cure="raise ef or lower keep",
            )

    @classmethod
    def of(cls, stages: Iterable[Stage | tuple[int, int] | tuple[int, int, Precision]]) -> Plan:
        """A plan from stages, or from tuples (dim, keep) or (dim, keep, precision).

        >>> Plan.of([(64, 200, "int8"), (2048, 10)]).stages[0]
        Stage(dim=64, keep=200, precision='int8', margin=None)
        """
        try:
            return cls(tuple(stage if isinstance(stage, Stage) else Stage(*stage) for stage in stages))
        except TypeError as error:   # not a list, or not of tuples
            cure = "for example Plan.of([(16, 200), (64, 10)])"
            raise InputError("stages must be (dim, keep) each", got=error, cure=cure) from None

    @classmethod
    @checked
    def single(cls, dim: int, *, k: int = 10, precision: Precision = "full", **guide: Any) -> Plan:
        """One stage that scores every row at ``dim``. ``guide`` is ``probe=…`` or ``ef=…``."""
        _check_k(k)
        return cls((Stage(dim, k, precision),), **guide)

    @classmethod
    @checked
    def adaptive(
        cls, short: int, long: int, *, keep: int, k: int = 10, precision: Precision = "full", **guide: Any
    ) -> Plan:
        """Adaptive retrieval: a shortlist of ``keep`` rows at ``short`` dims, re-ranked at ``long`` dims.

        ``precision`` applies to the first stage.
        """
        _check_k(k, keep)
        return cls((Stage(short, keep, precision), Stage(long, k)), **guide)

    @classmethod
    @checked
    def funnel(
        cls, short: int, long: int, *, keep: int, k: int = 10, precision: Precision = "full", **guide: Any
    ) -> Plan:
        """The paper's funnel: keep halves while dim doubles; once keep is ``k``, the last stage is at ``long`` dims.

        If a keep could not be halved again without falling below ``k``, it becomes ``k`` at once (25 → 10, not 12).
        ``precision`` applies to the first stage.
        """
        _check_k(k, keep)
        stages, dim = [Stage(short, keep, precision)], short
        while stages[-1].keep > k and 2 * dim < long:
            half = stages[-1].keep // 2
            dim *= 2
            stages.append(Stage(dim, half if half >= 2 * k else k))
        return cls((*stages, Stage(long, k)), **guide)

    @classmethod
    def from_dict(cls, fields: Any) -> Plan:
        """Rebuild a plan from :meth:`to_dict`.

        >>> plan = Plan.adaptive(64, 512, keep=100, precision="int8", probe=0.05)
        >>> Plan.from_dict(plan.to_dict()) == plan
        True
        """
        try:
            stages = tuple(Stage(**stage) for stage in fields["stages"])
            promise = None if fields.get("promise") is None else Promise.from_dict(fields["promise"])
            rest = {name: value for name, value in fields.items() if name not in ("stages", "promise")}
            return cls(stages, promise=promise, **rest)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise InputError(
                "a plan must have stages with dim and keep", got=error, cure="write the file with matryo plan --out"
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values; fields at their default are omitted."""
        stages = [{name: value for name, value in asdict(stage).items() if value not in (None, "full")}
                  for stage in self.stages]
        guide = {name: value for name, value in (("probe", self.probe), ("ef", self.ef)) if value is not None}
        promise = {} if self.promise is None else {"promise": self.promise.to_dict()}
        return {"stages": stages, **guide, **promise}

    @property
    def dim(self) -> int:
        """The dim of the last stage, which gives the final scores."""
        return self.stages[-1].dim

    def for_k(self, k: int) -> Plan:
        """This plan for ``k`` hits: the last stage keeps ``k``, and every stage before it at least ``k``.

        >>> [stage.keep for stage in Plan.funnel(16, 2048, keep=200).for_k(50).stages]
        [200, 100, 50, 50, 50, 50]
        """
        _check_k(k)
        before = (replace(stage, keep=max(stage.keep, k)) for stage in self.stages[:-1])
        plan = replace(self, stages=(*before, replace(self.stages[-1], keep=k)), ef=None)
        return plan if self.ef is None else replace(plan, ef=max(self.ef, plan.stages[0].keep))

    @checked
    def among(self, count: int) -> Plan:
        """This plan without the stages that would keep their whole input, for ``count`` rows.

        The next stage reads those columns anyway, so such a stage changes nothing.
        """
        kept, candidates = [], self._visited(count)
        for stage in self.stages[:-1]:
            if stage.keep < candidates or stage.margin is not None:
                kept.append(stage)
                candidates = min(stage.keep, candidates)
        return replace(self, stages=(*kept, self.stages[-1]), ef=None if not kept else self.ef)

    @checked
    def check_fits(self, nesting: Nesting | Iterable[int]) -> None:
        """Raise unless the dim of every stage that reads the vectors is one of ``nesting``."""
        nesting = as_nesting(nesting)
        read = self.stages[1:] if self.probe is not None and len(self.stages) > 1 else self.stages
        missing = [stage.dim for stage in read if stage.dim not in nesting.dims]
        if missing:
            raise NestingError(
                f"the dims of a plan must be dims of the index: {', '.join(map(str, nesting.dims))}",
                got=", ".join(map(str, missing)),
                cure="use those dims, or create the index with a nesting that has these",
            )

    @checked
    def mflops(self, count: int, *, reuse: bool = True) -> float:
        """Millions of multiply-adds per query among ``count`` vectors.

        By default this counts the operations that are executed. ``reuse=False`` counts as the paper does, where each
        stage scores all its dims again.

        >>> round(Plan.funnel(16, 2048, keep=200).mflops(1_281_167, reuse=False), 2)    # the paper: 20.54
        20.54
        """
        if reuse:
            return sum(given * added for _, given, added in self._work(count)) / 1e6
        given = (self._visited(count), *(min(stage.keep, count) for stage in self.stages))
        return sum(rows * stage.dim for rows, stage in zip(given, self.stages, strict=False)) / 1e6

    @checked
    def bytes(self, count: int, dtype: str = "float32") -> int:
        """Bytes of vectors read per query among ``count`` vectors; stages in full precision read ``dtype``."""
        return sum(given * vector_bytes(added, _dtype(stage, dtype)) for stage, given, added in self._work(count))

    @checked
    def table(self, count: int, dtype: str = "float32") -> str:
        """The cost of each stage per query among ``count`` vectors, as aligned text."""
        rows = [("dim", "keep", "precision", "rows", "MFLOPs", "bytes")]
        for stage, given, added in self._work(count):
            size = given * vector_bytes(added, _dtype(stage, dtype))
            cells = (str(stage.dim), f"{stage.keep:,}", stage.precision, f"{given:,}")
            rows.append((*cells, f"{given * added / 1e6:.3g}", size_text(size)))
        rows.append(("all", "", "", "", f"{self.mflops(count):.3g}", size_text(self.bytes(count, dtype))))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*lines, f"per query, among {count:,} vectors of {dtype}"])

    def __str__(self) -> str:
        return self.table(_SHOWN)

    def _visited(self, count: int) -> int:
        # The rows that the first stage scores. For a graph this is an estimate: a walk scores the neighbours of each
        # candidate, and some of them were scored before.
        if self.ef is not None:
            return min(count, _DEGREE * self.ef)
        return count if self.probe is None else min(count, max(1, round(self.probe * count)))

    def _work(self, count: int) -> Iterator[tuple[Stage, int, int]]:
        # Each executed stage, the number of its input rows, and the number of columns it reads of each.
        given, done, before = self._visited(count), 0, self.stages[0].precision
        for stage in self.among(count).stages:
            # Partial sums in int8 cannot be extended in full precision, so the first full stage starts at column 0.
            yield stage, given, stage.dim - (done if stage.precision == before else 0)
            given, done, before = min(stage.keep, given), stage.dim, stage.precision


def check_count(name: str, value: Any, example: int) -> None:
    """Raise unless ``value`` is a positive integer; the error suggests the ``example``."""
    as_integer(value, name, 1, cure=f"pass {name}={example}")


def _check_k(k: Any, keep: int | None = None) -> None:
    check_count("k", k, example=10)
    if keep is not None and keep < k:
        raise InputError("keep must be at least k", got=f"keep={keep}, k={k}", cure="raise keep or lower k")


def _dtype(stage: Stage, dtype: str) -> str:
    return dtype if stage.precision == "full" else stage.precision


def size_text(size: float) -> str:
    """A number of bytes with its unit.

    >>> size_text(12_800)
    '12.8 kB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
