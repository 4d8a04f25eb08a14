"""The page of migrations between models: recall of mapped vectors, and of an index that is encoded again row by row."""

from __future__ import annotations

from matryo.results import Row
from pages.markdown import grid, latest

NOTE = """Share of the true ten nearest after a full re-encode that a search finds, in percent, for queries and rows
that no map was fitted to: among the first ten, and in brackets among the first hundred. *Old model only* searches the
old index with queries of the old model. *Mapped* searches the mapped old vectors with queries of the new model; in
the next three columns a share of the rows has been encoded again. *Reported* is what `Migration` says about *mapped*
from the pairs alone: it searches fewer rows, among which the nearest are easier to find."""
HEADS = ["pairs", "map", "old model only", "mapped", "25 %", "50 %", "75 %", "reported"]


def migrations(rows: list[Row]) -> list[str]:
    """One table per pair of models."""
    parts, kept = [NOTE], latest(rows, lambda row: (row.subject, row.figures["pairs"]))
    for subject in dict.fromkeys(row.subject for row in kept):
        some = [row.figures for row in kept if row.subject == subject]
        lines = [[f"{figures['pairs']:,}", figures["bridge"].replace("_", " "),
                  *(_both(values) for values in figures["found"].values()),
                  _both(figures["said"][figures["bridge"]])] for figures in some]  # fmt: skip
        parts += [f"## {subject}", f"{some[0]['queries']:,} queries; {min(f['rows'] for f in some):,} to "
                  f"{max(f['rows'] for f in some):,} rows.", grid(HEADS, lines, left=2)]  # fmt: skip
    return parts


def _both(values: list[float]) -> str:
    return f"{100 * values[0]:.0f} ({100 * values[1]:.0f})"


def finding(rows: list[Row]) -> str:
    """What mapped rows find with the most pairs, and the old model alone."""
    kept = latest(rows, lambda row: (row.subject, row.figures["pairs"]))
    parts = []
    for subject in dict.fromkeys(row.subject for row in kept):
        figures = max((row.figures for row in kept if row.subject == subject), key=lambda each: each["pairs"])
        stay, mapped = (figures["found"][name][1] for name in ("stay", "mapped"))
        parts.append(f"{subject.split(',')[0]}, {figures['pairs']:,} pairs: {100 * stay:.0f} → {100 * mapped:.0f} %")
    return f"The true ten among the first hundred, old model only → mapped: {'; '.join(parts)}."


MAKERS = {"migration": migrations}
