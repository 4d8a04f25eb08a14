"""Drawing with matplotlib: narrow figures with large type, shared axes, and export as SVG and PNG.

A figure is 360 points wide with 11.5-point type, which stays readable in a column of 360 pixels on a phone.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from matryo.errors import MissingExtra
from matryo.report.style import VARIABLES, Look, light

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from matryo.report.series import Curve, Point

    Drawn = tuple[Curve, Look, str]
    """A curve, its look and its label."""

WIDTH = 5.0   # inches
_LEGEND_LINE = 0.235
_DPI = 200
_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(["font.size", "axes.titlesize", "axes.labelsize", "legend.fontsize"], 11.5),
    **dict.fromkeys(["xtick.labelsize", "ytick.labelsize"], 11.5),
    "axes.titlepad": 8.0,
    "legend.frameon": False,
    "legend.borderaxespad": 0.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": light("soft"),
    "axes.facecolor": "none",
    "figure.facecolor": light("paper"),
    **dict.fromkeys(["text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"], light("ink")),
    **dict.fromkeys(["xtick.color", "ytick.color"], light("soft")),
    "axes.grid": True,
    "grid.color": light("rule"),
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "text.parse_math": False,   # names come from outside; a $ is a dollar
    "svg.fonttype": "none",     # text stays text: it uses the page's font and can be searched
    "svg.hashsalt": "matryo",   # equal rows give equal bytes
}


@dataclass(frozen=True)
class Drawing:
    """A figure as files."""

    svg: str
    png: bytes
    above_legend: float
    """Height without the legend, in points."""


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Draw with the report's settings; those of the process are restored afterwards."""
    with MissingExtra.unless_installed("matplotlib", "report"):
        from matplotlib import style
    with style.context(["default", _SETTINGS]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")   # a browser has more fonts
        yield


def sheet(heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """A figure with one panel per height in inches, stacked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=list(heights))
    return figure, list(axes[:, 0])


def chart(title: str, drawn: Sequence[Drawn], *, x: str = "dims", height: float = 2.7) -> Figure:
    """Lines over a logarithmic axis, with a legend below. The title names the split, then the metric."""
    figure, (axes,) = sheet([height])
    for curve, look, label in drawn:
        line(axes, curve, look, label=label)
    log_axis(axes, _ticks([point for curve, _, _ in drawn for point in curve.points]), x)
    percent_axis(axes, title)
    legend(figure, [axes])
    return figure


def line(axes: Axes, curve: Curve, look: Look, *, label: str) -> None:
    """Draw a curve with its error bars. Dims that were not trained have hollow marks."""
    if not curve.points:
        return
    xs, ys = [p.position for p in curve.points], [p.y for p in curve.points]
    for errors, sds, values, most in (
        ("yerr", [p.sd for p in curve.points], ys, 1.0), ("xerr", [p.x_sd for p in curve.points], xs, math.inf)
    ):  # fmt: skip
        if not all(map(math.isnan, sds)):
            lengths = [0.0 if math.isnan(sd) else sd for sd in sds]
            # A share lies between 0 and 1, and so do its bars; a correlation below 0 keeps its whole bar.
            down = [min(length, value) if value >= 0 else length for length, value in zip(lengths, values, strict=True)]
            up = [min(length, max(0.0, most - value)) for length, value in zip(lengths, values, strict=True)]
            bars: dict[str, Any] = {errors: [down, up]}
            axes.errorbar(xs, ys, **bars, fmt="none", ecolor=look.colour, elinewidth=1.1, capsize=2, zorder=2)
    style = (0, look.dash) if look.dash else "-"
    axes.plot(
        xs, ys, color=look.colour, linestyle=style, linewidth=look.width, label=short(label),
        marker=look.marker, markersize=5, markevery=[i for i, p in enumerate(curve.points) if p.trained],
    )  # fmt: skip
    hollow = [p for p in curve.points if not p.trained]
    axes.plot(
        [p.position for p in hollow], [p.y for p in hollow], linestyle="none", marker=look.marker, markersize=4.5,
        markerfacecolor=light("paper"), markeredgecolor=look.colour,
    )  # fmt: skip


def log_axis(axes: Axes, ticks: Iterable[float], label: str = "dims") -> None:
    """Give ``axes`` a logarithmic x-axis with these ticks, thinned where their labels would touch."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(_spaced(sorted(set(ticks)))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}" if value < 100 else f"{value:.0f}"))
    axes.set_xlabel(label, loc="right")


