"""The figures of retrieval's rows, as SVG files beside them: recall against speed, and cost against size.

Drawn by ``python scripts/make_docs.py --figures``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matryo.report.draw import drawing, export, legend, sheet
from matryo.report.style import Look, categories
from matryo.results import Row, read_rows
from pages.retrieval import best_by_count
from pages.retrieval_rows import RECALLS, by_engine, families, shown, stem

TICKS = (0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1)
RAREST = 1e-4   # of the neighbours missed: what is rarer counts as none
WIDE = 3e3   # from this ratio on, an axis names powers of ten alone


def write(docs: Path) -> None:
    """Write the figures beside their rows in ``docs``."""
    results = docs / "results"
    rows = [row for row in read_rows(results / "retrieval.jsonl") if row.kind == "retrieval"]
    for name, svg in figures(rows).items():
        (results / name).write_text(svg, encoding="utf-8")


def figures(rows: list[Row]) -> dict[str, str]:
    """Every figure of the page, as SVG by file name."""
    with drawing():
        found = {f"{stem(subject)}.svg": frontier_figure(here) for (subject, _), here in shown(rows).items()}
        found |= {f"{stem(family)}-growth.svg": growth_figure(here) for family, here in families(rows).items()}
    return found


def frontier_figure(rows: list[Row]) -> str:
    """Queries a second over recall, one line an engine: its best settings."""
    figure, (axes,) = sheet([3.6])
    engines = by_engine(rows)
    for (engine, group), look in zip(engines.items(), categories(len(engines)), strict=True):
        marks = pareto(group)
        plot(axes, [(rarity(f["recall@10"]), f["qps"]) for f in marks], engine, look)
    logarithmic(axes.yaxis)
    axes.set_xticks([rarity(recall) for recall in TICKS], [f"{recall:g}" for recall in TICKS])
    axes.set_xlim(rarity(TICKS[0]) - 0.03, rarity(1) + 0.06)
    axes.set_xlabel("recall@10", loc="right")
    axes.set_title("queries a second, one thread", loc="left")
    legend(figure, [axes])
    return export(figure).svg


def rarity(recall: float) -> float:
    """Where a recall lies on its axis: equal steps for misses that are ten times rarer, up to one in ten thousand.

    >>> [round(rarity(recall), 3) for recall in (0.9, 0.99, 1.0)]
    [1.0, 2.0, 4.0]
    """
    return -math.log10(max(1 - recall, RAREST))


def pareto(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The settings that no other beats in both, by growing recall."""
    kept: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (-row.figures["recall@10"], -row.figures["qps"])):
        if not kept or row.figures["qps"] > kept[-1]["qps"]:
            kept.append(row.figures)
    return kept[::-1]


def growth_figure(rows: list[Row]) -> str:
    """Milliseconds and bytes per query over the size of the database."""
    figure, panels = sheet([3.0, 3.0])
    engines = by_engine(rows)
    counts = sorted({row.figures["count"] for row in rows})
    for (engine, group), look in zip(engines.items(), categories(len(engines)), strict=True):
        found = [row.figures for row in best_by_count(group, counts).values() if row]
        told = [f for f in found if f["bytes_read"] is not None]
        plot(panels[0], [(f["count"], 1e3 / f["qps"]) for f in found], engine, look)
        plot(panels[1], [(f["count"], f["bytes_read"]) for f in told], engine, look)
    for axes, title in zip(panels, ("milliseconds per query", "bytes read per query"), strict=True):
        logarithmic(axes.xaxis)
        logarithmic(axes.yaxis)
        axes.set_title(f"{title}, recall@10 ≥ {RECALLS[0]}", loc="left")
    panels[-1].set_xlabel("vectors", loc="right")
    legend(figure, panels)
    return export(figure).svg


def logarithmic(axis: Any) -> None:
    """A logarithmic axis with plain numbers: 20k, 0.5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_data_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < WIDE * low else (1.0,), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axis.set_minor_formatter(NullFormatter())


def plain(value: float) -> str:
    """A tick.

    >>> [plain(value) for value in (0.05, 2, 20_000, 1e6, 2e9)]
    ['0.05', '2', '20k', '1M', '2G']
    """
    unit, name = next((one for one in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= one[0]), (1.0, ""))
    return f"{value / unit:g}{name}"


def plot(axes: Any, points: list[tuple[float, float]], label: str, look: Look) -> None:
    """One line, if it has points."""
    if points:
        dash = (0, look.dash) if look.dash else "-"
        about = {"color": look.colour, "marker": look.marker, "linewidth": look.width, "linestyle": dash}
        axes.plot(*zip(*points, strict=True), label=label, markersize=4, **about)
