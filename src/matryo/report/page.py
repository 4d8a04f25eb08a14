"""The page: one self-contained HTML file, rendered from the templates."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib import resources
from typing import TYPE_CHECKING, Any

from matryo.errors import InputError, MissingExtra
from matryo.report.answer import KEEP, Choice, answer, payload
from matryo.report.draw import inline
from matryo.report.style import variables
from matryo.report.words import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matryo.report.answer import Subject
    from matryo.report.answer_figure import AnswerFigure
    from matryo.report.section import Plate, Section, Table
    from matryo.results import Row

GENERATOR = "matryo report"
_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}


def page(
    *,
    title: str,
    sections: Sequence[Section],
    rows: Sequence[Row],
    credits: Sequence[str] = (),
    models: Sequence[Subject] = (),
    figure: AnswerFigure | None = None,
) -> str:
    """Render the page. Everything that comes from outside is escaped by the templates."""
    with MissingExtra.unless_installed("jinja2", "report"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup

    loader = PackageLoader("matryo.report")
    names = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    names.filters |= {
        "prose": _prose, "data_uri": _data_uri, "plural": plural, "numeric": _numeric, "pieces": _pieces,
        "svg": lambda plate, legend: Markup(inline(plate.drawing, plate.name, plate.title, legend=legend)),
    }  # fmt: skip
    style = f":root {{ color-scheme: light; {variables(0)} }}\n" \
            f"@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {variables(1)} }} }}\n" \
            + _text("report.css")   # fmt: skip
    script = _text("report.js")
    numbers = {id(row): number for number, row in enumerate(rows, start=1)}
    context: dict[str, Any] = {
        "title": title, "sections": sections, "rows": rows, "credits": credits, "generator": GENERATOR,
        "style": Markup(style), "script": Markup(script), "policy": _policy(style, script),
        "sources": {section.key: _sources(section.rows, numbers) for section in sections},
        "models": models, "figure": figure, "svg": Markup(figure.svg) if figure else "", "keep": KEEP,
        "answer": answer(models, Choice()) if models else None,
        "data": {"models": payload(models), "scales": figure.scales} if figure else None,
    }  # fmt: skip
    return names.get_template("report.html.j2").render(context)


def image_kind(data: bytes) -> str:
    """The format of a picture, by its first bytes."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    for signature, kind in _SIGNATURES.items():
        if data.startswith(signature):
            return kind
    raise InputError("a picture must be PNG, WebP or JPEG", got=data[:12], cure="encode it as PNG")


def _text(name: str) -> str:
    return (resources.files("matryo.report") / "templates" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing is fetched, and only this style sheet and this script apply; SVG elements carry style attributes."""
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)
    )
    return (
        f"default-src 'none'; img-src data:; script-src 'sha256-{script_hash}'; style-src 'unsafe-inline'; "
        f"style-src-elem 'sha256-{style_hash}'; style-src-attr 'unsafe-inline'"
    )


def _prose(text: str) -> str:
    """A sentence in which neither "1-NN" nor a number in percent breaks over two lines."""
    return text.replace("1-NN", "1\u2011NN").replace(" %", "\u00a0%")


def _data_uri(data: bytes) -> str:
    return f"data:image/{image_kind(data)};base64,{base64.b64encode(data).decode()}"


def _numeric(table: Table) -> list[bool]:
    """[columns]: whether every cell is a number."""

    def is_number(cell: object) -> bool:
        return isinstance(cell, int | float) or bool(re.match(r"[\d+−–-]|$", str(cell)))

    return [all(is_number(line[column]) for line in table.lines) for column in range(len(table.heads))]


def _pieces(plates: Sequence[Plate]) -> tuple[int, Sequence[Plate], Sequence[Plate]]:
    """Columns, plates to show, and plates to fold, so that every row of the grid is full."""
    count = len(plates)
    shown = count if count < 5 or count in (6, 9) else 6 if count > 6 else 3
    return (3 if shown % 3 == 0 else min(shown, 2)), plates[:shown], plates[shown:]


def _sources(rows: Sequence[Row], numbers: dict[int, int]) -> list[tuple[str, str, str]]:
    """(command, provenance, lines of rows.jsonl) for the rows of a section, grouped by provenance."""
    origins: dict[str, list[Row]] = {}
    for row in rows:
        origins.setdefault(json.dumps([row.command, row.commit, row.hardware, row.versions]), []).append(row)
    sources = []
    for group in origins.values():
        first = group[0]
        versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
        days = sorted({row.when[:10] for row in group if row.when})
        when = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
        about = "; ".join(filter(None, (f"commit {first.commit}", first.hardware, versions, when)))
        sources.append((first.command, about, _ranges(numbers[id(row)] for row in group)))
    return sources


def _ranges(numbers: Iterable[int]) -> str:
    """Line numbers with runs joined: lines 1–3, 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"line{'s' if sum(map(len, runs)) > 1 else ''} {text}"
