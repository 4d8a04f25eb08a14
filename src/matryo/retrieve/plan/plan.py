"""A plan: which dims a search reads, stage by stage, how many rows each stage keeps, and what that costs.

A stage scores its input at ``dim`` and keeps the best ``keep``; the first one's input is every row, or those that a
guide of the index leads to. A later stage reads only the columns it adds, as the inner product of a longer prefix is
that of the shorter plus the rest. With a ``margin`` each query keeps as many as it needs: what is too far below the
k-th best is dropped.

>>> print(Plan.adaptive(16, 2048, keep=200))
 dim  keep  precision       rows  MFLOPs     bytes
  16   200       full  1,000,000      16   64.0 MB
2048    10       full        200   0.406    1.6 MB
 all                                16.4   65.6 MB
a query, among 1,000,000 vectors of float32
>>> [(stage.dim, stage.keep) for stage in Plan.funnel(16, 2048, keep=200).stages]
[(16, 200), (32, 100), (64, 50), (128, 25), (256, 10), (2048, 10)]
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from matryo.errors import InputError, NestingError
from matryo.metrics import vector_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from matryo.nesting import Nesting

__all__ = ["Plan", "Precision", "Stage"]

Precision = Literal["full", "int8"]
"""What a stage reads: the vectors as they are stored, or their copies in 8 bits."""

_DEGREE = 16   # new rows that a step through a graph scores, about
_SHOWN = 1_000_000   # the number of vectors for which a plan is printed


@dataclass(frozen=True)
class Stage:
    """Score the input at ``dim`` and keep the best ``keep``."""

    dim: int
    keep: int
    precision: Precision = "full"
    margin: float | None = None
    """Drop what scores less than the k-th best of this stage by more than this; k is what the search asks for."""

    def __post_init__(self) -> None:
        for name in ("dim", "keep"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be an integer of at least 1", got=repr(value), cure="give one")
            object.__setattr__(self, name, int(value))
        if self.precision not in get_args(Precision):
            raise InputError("precision must be full or int8", got=repr(self.precision), cure="full is exact")
        if self.margin is not None and not 0 <= self.margin < float("inf"):
            raise InputError("margin must be a number of at least 0", got=repr(self.margin), cure="None drops nothing")


@dataclass(frozen=True)
class Plan:
    """Stages in order: dims never fall, keeps never rise, and those in int8 come first."""

    stages: tuple[Stage, ...]
    probe: float | None = None
    """The first stage looks at the nearest partitions only, which hold about this share of the rows.

    On average: a query for which many partitions are about equally near looks at more, up to three times as many.
    """
    ef: int | None = None
    """The first stage is a walk through a graph that holds this many candidates."""

    def __post_init__(self) -> None:
        stages = self.stages
        if not stages:
            raise InputError("a plan must have a stage", got="none", cure="Plan.single(dim) has one")
        if any(after.dim < before.dim for before, after in pairwise(stages)):
            raise InputError(
                "dims must not fall from stage to stage", got=[s.dim for s in stages], cure="list the short ones first"
            )
        if any(after.keep > before.keep for before, after in pairwise(stages)):
            raise InputError(
                "keeps must not rise from stage to stage", got=[s.keep for s in stages], cure="keep more before"
            )
        if any(before.precision == "full" and after.precision == "int8" for before, after in pairwise(stages)):
            raise InputError(
                "int8 must not follow full precision", got=[s.precision for s in stages], cure="put int8 first"
            )
        self._check_guide()

    def _check_guide(self) -> None:
        if self.probe is not None and self.ef is not None:
            raise InputError("a plan must follow one guide", got="probe and ef", cure="keep one of them")
        if self.probe is not None and not 0 < self.probe <= 1:
            raise InputError("probe must be a share of the rows, above 0 and up to 1", got=self.probe, cure="try 0.05")
        if self.ef is not None and self.ef < self.stages[0].keep:
            raise InputError(
                "ef must be at least what the first stage keeps",
                got=f"ef={self.ef}, keep={self.stages[0].keep}",
                cure="hold more candidates, or keep fewer",
            )

    @classmethod
    def of(cls, stages: Iterable[Stage | tuple[int, int] | tuple[int, int, Precision]]) -> Plan:
        """Any stages, also as tuples (dim, keep) or (dim, keep, precision).

        >>> Plan.of([(64, 200, "int8"), (2048, 10)]).stages[0]
        Stage(dim=64, keep=200, precision='int8', margin=None)
        """
        return cls(tuple(stage if isinstance(stage, Stage) else Stage(*stage) for stage in stages))

    @classmethod
    def single(cls, dim: int, *, k: int = 10, precision: Precision = "full", **guide: Any) -> Plan:
        """Every row at one dim: exact search there. ``guide`` is ``probe=…`` or ``ef=…``, here and below."""
        _check_k(k)
        return cls((Stage(dim, k, precision),), **guide)

    @classmethod
    def adaptive(
        cls, short: int, long: int, *, keep: int, k: int = 10, precision: Precision = "full", **guide: Any
    ) -> Plan:
        """The paper's adaptive retrieval: a shortlist of ``keep`` at ``short`` dims, ranked again at ``long``.

        ``precision`` is that of the first stage.
        """
        _check_k(k, keep)
        return cls((Stage(short, keep, precision), Stage(long, k)), **guide)

    @classmethod
    def funnel(
        cls, short: int, long: int, *, keep: int, k: int = 10, precision: Precision = "full", **guide: Any
    ) -> Plan:
        """The paper's funnel: the keep halves while the dim doubles; once it is ``k``, ``long`` is next and last.

        A half that could not be halved again without falling below ``k`` is ``k`` at once (25 → 10, not 12).
        ``precision`` is that of the first stage.
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
        """What :meth:`to_dict` gave, as a JSON file has it.

        >>> plan = Plan.adaptive(64, 512, keep=100, precision="int8", probe=0.05)
        >>> Plan.from_dict(plan.to_dict()) == plan
        True
        """
        try:
            stages = tuple(Stage(**stage) for stage in fields["stages"])
            return cls(stages, **{name: value for name, value in fields.items() if name != "stages"})
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                "a plan must have stages of dim and keep", got=str(error), cure="write one with Plan.to_dict()"
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """Names and numbers, for JSON; what is left at its default is left out."""
        stages = [{name: value for name, value in asdict(stage).items() if value not in (None, "full")}
                  for stage in self.stages]
        guide = {name: value for name, value in (("probe", self.probe), ("ef", self.ef)) if value is not None}
        return {"stages": stages, **guide}

    @property
    def dim(self) -> int:
        """The dim of the last stage, at which the hits are scored."""
        return self.stages[-1].dim

    def for_k(self, k: int) -> Plan:
        """The same plan for ``k`` hits: the last stage keeps ``k``, and none before it keeps fewer.

        >>> [stage.keep for stage in Plan.funnel(16, 2048, keep=200).for_k(50).stages]
        [200, 100, 50, 50, 50, 50]
        """
        _check_k(k)
        before = (replace(stage, keep=max(stage.keep, k)) for stage in self.stages[:-1])
        plan = replace(self, stages=(*before, replace(self.stages[-1], keep=k)), ef=None)
        return plan if self.ef is None else replace(plan, ef=max(self.ef, plan.stages[0].keep))

    def among(self, count: int) -> Plan:
        """The same plan without the stages that keep all the rows they are given, when there are ``count`` rows.

        What such a stage reads, the next one reads anyway.
        """
        kept, given = [], self._visited(count)
        for stage in self.stages[:-1]:
            if stage.keep < given or stage.margin is not None:
                kept.append(stage)
                given = min(stage.keep, given)
        return replace(self, stages=(*kept, self.stages[-1]), ef=None if not kept else self.ef)

    def check_fits(self, nesting: Nesting) -> None:
        """Raise unless every stage ends where a block of ``nesting`` ends."""
        strange = [stage.dim for stage in self.stages if stage.dim not in nesting.dims]
        if strange:
            raise NestingError(
                f"a plan's dims must be among those of the nesting, {', '.join(map(str, nesting.dims))}",
                got=", ".join(map(str, strange)),
                cure="plan with those dims, or store the vectors with a nesting that has these",
            )

    def mflops(self, count: int, *, reuse: bool = True) -> float:
        """Millions of multiply-adds a query among ``count`` vectors.

        Those that are really done; ``reuse=False`` counts as the paper does, as if each stage began anew.

        >>> round(Plan.funnel(16, 2048, keep=200).mflops(1_281_167, reuse=False), 2)    # its table says 20.54
        20.54
        """
        if reuse:
            return sum(given * added for _, given, added in self._work(count)) / 1e6
        given = (self._visited(count), *(min(stage.keep, count) for stage in self.stages))
        return sum(rows * stage.dim for rows, stage in zip(given, self.stages, strict=False)) / 1e6

    def bytes(self, count: int, dtype: str = "float32") -> int:
        """Bytes of vectors read for a query among ``count`` vectors, stored as ``dtype`` where not in int8."""
        return sum(given * vector_bytes(added, _dtype(stage, dtype)) for stage, given, added in self._work(count))

    def table(self, count: int, dtype: str = "float32") -> str:
        """The stages with what each costs a query among ``count`` vectors, as aligned text."""
        rows = [("dim", "keep", "precision", "rows", "MFLOPs", "bytes")]
        for stage, given, added in self._work(count):
            size = given * vector_bytes(added, _dtype(stage, dtype))
            about = (str(stage.dim), f"{stage.keep:,}", stage.precision, f"{given:,}")
            rows.append((*about, f"{given * added / 1e6:.3g}", _size(size)))
        rows.append(("all", "", "", "", f"{self.mflops(count):.3g}", _size(self.bytes(count, dtype))))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*lines, f"a query, among {count:,} vectors of {dtype}"])

    def __str__(self) -> str:
        return self.table(_SHOWN)

    def _visited(self, count: int) -> int:
        # The rows that the first stage scores. A walk scores the neighbours of each candidate it holds, some of which
        # it has seen; how many is not known before.
        if self.ef is not None:
            return min(count, _DEGREE * self.ef)
        return count if self.probe is None else min(count, max(1, round(self.probe * count)))

    def _work(self, count: int) -> Iterator[tuple[Stage, int, int]]:
        # Each stage that is run, the rows it is given and the columns it reads of them.
        given, done, before = self._visited(count), 0, self.stages[0].precision
        for stage in self.among(count).stages:
            # Sums in int8 are no part of sums in full precision: these begin anew.
            yield stage, given, stage.dim - (done if stage.precision == before else 0)
            given, done, before = min(stage.keep, given), stage.dim, stage.precision


def _check_k(k: Any, keep: int | None = None) -> None:
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise InputError("k must be an integer of at least 1", got=repr(k), cure="ask for a hit or more")
    if keep is not None and keep < k:
        raise InputError("keep must be at least k", got=f"keep={keep}, k={k}", cure="keep more, or pass a smaller k")


def _dtype(stage: Stage, dtype: str) -> str:
    return "int8" if stage.precision == "int8" else dtype


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
