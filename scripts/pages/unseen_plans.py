"""The page of plans on unseen kinds of vectors: how near they are to the best plan by hand, and how promises hold."""

from __future__ import annotations

from statistics import median
from typing import Any

from matryo.results import Row
from pages.markdown import grid, latest

KINDS = "unseen-plans-grid", "unseen-plans-promise"
BY_HAND = """*Chosen* is the plan of `index.plan(recall=…, queries=tuning)` on an index with its defaults. *By hand* is
the fastest plan whose recall@10 of the same tuning queries reaches the target, of an exhaustive grid over the share of
the rows to visit, the shortlist, stages in between and margins. The planner promises the target for other queries with
95 % confidence, so its plan finds more than the target. *As safe* compares it with the fastest plan of the grid that
finds as much of the tuning queries. Recall and time are those of other queries, one at a time on one thread, by CPU
time. The plans take turns; figures are medians over turns, and ratios are medians of the ratios in a turn."""
PROMISES = """In each draw, the planner sees some of the queries at random and no filter, and promises the target with
95 % confidence. The other queries are searched along its plan, among all rows and among those that a filter on a random
number leaves. *Kept* counts the draws in which these queries have the promised recall in the mean. The neighbours are
those of brute force in float64. The guarantee covers searches among all rows; filters are measured because users
search along such plans with filters too. If a filter leaves few rows, they are all scored, and the hits are exact."""


def grid_tables(rows: list[Row]) -> list[str]:
    """One line per set and target."""
    lines = []
    for row in _shown(rows, KINDS[0]):
        chosen, hand = row.figures["chosen"], row.figures["hand"]
        lines.append([
            row.subject, f"{row.figures['target']:g}", f"{chosen['recall@10']:.4f}", f"{_time(chosen):,.1f}",
            f"{hand['recall@10']:.4f}", f"{_time(hand):,.1f}", f"{_ratio(row, 'hand'):.2f} ×",
            f"{_ratio(row, 'safe'):.2f} ×", f"{row.figures['grid_plans']:,}",
        ])  # fmt: skip
    heads = ["vectors", "target", "chosen: recall", "µs", "by hand: recall", "µs", "chosen / by hand", "/ as safe",
             "plans run"]   # fmt: skip
    return ["## The plan by hand", BY_HAND, grid(heads, lines)]


def promise_tables(rows: list[Row]) -> list[str]:
    """One line per set, target and filter."""
    lines = []
    for row in _shown(rows, KINDS[1]):
        lines += [
            [row.subject, f"{row.figures['target']:g}", _title(part), f"{part['kept']} of {row.figures['draws']}",
             f"{part['recall']:.4f}", f"{part['least']:.4f}"] for part in row.figures["filters"]
        ]  # fmt: skip
    return ["## Promises", PROMISES, grid(["vectors", "target", "rows", "kept", "mean recall", "least"], lines)]


def finding(rows: list[Row]) -> str:
    """The ratios to the plan by hand, and the promises that held."""
    parts = []
    ratios = {(row.subject, row.figures["target"]): _ratio(row, "hand") for row in _shown(rows, KINDS[0])}
    if ratios:
        (subject, target), worst = max(ratios.items(), key=lambda entry: entry[1])
        parts.append(
            f"The chosen plan takes {median(ratios.values()):.2f} × the time of the best plan by hand in the median of "
            f"{len(ratios)} cases, and {worst:.2f} × at most ({subject.partition(',')[0]} at {target:g})."
        )
    promised = _shown(rows, KINDS[1])
    if promised:
        (kept, draws), (with_filter, filtered) = (_kept(promised, filters=filters) for filters in (False, True))
        text = f"Plans kept their promised recall in {kept:,} of {draws:,} draws"
        under = f", and under filters that they were not planned for in {with_filter:,} of {filtered:,}"
        parts.append(f"{text}{under if filtered else ''}.")
    return " ".join(parts)


def _shown(rows: list[Row], kind: str) -> list[Row]:
    return latest((row for row in rows if row.kind == kind), lambda row: (row.subject, row.figures["target"]))


def _kept(rows: list[Row], *, filters: bool) -> tuple[int, int]:
    """Promises that held, and all, with filters or without."""
    parts = [(part["kept"], row.figures["draws"]) for row in rows for part in row.figures["filters"]
             if (part["share"] < 1) == filters]   # fmt: skip
    return sum(kept for kept, _ in parts), sum(draws for _, draws in parts)


def _time(plan: dict[str, Any]) -> float:
    return float(median(plan["cpu_microseconds"]))


def _ratio(row: Row, other: str) -> float:
    """How many times as long the chosen plan takes: the median over turns."""
    pairs = zip(row.figures["chosen"]["cpu_microseconds"], row.figures[other]["cpu_microseconds"], strict=True)
    return float(median(chosen / another for chosen, another in pairs))


def _title(part: dict[str, Any]) -> str:
    return "all" if part["share"] == 1 else f"{100 * part['share']:g} %: {part['rows']:,}"


MAKERS = {KINDS[0]: grid_tables, KINDS[1]: promise_tables}
