"""The soak: its table, its picture (docs/promises.svg), and its page of results.

``MAKERS`` maps the kind of row to the function that turns such rows into Markdown.
"""

from __future__ import annotations

import math
from html import escape

from matryo.report.style import COLOURS
from matryo.results import Row
from pages.markdown import grid, latest

MARKS = ("<!-- soak-table -->", "<!-- /soak-table -->")
NOTE = """One row per attack: the promise that it tries to break, how often it tried, and how often it succeeded. The
attacks are the modules of `tests/hostile/attacks`; `make soak` runs them."""
WIDTH, LINE, TOP, LABELS, BAR = 760, 26, 64, 190, 330   # pixels


def attacks(rows: list[Row]) -> list[Row]:
    """The latest row per attack, by name."""
    return sorted(latest(rows, lambda row: row.subject), key=lambda row: row.subject)


def table(rows: list[Row]) -> str:
    """The table of attacks, and their sum."""
    lines = [
        [
            row.figures["promise"],
            row.subject.replace("_", " "),
            f"{row.figures['attempts']:,}",
            f"{row.figures['failures']:,}",
        ]
        for row in attacks(rows)
    ]
    attempts, failures = total(rows)
    return grid(
        ["promise", "attack", "attempts", "failures"], [*lines, ["all", "", f"{attempts:,}", f"{failures:,}"]], left=2
    )


def total(rows: list[Row]) -> tuple[int, int]:
    """The attempts and failures of all attacks."""
    figures = [row.figures for row in attacks(rows)]
    return sum(one["attempts"] for one in figures), sum(one["failures"] for one in figures)


def finding(rows: list[Row]) -> str:
    """The sum, as a sentence."""
    attempts, failures = total(rows)
    return f"{len(attacks(rows))} attacks made {attempts:,} attempts to break a promise; {failures:,} succeeded."


def soak_tables(rows: list[Row]) -> list[str]:
    """The page of results."""
    seconds = sum(row.figures["seconds"] for row in attacks(rows))
    return [f"{NOTE} Together they took {seconds / 60:.0f} minutes of one core.", table(rows)]


def picture(rows: list[Row]) -> str:
    """Attempts per attack on a logarithmic scale as SVG, for light and dark mode; failures have another colour."""
    shown = attacks(rows)
    height = TOP + LINE * len(shown) + 34
    decades = max(1, math.ceil(math.log10(max((row.figures["attempts"] for row in shown), default=10))))
    parts = [f"<title>{escape(finding(rows))}</title>", f'<rect class="paper" width="{WIDTH}" height="{height}"/>']
    parts += [text(20, 28, "Attempts to break a promise, by attack", "title")]
    bottom = TOP + LINE * len(shown)
    for decade in range(decades + 1):
        x = LABELS + BAR * decade / decades
        parts += [f'<path class="rule" d="M{x:g} {TOP - 6} V{bottom}"/>']
        parts += [text(x, TOP - 12, f"{10**decade:,}", "middle soft")]
    for place, row in enumerate(shown):
        attempts, failures = row.figures["attempts"], row.figures["failures"]
        y, length = TOP + LINE * place, BAR * math.log10(max(attempts, 1)) / decades
        parts += [text(LABELS - 10, y + 17, row.subject.replace("_", " "), "end")]
        colour = "bad" if failures else "s1"
        parts += [f'<rect class="{colour}" x="{LABELS}" y="{y + 5}" width="{length:.1f}" height="15"/>']
        said = f"{attempts:,} attempts, {failures:,} failure{'' if failures == 1 else 's'}"
        parts += [text(LABELS + BAR + 16, y + 17, said, "" if failures else "soft")]
    parts += [text(20, height - 12, finding(rows), "soft")]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    return "\n".join([head, style(), *parts, "</svg>", ""])


def text(x: float, y: float, said: str, kind: str = "") -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(said)}</text>'


def style() -> str:
    """The colours of both modes."""

    def colours(mode: int) -> str:
        filled = " ".join(f"rect.{name} {{ fill: {COLOURS[name][mode]}; }}" for name in ("paper", "s1", "bad"))
        ink, soft, rule = (COLOURS[name][mode] for name in ("ink", "soft", "rule"))
        return f"{filled} text {{ fill: {ink}; }} text.soft {{ fill: {soft}; }} .rule {{ stroke: {rule}; }}"

    return (
        "<style>\ntext { font: 13px system-ui, sans-serif; } .middle { text-anchor: middle; } "
        f".end {{ text-anchor: end; }} .title {{ font-size: 15px; font-weight: 600; }}\n{colours(0)}\n"
        f"@media (prefers-color-scheme: dark) {{ {colours(1)} }}\n</style>"
    )


MAKERS = {"soak": soak_tables}
