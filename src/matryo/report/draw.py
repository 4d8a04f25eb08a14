"""Drawing: narrow figures with large type, the axes they share, and their export as SVG and PNG.

A figure is 360 points wide with 11.5-point type, so that on a phone, where it fills a column of 360 pixels, its type
is as large as small print. Panels are stacked for the same reason.
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
from matryo.report.style import COLOURS, Look, light

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from matryo.report.series import Curve, Point

    Drawn = tuple[Curve, Look, str]
    """A curve, how it looks, and its label."""

__all__ = [
    "Drawing",
    "chart",
    "drawing",
    "export",
    "inline",
    "legend",
    "line",
    "log_axis",
    "percent_axis",
    "sheet",
    "short",
]

WIDTH = 5.0   # inches
_LEGEND_LINE = 0.235
_DPI = 200
_SETTINGS = {
    "font.size": 11.5,
    "axes.titlesize": 11.5,
    "axes.titlepad": 8.0,
    "axes.labelsize": 11.5,
    "xtick.labelsize": 11.5,
    "ytick.labelsize": 11.5,
    "legend.fontsize": 11.5,
    "legend.frameon": False,
    "legend.borderaxespad": 0.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": light("soft"),
    "axes.facecolor": "none",
    "figure.facecolor": light("paper"),
    "text.color": light("ink"),
    "axes.labelcolor": light("ink"),
    "xtick.color": light("soft"),
    "ytick.color": light("soft"),
    "xtick.labelcolor": light("ink"),
    "ytick.labelcolor": light("ink"),
    "axes.grid": True,
    "grid.color": light("rule"),
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "text.parse_math": False,   # names come from outside, and a $ in one is a dollar
    "svg.fonttype": "none",     # text stays text: the page's font, and found by a search
    "svg.hashsalt": "matryo",   # the same rows give the same bytes
}
_VARIABLES = {colours[0]: f"var(--{name})" for name, colours in COLOURS.items()}


@dataclass(frozen=True)
class Drawing:
    """A figure as files."""

    svg: str
    png: bytes


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Draw with the report's settings, whatever those of this process are; they come back afterwards."""
    with MissingExtra.unless_installed("matplotlib", "report"):
        from matplotlib import style
    with style.context(["default", _SETTINGS]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")   # the page has more fonts
        yield


def sheet(heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each height, in inches, one below the other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=list(heights))
    return figure, list(axes[:, 0])


def chart(panels: Mapping[str, Sequence[Drawn]], *, x: str = "dims", height: float = 2.8) -> Figure:
    """Lines over a logarithmic axis: a panel for each title, one legend for all."""
    figure, axes = sheet([height] * len(panels))
    ticks = _ticks([point for drawn in panels.values() for curve, _, _ in drawn for point in curve.points])
    for axis, (title, drawn) in zip(axes, panels.items(), strict=True):
        if axis is not axes[0]:
            axis.sharex(axes[0])   # a panel with few dims lines up with the others
        for curve, look, label in drawn:
            line(axis, curve, look, label=label)
        log_axis(axis, ticks, x)
        percent_axis(axis, title)
    legend(figure, sorted(axes, key=lambda axis: -len(axis.get_legend_handles_labels()[1])))
    return figure


def line(axes: Axes, curve: Curve, look: Look, *, label: str) -> None:
    """Draw a curve with its error bars; dims that were not trained are hollow."""
    if not curve.points:
        return
    xs, ys = [p.position for p in curve.points], [p.y for p in curve.points]
    for errors, at in (("yerr", [p.sd for p in curve.points]), ("xerr", [p.x_sd for p in curve.points])):
        if not all(map(math.isnan, at)):
            bars: dict[str, Any] = {errors: [0.0 if math.isnan(sd) else sd for sd in at]}
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
    """A logarithmic x-axis with these ticks, thinned where they would touch."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(_spaced(sorted(set(ticks)))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}" if value < 100 else f"{value:.0f}"))
    axes.set_xlabel(label, loc="right")


def percent_axis(axes: Axes, title: str) -> None:
    """Fractions as percent on the y-axis. Its title stands above, where it reads without turning the head."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    axes.set_title(title, loc="left")


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend under all panels, each label once, in two columns where the labels are short enough."""
    found: dict[str, Any] = {}
    for one in axes:
        found |= {label: handle for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    if found:
        columns = 1 if max(map(len, found)) > 20 or len(found) == 1 else 2
        figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * math.ceil(len(found) / columns))
        figure.legend(found.values(), found.keys(), loc="outside lower left", ncols=columns, handlelength=2.4)


def export(figure: Figure) -> Drawing:
    """The figure as SVG text and PNG bytes; the same figure gives the same."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    svg, png = io.BytesIO(), io.BytesIO()
    figure.draw_without_rendering()    # finds the layout,
    figure.set_layout_engine("none")   # which then serves both files
    about = {"Date": None, "Creator": None, "Format": None, "Type": None}
    FigureCanvasSVG(figure).print_svg(svg, metadata=about)   # type: ignore[no-untyped-call]
    figure.set_dpi(_DPI)
    FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})   # type: ignore[no-untyped-call]
    # Newer matplotlib writes font-family: …, older font: 11.5px …; either way the family is the page's.
    text = re.sub(r"(font-family: |font: [\d.]+px )[^;\"]+", r"\1system-ui, sans-serif", svg.getvalue().decode())
    return Drawing(text, png.getvalue())


def inline(svg: str, name: str, label: str) -> str:
    """An SVG file as a part of a page: ids of its own, colours as variables, a label for those who cannot see it."""
    box = re.search(r"viewBox=\"([\d. ]+)\"", svg)
    assert box is not None
    body = re.sub(r".*?<svg[^>]*>", "", svg, count=1, flags=re.DOTALL)
    body = re.sub(r"\s*<metadata>.*?</metadata>|\s*<style.*?</style>", "", body, flags=re.DOTALL)
    used = set(re.findall(r"#([\w.-]+)", " ".join(re.findall(r"href=\"[^\"]*|url\([^)]*", body))))

    def tag(found: re.Match[str]) -> str:
        text = re.sub(r" id=\"([^\"]+)\"", lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", found[0])
        text = re.sub(r"(href=\"|url\()#", rf"\g<1>#{name}-", text).replace("xlink:href", "href")
        return re.sub(r"#[0-9a-f]{6}\b", lambda m: _VARIABLES.get(m[0], m[0]), text)

    body = re.sub(r"<[^>]*>", tag, body)   # tags alone: what stands between them is text from outside
    body = re.sub(r"\s*\n\s*", " ", body)
    return f'<svg viewBox="{box[1]}" role="img" aria-label="{escape(label)}">{body}'


def short(text: str, most: int = 40) -> str:
    """A name as a label: one line, not too long.

    >>> short("one\\n\\ttwo"), short("abcdefgh", 5)
    ('one two', 'abcd…')
    """
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _ticks(points: Sequence[Point]) -> list[float]:
    # Dims make the best ticks, trained ones before others; costs take their place where there are no dims.
    dims = [point for point in points if math.isnan(point.x)] or points
    return [point.position for point in dims if point.trained] or [point.position for point in dims]


def _spaced(ticks: list[float]) -> list[float]:
    # From the right, for the full dim matters most; labels nearer than a ninth of the axis would touch.
    room = math.log2(ticks[-1] / ticks[0]) / 9 if ticks and ticks[0] > 0 else 0.0
    kept: list[float] = []
    for tick in reversed(ticks):
        if not kept or math.log2(kept[-1] / tick) >= room:
            kept.append(tick)
    return kept[::-1]