def percent_axis(axes: Axes, title: str) -> None:
    """Show fractions as percent on the y-axis, with the title above the panel."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    axes.set_title(title, loc="left")


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below all panels, each label once, in two columns where the labels are short enough."""
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if handles:
        columns = 1 if max(map(len, handles)) > 20 or len(handles) == 1 else 2
        figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * math.ceil(len(handles) / columns))
        figure.legend(handles.values(), handles.keys(), loc="outside lower left", ncols=columns, handlelength=2.4)


def export(figure: Figure) -> Drawing:
    """The figure as SVG text and PNG bytes; equal figures give equal bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    svg, png = io.BytesIO(), io.BytesIO()
    figure.draw_without_rendering()    # computes the layout,
    figure.set_layout_engine("none")   # which both files then use
    tops = [axis.get_tightbbox() for axis in figure.axes]
    lowest = min((box.y0 for box in tops if box is not None), default=0.0)
    above = 72 * (figure.get_figheight() - max(0.0, lowest / figure.dpi - 0.03))
    about = {"Date": None, "Creator": None, "Format": None, "Type": None}
    FigureCanvasSVG(figure).print_svg(svg, metadata=about)   # type: ignore[no-untyped-call]
    figure.set_dpi(_DPI)
    FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})   # type: ignore[no-untyped-call]
    # Newer matplotlib writes font-family: …, older font: 11.5px …; either way the family becomes the page's.
    text = re.sub(r"(font-family: |font: [\d.]+px )[^;\"]+", r"\1system-ui, sans-serif", svg.getvalue().decode())
    return Drawing(text, png.getvalue(), above)


def inline(drawing: Drawing, name: str, label: str, *, legend: bool = True, keep: str = "") -> str:
    """An SVG file as a part of a page: unique ids, colours as CSS variables, and a label for screen readers.

    ``legend=False`` cuts off the legend below the axes. Ids that match the pattern ``keep`` stay.
    """
    box = re.search(r"viewBox=\"([\d. ]+)\"", drawing.svg)
    assert box is not None
    view = box[1]
    body = re.sub(r".*?<svg[^>]*>", "", drawing.svg, count=1, flags=re.DOTALL)
    body = re.sub(r"\s*<metadata>.*?</metadata>|\s*<style.*?</style>", "", body, flags=re.DOTALL)
    if not legend:
        body, cut = re.subn(r"\n  <g id=\"legend_1\">.*?\n  </g>(?=\n)", "", body, flags=re.DOTALL)
        view = f"{view.rpartition(' ')[0]} {drawing.above_legend:.2f}" if cut else view
    used = set(re.findall(r"#([\w.-]+)", " ".join(re.findall(r"href=\"[^\"]*|url\([^)]*", body))))

    def renamed(match: re.Match[str]) -> str:
        kept = match[1] in used or (keep and re.match(keep, match[1]))
        return f' id="{name}-{match[1]}"' if kept else ""

    def tag(match: re.Match[str]) -> str:
        text = re.sub(r" id=\"([^\"]+)\"", renamed, match[0])
        text = re.sub(r"(href=\"|url\()#", rf"\g<1>#{name}-", text).replace("xlink:href", "href")
        return re.sub(r"#[0-9a-f]{6}\b", lambda colour: VARIABLES.get(colour[0], colour[0]), text)

    body = re.sub(r"<[^>]*>", tag, body)   # only tags: the text between them comes from outside
    body = re.sub(r"\s*\n\s*", " ", body)
    return f'<svg viewBox="{view}" role="img" aria-label="{escape(label)}">{body}'


def short(text: str, most: int = 40) -> str:
    """A name as a label: one line, truncated.

    >>> short("one\\n\\ttwo"), short("abcdefgh", 5)
    ('one two', 'abcd…')
    """
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _ticks(points: Sequence[Point]) -> list[float]:
    # Trained dims make the best ticks; too few of them would leave an axis without a scale.
    placed = [point for point in points if math.isnan(point.x)] or points
    trained = {point.position for point in placed if point.trained}
    return sorted(trained if len(trained) > 2 else {point.position for point in placed})


def _spaced(ticks: list[float]) -> list[float]:
    # From the right, because the full dim matters most; labels closer than a ninth of the axis would touch.
    room = math.log2(ticks[-1] / ticks[0]) / 9 if ticks and ticks[0] > 0 else 0.0
    kept: list[float] = []
    for tick in reversed(ticks):
        if not kept or math.log2(kept[-1] / tick) >= room:
            kept.append(tick)
    return kept[::-1]
