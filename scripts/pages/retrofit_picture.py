"""The picture of docs/retrofit.md: a cloud of points before and after its axes are turned.

Drawn by ``python scripts/make_docs.py --figures``.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from matryo.report.style import COLOURS

WIDTH, HEIGHT, SIDE, TOP = 640, 372, 250, 56
POINTS, ANGLE, SPREAD = 140, 40.0, (54.0, 12.0)   # of the cloud: degrees, and its length and width in pixels
ALT = "A slanted cloud of points. After turning the axes, the first number alone says almost everything."


def write(docs: Path) -> None:
    """Write the picture into ``docs``."""
    (docs / "rotation.svg").write_text(picture(), encoding="utf-8")


def picture() -> str:
    """The whole picture as SVG, for light and dark mode."""
    cloud = np.clip(np.random.default_rng(4).normal(size=(POINTS, 2)), -2.1, 2.1) * SPREAD
    angle = np.deg2rad(ANGLE)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    before, after = cloud @ turn, cloud
    parts = [f"<title>{escape(ALT)}</title>", f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>']
    parts += _panel(40, before, "As the model gave them", "column 1 alone keeps")
    parts += _panel(WIDTH - SIDE - 40, after, "Turned", "column 1 alone keeps")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    return "\n".join([head, _style(), *parts, "</svg>", ""])


def _panel(left: float, points: np.ndarray[tuple[int, int], np.dtype[np.float64]], title: str, said: str) -> list[str]:
    """The cloud, its axes, the shadow of every point on the first axis, and the share that the shadow keeps."""
    x, y, floor = left + SIDE / 2, TOP + SIDE / 2 - 12, TOP + SIDE - 8
    share = float(np.var(points[:, 0]) / np.var(points, axis=0).sum())
    parts = [f'<text class="title" x="{left:g}" y="30">{escape(title)}</text>']
    parts += [f'<path class="axis" d="M{left:g} {floor:g} H{left + SIDE:g} M{left:g} {floor:g} V{TOP:g}"/>']
    for a, b in points:
        parts += [f'<circle class="r3" cx="{x + a:.1f}" cy="{y - b:.1f}" r="3"/>']
        parts += [f'<path class="tick" d="M{x + a:.1f} {floor + 3:g} v9"/>']
    parts += [f'<text class="soft" x="{left + SIDE:g}" y="{floor + 28:g}" text-anchor="end">column 1</text>']
    parts += [f'<text class="soft" x="{left + 8:g}" y="{TOP + 10:g}">column 2</text>']
    parts += [f'<text x="{left:g}" y="{floor + 52:g}">{escape(said)} {share:.0%} of the spread</text>']
    return parts


def _style() -> str:
    def colours(mode: int) -> str:
        paper, point, ink, soft = (COLOURS[name][mode] for name in ("paper", "r3", "ink", "soft"))
        return (f".paper {{ fill: {paper}; }} .r3 {{ fill: {point}; }} text {{ fill: {ink}; }} "
                f".soft {{ fill: {soft}; }} "
                f".axis {{ fill: none; stroke: {soft}; }} .tick {{ stroke: {point}; }}")  # fmt: skip

    return ("<style>\ntext { font: 13px system-ui, sans-serif; } .title { font-size: 15px; font-weight: 600; }\n"
            f"{colours(0)}\n@media (prefers-color-scheme: dark) {{ {colours(1)} }}\n</style>")  # fmt: skip
