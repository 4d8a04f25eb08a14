"""The figure of the rows of nested losses, as an SVG file beside them: variants side by side, and time over dims.

Drawn by ``python scripts/make_docs.py --figures``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matryo.report.draw import drawing, export, legend, log_axis, sheet
from matryo.report.style import Look, categories, light
from matryo.results import Row, read_rows
from pages.losses import BERT, FIGURE, LARGE, PAIRS, by_count, spelt
from pages.losses_rows import FUSED, VARIANTS, Shape, shapes

ORDER = (FUSED, *(name for name in VARIANTS if name != FUSED))


def write(docs: Path) -> None:
    """Write the figure beside its rows in ``docs``."""
    results = docs / "results"
    (results / FIGURE).write_text(figure(read_rows(results / "fused-losses.jsonl")), encoding="utf-8")


def figure(rows: list[Row]) -> str:
    """The figure as SVG; of several machines, the first one's."""
    here = [shape for shape in shapes(rows) if shape.hardware == rows[0].hardware]
    looks = dict(zip(ORDER, categories(len(ORDER)), strict=True))
    with drawing():
        sheets, (bars, lines) = sheet([4.2, 2.9])
        draw_bars(bars, [shape for name in (BERT, LARGE, PAIRS) for shape in here if shape.name == name], looks)
        draw_lines(lines, by_count(here, "dims"), looks)
        legend(sheets, [bars, lines])
        return export(sheets).svg


def draw_bars(axes: Any, here: list[Shape], looks: dict[str, Look]) -> None:
    """Time as a multiple of the single eager loss: a group of bars a shape, a bar a variant."""
    bar, labelled = 1 / (len(ORDER) + 1.5), set()
    for place, shape in enumerate(here):
        axes.text(0, place - 0.5, spelt(shape), va="center", clip_on=False)
        for step, name in enumerate(ORDER):
            if name in shape.found:
                at, value = place - 0.5 + (step + 1.1) * bar, shape.ratio(name)
                about = {} if name in labelled else {"label": name}
                axes.barh(at, value, height=bar * 0.86, color=looks[name].colour, **about)
                axes.annotate(f"{value:.2f}", (value, at), (3, 0), textcoords="offset points", va="center", fontsize=10)
                labelled.add(name)
    axes.set(ylim=(max(len(here), 1) - 0.55, -0.68), yticks=[])
    axes.grid(False, axis="y")
    axes.margins(x=0.12)
    axes.set_title("time, × single eager", loc="left")


def draw_lines(axes: Any, counts: dict[int, Shape], looks: dict[str, Look]) -> None:
    """Milliseconds over the number of dims."""
    for name in ORDER:
        points = [(count, shape.ms(name)) for count, shape in counts.items() if name in shape.found]
        if points:
            look = looks[name]
            axes.plot(*zip(*points, strict=True), color=look.colour, marker=look.marker, linewidth=look.width,
                      markersize=4, label=name)  # fmt: skip
    limit = [(count, 4 * shape.found[FUSED].figures["product"]) for count, shape in counts.items()]
    if limit:
        axes.plot(*zip(*limit, strict=True), color=light("soft"), linestyle=(0, (5, 2)), linewidth=1.2,
                  label="limit: four products")  # fmt: skip
        axes.set_title(f"ms at {spelt(next(iter(counts.values())))}", loc="left")
    axes.set_ylim(bottom=0)
    log_axis(axes, counts, "number of dims")
