"""The picture of a plan choice: recall against cost, with the target, the budget and the chosen plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matryo.errors import InputError, MissingExtra
from matryo.files import replacing
from matryo.retrieve.plan.choice import UNITS, Choice, short_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MARK = "matryo plan"   # in the metadata of the file, so that a later run may replace it

_INK, _SOFT, _RULE, _BLUE, _ORANGE = "#1c1d20", "#5d6067", "#d8dade", "#0072b2", "#d55e00"   # the colours of the report
_SETTINGS = {
    "font.size": 11.5, "axes.titlesize": 11.5, "axes.labelsize": 11.5, "legend.fontsize": 11.5,
    "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": _SOFT,
    "axes.facecolor": "none", "text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _SOFT,
    "ytick.color": _SOFT, "xtick.labelcolor": _INK, "ytick.labelcolor": _INK, "axes.grid": True, "grid.color": _RULE,
    "grid.linewidth": 0.6, "axes.axisbelow": True, "svg.fonttype": "none", "svg.hashsalt": "matryo",
}  # fmt: skip


def draw(choice: Choice) -> Figure:
    """Draw recall against cost: each plan with its lower bound, the target, the budget and the chosen plan."""
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
    """Draw into a ``.svg`` or ``.png`` file; equal choices give equal bytes."""
    kind = Path(path).suffix.lower()
    if kind not in (".svg", ".png"):
        raise InputError("a figure must be a .svg or .png file", got=path, cure="change the suffix")
    figure = draw(choice)
    from matplotlib import style

    metadata = {"Date": None, "Creator": _MARK} if kind == ".svg" else {"Software": _MARK}
    with style.context(["default", _SETTINGS]), replacing(Path(path)) as file:
        figure.savefig(file, format=kind[1:], dpi=200, metadata=metadata)


def is_picture(path: Path) -> bool:
    """Whether ``path`` is a file that :func:`save` wrote."""
    with path.open("rb") as file:
        return _MARK.encode() in file.read(4096)


def _plot(axes: Axes, choice: Choice) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    points = sorted(choice.frontier, key=lambda point: point.cost(choice.unit))
    costs, recalls = [point.cost(choice.unit) for point in points], [point.recall for point in points]
    down = [max(0.0, point.recall - point.lower) for point in points]
    axes.errorbar(costs, recalls, yerr=[down, [0.0] * len(down)], fmt="none", ecolor=_SOFT, elinewidth=1.1, capsize=2,
                  label=f"lower bound ({choice.confidence:.0%})")  # fmt: skip
    axes.plot(costs, recalls, color=_BLUE, marker="o", markersize=5, markerfacecolor="white", label="not passed")
    passed = [point for point in points if point.held]
    axes.plot([point.cost(choice.unit) for point in passed], [point.recall for point in passed],
              color=_BLUE, marker="o", markersize=5, linestyle="none", label="passed the test")  # fmt: skip
    axes.axhline(choice.target, color=_INK, linestyle=(0, (5, 2)), linewidth=1.1, label="target")
    if choice.budget is not None:
        axes.axvline(choice.budget, color=_INK, linestyle=(0, (1.5, 1.5)), linewidth=1.1, label="budget")
    if choice.point is not None:
        axes.plot(choice.point.cost(choice.unit), choice.point.recall, color=_ORANGE, marker="D", markersize=8,
                  linestyle="none", label="chosen")  # fmt: skip
    # Plans far below the target are cut off: nobody would choose them.
    low = max(min(point.lower for point in points), 1 - 8 * (1 - choice.target))
    axes.set_ylim(low - 0.05 * (1 - low), max(1.0, *recalls) + 0.05 * (1 - low))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    axes.set_title(f"{choice.metric}@{choice.k}, % of exact search", loc="left")
    axes.set_xlabel(f"{UNITS[choice.unit]} per query", loc="right")
