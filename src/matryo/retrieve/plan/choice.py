"""The frontier that a planner found: plans from the safest to the cheapest, what each promises, as a table and drawn.

>>> points = (Point(Plan.single(64), 1.0, 1.0, True, 0.8, 25.6e6, 6.4),
...           Point(Plan.adaptive(16, 64, keep=80), 0.995, 0.991, True, 0.21, 6.4e6, 1.6))
>>> print(Choice(points[1].plan, points, target=0.99, k=10, tuned_on=125, tested_on=375))
   plan           recall  at least    ms   bytes  MFLOPs
   64            100.00%   100.00%   0.8   25.6M     6.4  held
 ▸ 16:80 → 64     99.50%    99.10%  0.21    6.4M     1.6  held
recall@10 ≥ 99% on new queries, with 95% confidence: 0.21 ms a query
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from matryo.errors import InputError, MissingExtra
from matryo.files import replacing
from matryo.results import Result
from matryo.retrieve.plan.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Doubles = np.ndarray[Any, np.dtype[np.float64]]

__all__ = ["Choice", "Cost", "Point", "best_stake", "draw", "fewest_tests", "lower_bound", "outline",
           "predicted_bound", "save"]  # fmt: skip

Cost = Literal["latency", "bytes", "mflops"]
"""What a plan costs a query: milliseconds on one thread, bytes of vectors read, or millions of multiply-adds."""

_UNITS = {"latency": "ms", "bytes": "bytes", "mflops": "MFLOPs"}
_STAKES = np.linspace(0.05, 0.95, 19)   # never all: a single query that finds nothing would take it


@dataclass(frozen=True)
class Point:
    """A plan with what it finds and what it costs a query."""

    plan: Plan
    recall: float
    """On the queries of the test: the share of what exact search at full dim finds."""
    lower: float
    """The same for all queries like them, at least, with the planner's confidence; of this plan alone."""
    held: bool
    """Whether it passed the test, in which every plan before it passed too."""
    latency: float | None
    """Milliseconds, if measured."""
    bytes: float
    """In the mean, as ``mflops``: a margin keeps fewer for some queries than for others."""
    mflops: float

    def cost(self, unit: Cost) -> float:
        """What a query costs in ``unit``."""
        value: float | None = getattr(self, unit)
        assert value is not None   # measured where it is asked for
        return value


