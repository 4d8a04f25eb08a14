"""Reproduced tables as a page: the claims at a glance, then each table in the paper's form beside its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from matryo.reproduce.paper import PICTURES, TABLES
from matryo.reproduce.table import FAILS, HOLDS, UNTESTED, Label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matryo.reproduce.table import Table
    from matryo.results import Row

OVERVIEW = "overview"
"""The name of the figure of all verdicts."""
MARKS = {HOLDS: "✓", FAILS: "✗", UNTESTED: "–"}


@dataclass(frozen=True)
class Evidence:
    """The figures and verdicts of one data set, by table."""

    title: str
    """As the heads of columns have it."""
    about: str
    tables: Mapping[str, Mapping[str, Any]]
    """The figures of each table's row, by its name."""

    @classmethod
    def of(cls, title: str, rows: Sequence[Row]) -> Evidence:
        """Return the evidence of stored rows."""
        figures = [row.figures for row in rows]
        seeds = max((one["seeds"] for one in figures), default=0)
        about = f"{figures[0]['about']}; {seeds} seed{'s' * (seeds != 1)}" if figures else ""
        return cls(title, about, {one["table"]: one for one in figures})

    def claim(self, table: Table, place: int) -> tuple[str, str]:
        """Return the verdict of a claim, and the difference that decides it."""
        figures = self.tables.get(table.name)
        if figures is None:
            return UNTESTED, "–"
        found = next((one for one in figures["claims"] if one["claim"] == table.claims[place].text), None)
        return (UNTESTED, "–") if found is None else (found["verdict"], found["shown"])


def body(evidence: Sequence[Evidence], figures: Mapping[str, str] | None = None) -> str:
    """Return the page in Markdown, without its title; ``figures`` maps tables to the files of their pictures."""
    glance = (figures or {}).get(OVERVIEW, "")
    parts = [counts(evidence), "\n".join(f"- **{one.title}**: {one.about}." for one in evidence),
             *([f"![One mark per claim of each table: holds, does not hold, or cannot be tested]({glance})"] if glance
               else []), "## Every claim", claims(evidence), "## Table by table"]  # fmt: skip
    for table in TABLES.values():
        parts += section(table, evidence, (figures or {}).get(table.name, ""))
    shown = [f"- `{label}`: {what}." for label, what in PICTURES.items()]
    return "\n\n".join([*parts, "## Figures without numbers", "\n".join(shown)])


def counts(evidence: Sequence[Evidence]) -> str:
    """Return how many claims hold, for each data set."""
    sentences = []
    for one in evidence:
        verdicts = [one.claim(table, place)[0] for table in TABLES.values() for place in range(len(table.claims))]
        held, failed, untested = (verdicts.count(verdict) for verdict in (HOLDS, FAILS, UNTESTED))
        sentences.append(
            f"**{one.title}**: of {held + failed} claims that can be tested there, {held} hold and {failed} do not; "
            f"{untested} cannot be tested there."
        )
    return "\n\n".join(sentences)


def claims(evidence: Sequence[Evidence]) -> str:
    """Return one line per claim: the paper's difference, ours, and the verdicts."""
    heads = ["table", "claim", "paper", *(one.title for one in evidence)]
    rows = []
    for table in TABLES.values():
        for place, claim in enumerate(table.claims):
            paper = claim.shown(claim.comparisons(table.paper_cells))
            ours = (one.claim(table, place) for one in evidence)
            cells = (f"{MARKS[verdict]} {shown}" if verdict != UNTESTED else MARKS[UNTESTED] for verdict, shown in ours)
            rows.append([f"[{table.name}](#{anchor(table)})", claim.text, paper, *cells])
    return grid(heads, rows)


def section(table: Table, evidence: Sequence[Evidence], figure: str) -> list[str]:
    """Return the part of the page about one table."""
    also = f", drawn in `{'`, `'.join(table.figures)}`" if table.figures else ""
    parts = [f"### {heading(table)}", f"The paper's `{table.label}`{also}; {table.metric}."]
    there = [one for one in evidence if table.name in one.tables]
    notes = [f"{one.title}: {note}." for one in there if (note := one.tables[table.name].get("note"))]
    if notes:
        parts.append(" ".join(notes))
    if not there:
        why = "; ".join(dict.fromkeys(table.missing.values())) or "not measured yet"
        parts.append(f"Not testable here: {why}.")
        return parts
    if figure:
        parts.append(f"![{table.title}: the paper's numbers and ours]({figure})")
    for one in there:
        parts.append(numbers(table, one))
        for place, claim in enumerate(table.claims):
            verdict, shown = one.claim(table, place)
            reason = "" if verdict == UNTESTED else f": {shown}"
            parts.append(f"- {claim.text}. **{verdict.capitalize()}** ({one.title}){reason}.")
    return joined(parts)


def joined(parts: Sequence[str]) -> list[str]:
    """Return the parts with neighbouring list entries as one list."""
    together: list[str] = []
    for part in parts:
        if together and part.startswith("- ") and together[-1].startswith("- "):
            together[-1] += "\n" + part
        else:
            together.append(part)
    return together


def numbers(table: Table, one: Evidence) -> str:
    """Return the table in the paper's form: in each cell our number, and the paper's behind it in parentheses."""
    cells = one.tables[table.name]["cells"]
    columns = [column for column in (*table.paper, *cells) if not column.startswith("_")]
    columns = [column for column in dict.fromkeys(columns) if column in cells]
    labels = dict.fromkeys(label for column in columns for label in cells[column])
    heads = [table.rows, *columns]
    digits = table.digits
    rows = []
    for label in sorted(labels, key=_order):
        row = [label]
        for column in columns:
            values, known = cells[column].get(label), table.paper.get(column, {}).get(_label(label))
            ours = "–" if values is None else f"{fmean(values):.{digits}f}"
            row.append(ours + ("" if known is None else f" ({known:.{digits}f})"))
        rows.append(row)
    return f"{one.title} (in parentheses: the paper):\n\n{grid(heads, rows)}"


def grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def heading(table: Table) -> str:
    """Return the heading of a table's section."""
    return f"{table.name}: {table.title[0].lower()}{table.title[1:]}"


def anchor(table: Table) -> str:
    """Return the address of a table's section, as Markdown makes it from its heading."""
    kept = "".join(sign for sign in heading(table).lower() if sign.isalnum() or sign in " -_")
    return kept.replace(" ", "-")


def _order(label: str) -> tuple[bool, int, int]:
    first = label.replace(",", " ").split()[0]
    dim = int(first) if first.isdecimal() else -1
    last = label.rsplit(maxsplit=1)[-1]
    return (dim < 0, dim, int(last) if last.isdecimal() else 0)


def _label(label: str) -> Label:
    return int(label) if label.isdecimal() else label
