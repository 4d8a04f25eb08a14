"""The page: one self-contained HTML file without scripts, read from top to bottom."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from matryo.report.draw import inline
from matryo.report.markup import code, escape, prose, table
from matryo.report.section import Plate, Section, Table
from matryo.report.style import CSS
from matryo.report.words import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matryo.results import Row

__all__ = ["GENERATOR", "page"]

GENERATOR = "matryo report"
_OPEN = 4   # so many figures of a section are shown, the others on request
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"   # nothing is fetched, nothing runs


def page(
    *,
    title: str,
    sentences: Sequence[str],
    overview: Table | None,
    sections: Sequence[Section],
    rows: Sequence[Row],
    credits: Sequence[str],
) -> str:
    """The whole page."""
    numbers = {id(row): number for number, row in enumerate(rows, start=1)}
    body = [
        "<header>",
        f"<h1>{escape(title)}</h1>",
        '<ul class="summary">' + "".join(f"<li>{prose(one)}</li>" for one in sentences) + "</ul>",
        table(overview) if overview else "",
        _contents(sections),
        "</header>",
        "<main>",
        *(_section(section, numbers) for section in sections),
        _rows(rows),
        "</main>",
        _footer(credits),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="{GENERATOR}">\n<title>{escape(title)}</title>\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n" + "\n".join(filter(None, body)) + "\n</body>\n</html>\n"
    )


def _contents(sections: Sequence[Section]) -> str:
    links = [(section.key, section.title) for section in sections] + [("rows", "Rows")]
    entries = "".join(f'<li><a href="#{key}">{escape(title)}</a></li>' for key, title in links)
    return f'<nav aria-label="Contents"><ol>{entries}</ol></nav>'


def _section(section: Section, numbers: dict[int, int]) -> str:
    words = (
        f'<p class="kicker">{escape(section.title)}</p><h2 id="{section.key}-finding">{prose(section.finding)}</h2>'
        f"<p>{prose(section.meaning)}</p>"
    )
    behind = _numbers(section) + (_sources(section.rows, numbers) if section.rows else "")
    beside = " beside" if len(section.plates) == 1 and not section.html else ""   # a lone figure beside its words
    return (
        f'<section id="{section.key}" class="part{beside}" aria-labelledby="{section.key}-finding">'
        f'<div class="words">{words}</div>{section.html or _plates(section.plates)}'
        f'<div class="behind">{behind}</div></section>'
    )


def _plates(plates: Sequence[Plate]) -> str:
    if not plates:
        return ""
    shown, more = ("".join(map(_plate, some)) for some in (plates[:_OPEN], plates[_OPEN:]))
    rest = f"<details><summary>{plural(len(plates) - _OPEN, 'more figure')}</summary>" if more else ""
    return f'<div class="plates">{shown}</div>' + (f'{rest}<div class="plates">{more}</div></details>' if more else "")


def _plate(plate: Plate) -> str:
    drawing = inline(plate.drawing.svg, plate.name, plate.caption)
    links = " ".join(f'<a href="figures/{plate.name}.{kind}">{kind.upper()}</a>' for kind in ("svg", "png"))
    return f"<figure>{drawing}<figcaption>{prose(plate.caption)} {links}</figcaption></figure>"


def _numbers(section: Section) -> str:
    shown = "".join(map(table, section.shown))
    link = f'<p class="note"><a href="tables/{section.key}.csv">All of them as CSV</a></p>' if section.table else ""
    return f"<details><summary>The numbers</summary>{shown}{link}</details>" if shown or link else ""


def _sources(rows: Sequence[Row], numbers: dict[int, int]) -> str:
    """What made the rows of a section, those with one origin together."""
    origins: dict[str, list[Row]] = {}
    for row in rows:
        origins.setdefault(json.dumps([row.command, row.commit, row.hardware, row.versions]), []).append(row)
    entries = []
    for some in origins.values():
        first = some[0]
        versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
        days = sorted({row.when[:10] for row in some if row.when})
        when = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
        about = [f"commit {first.commit}", first.hardware, versions, when]
        link = f'<a href="rows.jsonl">{_ranges(numbers[id(row)] for row in some)}</a>'
        entries.append(f"<li>{code(first.command)}: {escape('; '.join(filter(None, about)))}; {link}</li>")
    title = f"Where {plural(len(rows), 'row')} came from"
    return f"<details><summary>{title}</summary><ul>{''.join(entries)}</ul></details>"


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers of lines, runs of them together: 1–3, 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"line{'s' if sum(map(len, runs)) > 1 else ''} {text} of rows.jsonl"


def _rows(rows: Sequence[Row]) -> str:
    heads = ("line", "kind", "subject", "seed", "when", "commit", "command")
    lines = tuple(
        (number, row.kind, row.subject, "–" if row.seed is None else row.seed, row.when[:10], row.commit, row.command)
        for number, row in enumerate(rows, start=1)
    )
    return (
        '<section id="rows" aria-labelledby="rows-finding"><p class="kicker">Rows</p>'
        f'<h2 id="rows-finding">Everything above was drawn from {plural(len(rows), "stored row")}</h2>'
        '<p>Each is one line of <a href="rows.jsonl">rows.jsonl</a> and says how to run it again.</p>'
        f"<details><summary>The rows</summary>{table(Table(heads, lines))}</details></section>"
    )


def _footer(credits: Sequence[str]) -> str:
    lines = "".join(f"<p>{escape(line)}</p>" for line in credits)
    return f'<footer class="note">{lines}<p>Made by matryo.</p></footer>'
