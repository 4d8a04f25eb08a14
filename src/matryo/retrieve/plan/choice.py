"""The result of the planner: the plans it tested, from the safest to the cheapest, and the chosen one.

>>> points = (Point(Plan.single(64), 1.0, 1.0, True, 0.8, 25.6e6, 6.4),
...           Point(Plan.adaptive(16, 64, keep=80), 0.995, 0.991, True, 0.21, 6.4e6, 1.6))
>>> print(Choice(points[1].plan, points, target=0.99, k=10, tuned_on=125, tested_on=375))
   plan           recall  at least    ms   bytes  MFLOPs
   64            100.00%   100.00%   0.8   25.6M     6.4  passed
 ▸ 16:80 → 64     99.50%    99.10%  0.21    6.4M     1.6  passed
recall@10 ≥ 99% on new queries like these, with 95% confidence: 0.21 ms per query
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from matryo.errors import InputError, shown
from matryo.files import parse_json
from matryo.results import Result
from matryo.retrieve.plan.plan import Plan

if TYPE_CHECKING:
    from typing import Self

Cost = Literal["latency", "bytes", "mflops"]
"""The unit of cost per query: milliseconds on one thread, bytes of vectors read, or millions of multiply-adds."""

UNITS = {"latency": "ms", "bytes": "bytes", "mflops": "MFLOPs"}


@dataclass(frozen=True)
class Point:
    """A tested plan with its recall and its cost per query."""

    plan: Plan
    recall: float
    """On the test queries, relative to exact search at full dim."""
    lower: float
    """The lower confidence bound on the recall of this plan alone, for all queries of this kind."""
    held: bool
    """Whether this plan and every plan before it passed the test."""
    latency: float | None
    """Milliseconds; None if not measured."""
    bytes: float
    """A mean over queries, as ``mflops`` is: with a margin, the shortlist length differs between queries."""
    mflops: float

    def cost(self, unit: Cost) -> float:
        """The cost per query in ``unit``."""
        value: float | None = getattr(self, unit)
        assert value is not None   # the planner measures latency when it minimises latency
        return value


@dataclass(frozen=True)
class Choice(Result):
    """The plan that the planner chose, and the plans it chose from."""

    kind: ClassVar[str] = "plan"
    plan: Plan | None
    """The cheapest plan that passed, if it is within the budget; else None."""
    frontier: tuple[Point, ...]
    """All tested plans, from exact search at full dim to the cheapest."""
    target: float
    k: int
    tuned_on: int
    """The number of tuning queries, from which the plans were built."""
    tested_on: int
    """The number of test queries; none of them is a tuning query."""
    confidence: float = 0.95
    unit: Cost = "latency"
    budget: float | None = None
    metric: Literal["recall", "mAP"] = "recall"
    """The quantity that the target applies to: recall of exact search, or mAP by labels relative to exact search."""
    from_rows: bool = False
    """Whether rows of the index were used as queries: the guarantee is then for queries like the rows."""

    @property
    def met(self) -> bool:
        """Whether a plan meets the target, within the budget if there is one."""
        return self.plan is not None

    @property
    def point(self) -> Point | None:
        """The chosen point of the frontier."""
        return next((point for point in self.frontier if self.met and point.plan == self.plan), None)

    @property
    def cheapest(self) -> Point:
        """The cheapest plan that passed, ignoring the budget; exact search always passes."""
        return min((point for point in reversed(self.frontier) if point.held), key=lambda point: point.cost(self.unit))

    @property
    def message(self) -> str:
        """One sentence: the guarantee, or why there is none."""
        confidence = f"with {self.confidence:.0%} confidence"
        of_exact = " of exact search's" if self.metric == "mAP" else ""
        goal = f"{self.metric}@{self.k} ≥ {100 * self.target:.4g}%{of_exact}"
        like = "queries like the rows of the index" if self.from_rows else "new queries like these"
        if self.point is not None:
            only = "; no plan cheaper than exact search reaches it" if self.point == self.frontier[0] else ""
            return f"{goal} on {like}, {confidence}: {self._priced(self.point.cost(self.unit))} per query{only}"
        assert self.budget is not None   # exact search always passes, so only a budget can rule out every plan
        cheapest = f"the cheapest plan that does costs {self._priced(self.cheapest.cost(self.unit))}"
        none = f"no plan within {self._priced(self.budget)} per query reaches {goal}, {confidence}: {cheapest}"
        within = [point for point in self.frontier if point.cost(self.unit) <= self.budget]
        if not within:
            return f"{none}, and no tested plan is within the budget"
        best = max(within, key=lambda point: (point.lower, point.recall))
        return f"{none}; within the budget, the best is {100 * best.recall:.4g}% (at least {100 * best.lower:.4g}%)"

    def to_rows(self) -> list[dict[str, Any]]:
        """The frontier as a list of flat dicts, for a data frame or a CSV file."""
        return [
            {"plan": outline(point.plan, self.k), "chosen": point is self.point}
            | {part.name: getattr(point, part.name) for part in fields(point) if part.name != "plan"}
            for point in self.frontier
        ]

    def __str__(self) -> str:
        timed = self.frontier[0].latency is not None
        lines = [["", "plan", self.metric, "at least", *(["ms"] if timed else []), "bytes", "MFLOPs", ""]]
        for point in self.frontier:
            recalls = [f"{100 * point.recall:.2f}%", f"{100 * point.lower:.2f}%"]
            costs = [short_number(cost) for cost in (point.latency, point.bytes, point.mflops) if cost is not None]
            mark = "▸" if point is self.point else ""
            lines.append([mark, outline(point.plan, self.k), *recalls, *costs, "passed" if point.held else ""])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = []
        for mark, name, *cells, passed in lines:
            figures = (cell.rjust(width) for cell, width in zip(cells, widths[2:-1], strict=True))
            text.append(f" {mark:1} {'  '.join((name.ljust(widths[1]), *figures, passed))}".rstrip())
        return "\n".join([*text, self.message])

    def to_figures(self) -> dict[str, Any]:
        """The choice as plain JSON values, for the figures of a stored row."""
        plan = None if self.plan is None else self.plan.to_dict()
        frontier = [vars(point) | {"plan": point.plan.to_dict()} for point in self.frontier]
        return super().to_figures() | {"plan": plan, "frontier": frontier}

    @classmethod
    def from_figures(cls, figures: Mapping[str, Any]) -> Self:
        """Rebuild a choice from :meth:`to_figures`."""
        plan = None if figures["plan"] is None else Plan.from_dict(figures["plan"])
        points = (Point(**point | {"plan": Plan.from_dict(point["plan"])}) for point in figures["frontier"])
        return cls(**{**figures, "plan": plan, "frontier": tuple(points)})

    def _priced(self, value: float) -> str:
        return f"{short_number(value)} {UNITS[self.unit]}"


def as_plan(value: Any) -> Plan:
    """``value`` as a plan: a plan, a choice of the planner, a dict, JSON text, or the path of a saved plan.

    >>> as_plan('{"stages": [{"dim": 16, "keep": 80}, {"dim": 64, "keep": 10}]}') == Plan.adaptive(16, 64, keep=80)
    True
    """
    if isinstance(value, Plan):
        return value
    if isinstance(value, Choice):
        if value.plan is None:
            raise InputError("the planner chose no plan", cure=f"raise the budget; {value.message}")
        return value.plan
    if isinstance(value, str | Path):
        is_text = str(value).lstrip().startswith("{")
        try:
            fields = parse_json(str(value) if is_text else Path(value).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            name, cure = "plan" if is_text else value, "write a plan with: matryo plan FOLDER --out plan.json"
            raise InputError(f"{name} must be a plan in JSON", got=error, cure=cure) from error
        return Plan.from_dict(fields)
    if isinstance(value, Mapping):
        return Plan.from_dict(value)
    raise InputError(
        "plan must be a Plan, a choice of index.plan(…), a dict or the path of a saved plan",
        got=shown(value),
        cure="for example plan=Plan.adaptive(16, 64, keep=200)",
    )


def outline(plan: Plan, k: int) -> str:
    """A plan in one line: the dim of each stage, and its keep where that is not ``k``.

    >>> outline(Plan.of([(16, 200, "int8"), (64, 50), (512, 10)]), k=10)
    '16 int8:200 → 64:50 → 512'
    >>> outline(Plan.adaptive(64, 512, keep=400, probe=0.05), k=10)
    'probe 5%: 64:400 → 512'
    """
    parts = []
    for stage in plan.stages:
        keep = f":{'' if stage.margin is None else '≤'}{stage.keep}" if stage.keep != k else ""
        near = "" if stage.margin is None else f" within {stage.margin:.3g}"
        parts.append(f"{stage.dim}{'' if stage.precision == 'full' else ' ' + stage.precision}{keep}{near}")
    guide = f"probe {100 * plan.probe:.3g}%: " if plan.probe is not None else ""
    return (f"ef {plan.ef}: " if plan.ef is not None else guide) + " → ".join(parts)


def short_number(value: float) -> str:
    """A number with three significant digits and a metric prefix.

    >>> short_number(25_600_000), short_number(0.2104)
    ('25.6M', '0.21')
    """
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"