@dataclass(frozen=True)
class Choice(Result):
    """What a planner chose, and among what."""

    kind: ClassVar[str] = "plan"
    plan: Plan | None
    """The cheapest that held, within the budget if there is one; None if none did."""
    frontier: tuple[Point, ...]
    """From the safest, exact search at full dim, to the cheapest."""
    target: float
    k: int
    tuned_on: int
    """Queries that shaped the plans."""
    tested_on: int
    """Others, that tested them."""
    confidence: float = 0.95
    unit: Cost = "latency"
    budget: float | None = None
    metric: Literal["recall", "mAP"] = "recall"
    """What is kept of exact search: its hits, or its mAP by labels."""

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
        """The cheapest that held, whatever the budget; exact search always holds."""
        return min((point for point in self.frontier if point.held), key=lambda point: point.cost(self.unit))

    @property
    def message(self) -> str:
        """What is promised, or why nothing is, in a line or two."""
        sure = f"with {self.confidence:.0%} confidence"
        what = f"{self.metric}@{self.k} ≥ {100 * self.target:.4g}%" + self._whose
        if self.point is not None:
            only = "; no plan cheaper than exact search can promise it" if self.point == self.frontier[0] else ""
            return f"{what} on new queries, {sure}: {self._told(self.point.cost(self.unit))} a query{only}"
        assert self.budget is not None   # exact search holds, so only a budget forbids
        dear = f"the cheapest plan that does costs {self._told(self.cheapest.cost(self.unit))}"
        none = f"no plan within {self._told(self.budget)} a query promises {what}, {sure}: {dear}"
        within = [point for point in self.frontier if point.cost(self.unit) <= self.budget]
        if not within:
            return f"{none}, and no plan tried is within the budget"
        best = max(within, key=lambda point: (point.lower, point.recall))
        return f"{none}; the budget buys {100 * best.recall:.4g}% (at least {100 * best.lower:.4g}%)"

    def to_rows(self) -> list[dict[str, Any]]:
        """The frontier as a list of flat dicts, for a data frame or CSV."""
        return [
            {"plan": outline(point.plan, self.k), "chosen": point is self.point}
            | {part.name: getattr(point, part.name) for part in fields(point) if part.name != "plan"}
            for point in self.frontier
        ]

    def __str__(self) -> str:
        timed = self.frontier[0].latency is not None
        lines = [["", "plan", self.metric, "at least", *(["ms"] if timed else []), "bytes", "MFLOPs", ""]]
        for point in self.frontier:
            worth = [f"{100 * point.recall:.2f}%", f"{100 * point.lower:.2f}%"]
            price = [_short(one) for one in (point.latency, point.bytes, point.mflops) if one is not None]
            mark = "▸" if point is self.point else ""
            lines.append([mark, outline(point.plan, self.k), *worth, *price, "held" if point.held else ""])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = []
        for mark, name, *cells, held in lines:
            figures = (cell.rjust(width) for cell, width in zip(cells, widths[2:-1], strict=True))
            text.append(f" {mark:1} {'  '.join((name.ljust(widths[1]), *figures, held))}".rstrip())
        return "\n".join([*text, self.message])

    def to_figures(self) -> dict[str, Any]:
        """As plain JSON values, for the figures of a stored row."""
        plan = None if self.plan is None else self.plan.to_dict()
        frontier = [vars(point) | {"plan": point.plan.to_dict()} for point in self.frontier]
        return super().to_figures() | {"plan": plan, "frontier": frontier}

    @classmethod
    def from_figures(cls, figures: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_figures`."""
        plan = None if figures["plan"] is None else Plan.from_dict(figures["plan"])
        points = (Point(**point | {"plan": Plan.from_dict(point["plan"])}) for point in figures["frontier"])
        return cls(**{**figures, "plan": plan, "frontier": tuple(points)})

    @property
    def _whose(self) -> str:
        return " of exact search's" if self.metric == "mAP" else ""

    def _told(self, value: float) -> str:
        return f"{_short(value)} {_UNITS[self.unit]}"


def outline(plan: Plan, k: int) -> str:
    """A plan in a few words: each stage's dim and what it keeps, where that is not the ``k`` hits.

    >>> outline(Plan.of([(16, 200, "int8"), (64, 50), (512, 10)]), k=10)
    '16 int8:200 → 64:50 → 512'
    >>> outline(Plan.adaptive(64, 512, keep=400, probe=0.05), k=10)
    'probe 5%: 64:400 → 512'
    """
    parts = []
    for stage in plan.stages:
        keep = f":{'' if stage.margin is None else '≤'}{stage.keep}" if stage.keep != k else ""
        near = "" if stage.margin is None else f" within {stage.margin:.3g}"
        parts.append(f"{stage.dim}{' int8' if stage.precision == 'int8' else ''}{keep}{near}")
    guide = f"probe {100 * plan.probe:.3g}%: " if plan.probe is not None else ""
    return (f"ef {plan.ef}: " if plan.ef is not None else guide) + " → ".join(parts)


def _short(value: float) -> str:
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"


# ── promised ──────────────────────────────────────────────────────────────────────────────────────────────────────


def lower_bound(values: Doubles, base: Doubles, stake: float, confidence: float) -> float:
    """The least that the mean of ``values`` can be, as a share of the mean of ``base``, with ``confidence``.

    Both lie in [0, 1], a pair a query; for a recall ``base`` is 1. It is a bet against each share t in turn, where a
    query pays ``1 − stake · base + stake · value / t`` for what was put in. Were the true share t or less, one would
    lose in the mean, and have ``1 / (1 − confidence)`` times as much in the end with a chance of at most
    ``1 − confidence``. So a t against which that much was won is too low (Waudby-Smith and Ramdas, 2024). Nothing is
    normal here, and recalls near 1 are far from it. The ``stake`` must not depend on these queries.

    >>> round(lower_bound(np.ones(400), np.ones(400), 0.95, 0.95), 4)
    0.9921
    """
    return float(_lower_bounds(values, base, np.array([stake]), -math.log1p(-confidence))[0])


def best_stake(values: Doubles, base: Doubles, tests: int, confidence: float) -> float:
    """The stake that would give queries like these the highest bound, were there as many as ``tests``."""
    return float(_STAKES[_predicted(values, base, tests, confidence).argmax()])


def predicted_bound(values: Doubles, base: Doubles, tests: int, confidence: float) -> float:
    """The bound that as many as ``tests`` queries like these would give."""
    return float(_predicted(values, base, tests, confidence).max())


def fewest_tests(target: float, confidence: float) -> int:
    """How many queries must be tested, so that a plan which misses nothing is promised ``target``."""
    stake = _STAKES[-1]
    return math.ceil(-math.log1p(-confidence) / math.log1p(stake * (1 - target) / target))


def _predicted(values: Doubles, base: Doubles, tests: int, confidence: float) -> Doubles:
    return _lower_bounds(values, base, _STAKES, -math.log1p(-confidence) * len(values) / tests)


def _lower_bounds(values: Doubles, base: Doubles, stakes: Doubles, won: float) -> Doubles:
    # What is won falls as t rises: bisect, for all stakes at once.
    low, high = np.zeros(len(stakes)), np.full(len(stakes), 2.0)
    for _ in range(50):
        share = (low + high) / 2
        paid = 1 - stakes[:, None] * base + (stakes / share)[:, None] * values
        enough = np.log(paid).sum(axis=1) >= won
        low, high = np.where(enough, share, low), np.where(enough, high, share)
    return low


# ── drawn ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_INK, _SOFT, _RULE, _BLUE, _ORANGE = "#1c1d20", "#5d6067", "#d8dade", "#0072b2", "#d55e00"   # as in the report
_SETTINGS = {
    "font.size": 11.5,
    "axes.titlesize": 11.5,
    "axes.labelsize": 11.5,
    "legend.fontsize": 11.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _SOFT,
    "axes.facecolor": "none",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "axes.grid": True,
    "grid.color": _RULE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "matryo",
}


def draw(choice: Choice) -> Figure:
    """Recall against cost: each plan with its lower bound, the target, the budget, and what was chosen."""
    with MissingExtra.unless_installed("matplotlib", "report"):
        from matplotlib import style
        from matplotlib.figure import Figure
    with style.context(["default", _SETTINGS]):
        figure = Figure(figsize=(5.0, 3.6), layout="constrained")
        axes = figure.subplots()
        _plot(axes, choice)
        figure.legend(loc="outside lower left", ncols=2, handlelength=2.4)
    return figure


def save(choice: Choice, path: str | Path) -> None:
    """Draw into a file, ``.svg`` or ``.png``; the same choice gives the same bytes."""
    kind = Path(path).suffix.lower()
    if kind not in (".svg", ".png"):
        raise InputError("a frontier is drawn into a .svg or .png", got=path, cure="rename it")
    figure = draw(choice)
    from matplotlib import style

    about = {"Date": None, "Creator": None} if kind == ".svg" else {"Software": None}
    with style.context(["default", _SETTINGS]), replacing(Path(path)) as file:
        figure.savefig(file, format=kind[1:], dpi=200, metadata=about)


def _plot(axes: Axes, choice: Choice) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    points = sorted(choice.frontier, key=lambda point: point.cost(choice.unit))
    costs, recalls = [point.cost(choice.unit) for point in points], [point.recall for point in points]
    down = [max(0.0, point.recall - point.lower) for point in points]
    axes.errorbar(costs, recalls, yerr=[down, [0.0] * len(down)], fmt="none", ecolor=_SOFT, elinewidth=1.1, capsize=2,
                  label=f"down to the bound ({choice.confidence:.0%})")  # fmt: skip
    axes.plot(costs, recalls, color=_BLUE, marker="o", markersize=5, markerfacecolor="white", label="not promised")
    held = [point for point in points if point.held]
    axes.plot([point.cost(choice.unit) for point in held], [point.recall for point in held],
              color=_BLUE, marker="o", markersize=5, linestyle="none", label="held in the test")  # fmt: skip
    axes.axhline(choice.target, color=_INK, linestyle=(0, (5, 2)), linewidth=1.1, label="target")
    if choice.budget is not None:
        axes.axvline(choice.budget, color=_INK, linestyle=(0, (1.5, 1.5)), linewidth=1.1, label="budget")
    if choice.point is not None:
        axes.plot(choice.point.cost(choice.unit), choice.point.recall, color=_ORANGE, marker="D", markersize=8,
                  linestyle="none", label="chosen")  # fmt: skip
    # Far below the target there is nothing to choose.
    low = max(min(point.lower for point in points), 1 - 8 * (1 - choice.target))
    axes.set_ylim(low - 0.05 * (1 - low), max(1.0, *recalls) + 0.05 * (1 - low))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    axes.set_title(f"{choice.metric}@{choice.k}, % of exact search", loc="left")
    axes.set_xlabel(f"{_UNITS[choice.unit]} a query", loc="right")
