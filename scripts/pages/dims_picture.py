"""The chart of README and docs/index.md: accuracy at each dim, from the stored Tiny-ImageNet rows.

Drawn by ``python scripts/make_docs.py --figures``.
"""

from __future__ import annotations

from html import escape
from math import log2
from pathlib import Path
from statistics import fmean

from matryo.report.style import COLOURS
from matryo.results import Row, read_rows
from pages.losses_picture import rect, text
from pages.models import ByColumn, seeds_by_column, series_of

WIDTH, HEIGHT = 640, 330
LEFT, RIGHT, TOP, BOTTOM = 52, 430, 62, 282   # the frame of the chart
# Column of the rows, label, colour, dash, and how far the label is moved from the end of its line to be legible.
SERIES = (
    ("MRL", "one nested model, truncated", "s1", "", -17),
    ("fixed", "one fixed model per dim", "s3", "6 3", 15),
    ("PCA", "one fixed model, PCA", "s7", "2 3", -1),
    ("truncated", "one fixed model, truncated", "s2", "8 3 2 3", 31),
)
TITLE = "1-NN accuracy in percent by number of dimensions"


def write(docs: Path) -> None:
    """Write the chart into ``docs``."""
    rows = read_rows(docs / "results" / "tiny-imagenet.jsonl")
    (docs / "dims.svg").write_text(picture(rows), encoding="utf-8")


def columns_of(rows: list[Row]) -> ByColumn:
    """1-NN of the nested models of the recipe tiny-imagenet-rn18-best, beside the fixed models of tiny-imagenet-rn18.

    Fixed models with the map of the best recipe are on the page; only some dims have one.
    """
    evaluated = [row for row in rows if row.kind == "evaluate"]
    plain, best = (
        seeds_by_column([row for row in evaluated if series_of(row.figures["model"]) == name], lambda line: line.top1)
        for name in ("tiny-imagenet-rn18", "tiny-imagenet-rn18-best")
    )
    return {**plain, "MRL": best["MRL"]}


def picture(rows: list[Row]) -> str:
    """Return the chart as SVG, in the colours of the report, for light and dark mode."""
    columns = columns_of(rows)
    dims = sorted(columns["MRL"])
    seeds = {len(columns[name][dim]) for name, *_ in SERIES for dim in dims}
    about = f"ResNet18 on Tiny-ImageNet (validation split); means over {min(seeds)} seeds"

    def x(dim: int) -> float:
        return LEFT + (RIGHT - LEFT) * log2(dim / dims[0]) / log2(dims[-1] / dims[0])

    def y(percent: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * percent / 60

    parts = [rect(0, 0, WIDTH, HEIGHT, "paper"), text(20, 24, TITLE, "title"), text(20, 43, about, "soft")]
    for percent in range(0, 61, 20):
        parts += [f'<path class="rule" d="M{LEFT} {y(percent):.1f} H{RIGHT}"/>']
        parts += [text(LEFT - 8, y(percent) + 4, f"{percent}", "end")]
    parts += [text(x(dim), BOTTOM + 20, f"{dim}", "middle") for dim in dims]
    parts += [text((LEFT + RIGHT) / 2, BOTTOM + 39, "dimensions", "middle soft")]
    for name, label, colour, dash, below in SERIES:
        points = [(x(dim), y(fmean(columns[name][dim]))) for dim in dims]
        line = " L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        parts += [f'<path class="line {colour}" stroke-dasharray="{dash}" d="M{line}"/>']
        parts += [f'<circle class="{colour}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in points]
        parts += [text(RIGHT + 10, y(fmean(columns["MRL"][dims[-1]])) + below, label, colour)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    return "\n".join([head, f"<title>{escape(TITLE)}: {escape(about)}</title>", _style(), *parts, "</svg>", ""])


def _style() -> str:
    def colours(mode: int) -> str:
        series = " ".join(
            f"circle.{name}, text.{name} {{ fill: {COLOURS[name][mode]}; }} "
            f"path.{name} {{ stroke: {COLOURS[name][mode]}; }}"
            for _, _, name, _, _ in SERIES
        )
        paper, ink, soft, rule = (COLOURS[name][mode] for name in ("paper", "ink", "soft", "rule"))
        return (
            f".paper {{ fill: {paper}; }} text {{ fill: {ink}; }} text.soft {{ fill: {soft}; }} "
            f".rule {{ stroke: {rule}; }} {series}"
        )

    return (
        "<style>\ntext { font: 12px system-ui, sans-serif; } .middle { text-anchor: middle; } "
        ".end { text-anchor: end; }\n.title { font-size: 15px; font-weight: 600; } "
        f".line {{ fill: none; stroke-width: 2; }}\n{colours(0)}\n"
        f"@media (prefers-color-scheme: dark) {{ {colours(1)} }}\n</style>"
    )
