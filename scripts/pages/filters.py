"""The page of searches under filters, beside a vector database of the same kind: recall and time by selectivity."""

from __future__ import annotations

from typing import Any

from matryo.results import Row
from pages.markdown import grid, latest

NOTES = """One query at a time on one thread, by wall time: the mean over queries of the best round. *First* is the
first search with a filter that no search had before. Our plans were chosen without a filter, for the recall in their
names. Recall counts against the nearest of the rows that match, in float64. *Ratio* compares with the fastest of our
searches whose recall is at least as high."""
OURS = "matryo"


def tables(rows: list[Row]) -> list[str]:
    """One table per database and selectivity."""
    parts = [NOTES]
    for row in latest(rows, lambda row: row.subject):
        parts += [f"## {row.subject}"]
        for share, group in _by_share(row).items():
            parts += [f"**{100 * share:g} % of the rows match**", _table(group)]
    return parts


def finding(rows: list[Row]) -> str:
    """The worst ratio of our time to that of the database at no higher recall."""
    ratios = [
        ratio
        for row in latest(rows, lambda row: row.subject)
        for group in _by_share(row).values()
        for figures in group
        if not figures["engine"].startswith(OURS) and (ratio := _ratio(figures, group)) is not None
    ]
    return (
        f"Filtered searches take {min(ratios):.2f} to {max(ratios):.2f} × the time of qdrant-edge at equal or better "
        f"recall, in {len(ratios)} comparisons over databases, selectivities and settings."
    )


def _by_share(row: Row) -> dict[float, list[dict[str, Any]]]:
    groups: dict[float, list[dict[str, Any]]] = {}
    for figures in row.figures["rows"]:
        groups.setdefault(figures["selectivity"], []).append(figures)
    return groups


def _ratio(theirs: dict[str, Any], group: list[dict[str, Any]]) -> float | None:
    """Our time over theirs, at a recall at least as high; None if none of our searches has it."""
    times = [figures["mean_ms"] for figures in group
             if figures["engine"].startswith(OURS) and figures["recall"] >= theirs["recall"]]   # fmt: skip
    return min(times) / theirs["mean_ms"] if times else None


def _table(group: list[dict[str, Any]]) -> str:
    lines = []
    for figures in sorted(group, key=lambda figures: figures["mean_ms"]):
        ratio = None if figures["engine"].startswith(OURS) else _ratio(figures, group)
        lines.append([
            figures["engine"], f"{figures['recall']:.3f}", f"{figures['mean_ms']:.3f}", f"{figures['first_ms']:.3f}",
            "" if ratio is None else f"{ratio:.2f} ×",
        ])  # fmt: skip
    return grid(["search", "recall@10", "ms", "first, ms", "ratio"], lines)


MAKERS = {"filters": tables}
