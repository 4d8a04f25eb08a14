"""The page of an index that is searched while it changes: speed and recall beside the same index compacted."""

from __future__ import annotations

from typing import Any

from matryo.results import Row
from pages.markdown import grid, latest

NOTES = """One query at a time on one thread, by CPU time, along a plan for a recall@10 of 0.95 that was chosen before
anything was added. New vectors join the partitions; the compacted index has divided all vectors anew. The two answer in
turns. *Exact* is the same ratio for exact search. In the mixed load, one call in a hundred writes: adds, replaced
vectors and deletions, each durable before the call returns. The reads include loading what changed; from commit
c8a45b5924e1 on, the call that writes does this where a search came before it. Meanwhile another index is written by a
process that is killed at random moments; a write is *lost* if it was acknowledged and is not there afterwards."""


def tables(rows: list[Row]) -> list[str]:
    """Growth, mixed load and pairs of each set."""
    parts = [NOTES]
    for row in latest(rows, lambda row: row.subject):
        figures = row.figures
        grown = [
            [f"+{100 * part['share']:g} %", f"{part['qps']:,.0f}", f"{part['compacted_qps']:,.0f}",
             f"{part['of_compacted']:.2f}", f"{part['exact_of_compacted']:.2f}", f"{part['recall']:.3f}",
             f"{part['compacted_recall']:.3f}", f"{part['adds_per_second']:,.0f}"]
            for part in figures["grow"]
        ]  # fmt: skip
        heads = ["vectors", "queries/s", "compacted", "ratio", "exact", "recall", "compacted", "adds/s"]
        mixed = figures["mixed"]
        pairs = ", ".join(f"{name} {rate:,.0f}" for name, rate in figures["pairs"].items())
        parts += [
            f"## {row.subject}",
            grid(heads, grown),
            f"Mixed load for {mixed['seconds']:.0f} s: {mixed['reads']:,} reads and {mixed['writes']:,} writes, "
            f"{mixed['qps']:,.0f} queries per second, {mixed['of_compacted']:.2f} of the compacted index "
            f"({mixed['compacted_qps']:,.0f}); recall {mixed['recall']:.3f} and {mixed['compacted_recall']:.3f}; the "
            f"slowest read took {mixed['slowest_ms']:.1f} ms{_writes(mixed)}. {mixed['kills']} kills, "
            f"{mixed['acknowledged']:,} acknowledged writes, {mixed['lost']} lost.",
            f"One vector added durably and one search, in turns, pairs per second: {pairs}.",
        ]
    return parts


def _writes(mixed: dict[str, Any]) -> str:
    each = mixed.get("write_microseconds")   # older rows lack it
    return "" if each is None else f", and a write {each:,.0f} µs of CPU time on average"


def finding(rows: list[Row]) -> str:
    """The speed while an index grows and under a mixed load, as shares of that of the compacted index."""
    shown = [row.figures for row in latest(rows, lambda row: row.subject)]
    grown = [part["of_compacted"] for figures in shown for part in figures["grow"]]
    mixed = [figures["mixed"]["of_compacted"] for figures in shown]
    most = max(part["share"] for figures in shown for part in figures["grow"])
    lost = sum(figures["mixed"]["lost"] for figures in shown)
    acknowledged = sum(figures["mixed"]["acknowledged"] for figures in shown)
    return (
        f"With up to {100 * most:g} % of new vectors, searches reach {min(grown):.2f} to {max(grown):.2f} of the speed "
        f"of the compacted index; with one write per hundred reads, {span(mixed)}. Of "
        f"{acknowledged:,} writes acknowledged before a kill, {lost} were lost."
    )



def span(ratios: list[float]) -> str:
    """The lowest and the highest, or the only one.

    >>> span([0.7]), span([0.9, 0.7])
    ('0.70', '0.70 to 0.90')
    """
    return " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios))))

MAKERS = {"updates": tables}
