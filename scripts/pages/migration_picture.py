"""The picture of the migration in docs/retrofit.md: recall while an index is encoded again, drawn from stored rows."""

from __future__ import annotations

from html import escape

from matryo.report.style import COLOURS
from matryo.results import Row
from pages.markdown import latest

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 60, 190, 62, 266
SUBJECT = "wordllama → minilm"


def picture(rows: list[Row]) -> str:
    """Recall against the share of rows that the new model has encoded, as SVG, for light and dark mode."""
    kept = [row.figures for row in latest(rows, lambda row: (row.subject, row.figures["pairs"]))
            if row.subject.startswith(SUBJECT)]  # fmt: skip
    figures = max(kept, key=lambda each: each["pairs"])
    found = figures["found"]
    names = ["mapped", *(name for name in found if name not in ("stay", "mapped"))]
    shares = [0.0, *(float(name) for name in names[1:]), 1.0]
    title = "Searching with the new model while the index is encoded again"
    parts = [f"<title>{escape(title)}</title>", f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
             f'<text class="title" x="20" y="28">{escape(title)}</text>',
             f'<text class="soft" x="20" y="48">share of the true ten nearest that is found; the map is fitted to '
             f'{figures["pairs"]:,} texts</text>']  # fmt: skip
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts += [f'<path class="rule" d="M{LEFT} {_y(share):g} H{WIDTH - RIGHT}"/>',
                  f'<text class="soft end" x="{LEFT - 8}" y="{_y(share) + 4:g}">{share:.0%}</text>',
                  f'<text class="soft middle" x="{_x(share):g}" y="{BOTTOM + 20}">{share:.0%}</text>']  # fmt: skip
    parts += [f'<text class="soft middle" x="{_x(0.5):g}" y="{BOTTOM + 42}">rows encoded again</text>']
    for place, (label, colour) in enumerate((("in the first hundred", "r3"), ("in the first ten", "r9"))):
        which = 1 - place
        line = [(_x(share), _y(value)) for share, value in
                zip(shares, [*(found[name][which] for name in names), 1.0], strict=True)]  # fmt: skip
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in line)
        parts += [f'<path class="{colour} line" d="M{path}"/>']
        parts += [f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in line]
        stay = _y(found["stay"][which])
        parts += [f'<path class="{colour} line dashed" d="M{LEFT} {stay:.1f} H{WIDTH - RIGHT}"/>',
                  f'<text x="{WIDTH - RIGHT + 10}" y="{stay + 4:.1f}">old model only</text>']  # fmt: skip
        y = TOP + 22 * place + 6
        parts += [f'<circle class="{colour}" cx="{WIDTH - RIGHT + 16}" cy="{y - 4}" r="4"/>',
                  f'<text x="{WIDTH - RIGHT + 28}" y="{y}">{label}</text>']  # fmt: skip
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    return "\n".join([head, _style(), *parts, "</svg>", ""])


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - RIGHT - LEFT)


def _y(share: float) -> float:
    return BOTTOM - share * (BOTTOM - TOP)


def _style() -> str:
    def colours(mode: int) -> str:
        paper, ink, soft = (COLOURS[name][mode] for name in ("paper", "ink", "soft"))
        drawn = " ".join(f".{name} {{ fill: {COLOURS[name][mode]}; stroke: {COLOURS[name][mode]}; }}"
                         for name in ("r3", "r9"))  # fmt: skip
        return (f".paper {{ fill: {paper}; }} {drawn} text {{ fill: {ink}; }} text.soft {{ fill: {soft}; }} "
                f".rule {{ stroke: {soft}; opacity: 0.3; }}")  # fmt: skip

    return ("<style>\ntext { font: 13px system-ui, sans-serif; } .title { font-size: 15px; font-weight: 600; } "
            ".middle { text-anchor: middle; } .end { text-anchor: end; }\n"
            f"{colours(0)}\n@media (prefers-color-scheme: dark) {{ {colours(1)} }}\n"
            "path.line { fill: none; stroke-width: 2; } .dashed { stroke-dasharray: 4 4; opacity: 0.7; }\n"
            "</style>")  # fmt: skip
