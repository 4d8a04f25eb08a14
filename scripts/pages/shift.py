"""The page of plans that meet queries of another kind: their recall, the warning, the check, and the cures."""

from __future__ import annotations

from typing import Any

from matryo.results import Row
from pages.markdown import grid, latest

NOTES = """The planner sees queries of the usual kind, and promises the target with 95 % confidence. Other queries, of
the usual kind and of other kinds, are searched one by one. *Warned* is the number of searches until the warning, of
2,000. *Check* is the verdict of `index.check` with these queries and the plan. *Planned again* is the recall on these
queries of a plan for other queries of their kind. *Robust* is that of one plan for all kinds, with their names as
`robust`. *Rows* is the recall of a plan that was made without queries. Brackets have the warnings with these plans. The
settings of the warning were chosen on other data: captions of Flickr8k, CLINC150, STS-B and SciFact."""


def tables(rows: list[Row]) -> list[str]:
    """One table per set and target."""
    parts = [NOTES]
    for row in _shown(rows):
        figures = row.figures
        usual, robust, from_rows = (figures["plans"][name] for name in ("usual", "robust", "from_rows"))
        parts += [f"## {row.subject}, recall@{figures['k']} ≥ {figures['target']:g}", _table(figures["kinds"])]
        parts += [
            f"Exact search takes {usual['exact_ms']:.2f} ms per query, the plan {usual['ms']:.3f} ms, the robust plan "
            f"{robust['ms']:.3f} ms, and the plan from rows {from_rows['ms']:.3f} ms. False alarms: "
            f"{figures['false_alarms']} of {figures['draws']:,} draws.",
            f"Rank correlation with the recall of a query, by kind: {_correlations(figures['kinds'])}.",
        ]
    return parts


def summary(rows: list[Row]) -> str:
    """The table of the guide: every set at the lower target."""
    shown = [row.figures for row in _shown(rows)]
    target = min(figures["target"] for figures in shown)
    lines = [
        [figures["set"], kind["kind"], f"{kind['recall']:.3f}", _number(kind["warned_after"]), kind["verdict"],
         f"{kind['again']:.3f}", f"{kind['robust']:.3f}"]
        for figures in shown if figures["target"] == target for kind in figures["kinds"]
    ]  # fmt: skip
    heads = ["database", "queries", "recall", "warned", "check", "planned again", "robust"]
    return grid(heads, lines, left=2)


def finding(rows: list[Row]) -> str:
    """How many broken promises the warning and the check noticed, and how many the cures repaired."""
    broken, warned, checked, again, robust = [], 0, 0, 0, 0
    alarms = draws = 0
    for row in _shown(rows):
        alarms, draws = alarms + row.figures["false_alarms"], draws + row.figures["draws"]
        for kind in row.figures["kinds"][1:]:
            if kind["recall"] < row.figures["target"]:
                broken.append(kind["recall"] - row.figures["target"])
                warned += kind["warned_after"] is not None
                checked += kind["verdict"] == "broken"
                again += kind["again"] >= row.figures["target"]
                robust += kind["robust"] >= row.figures["target"]
    return (
        f"Queries of another kind broke {len(broken)} promises, by up to {-min(broken):.2f}. The warning was issued "
        f"for {warned} of them, and `index.check` reported {checked}. Planning again repaired {again}, one robust plan "
        f"for all kinds {robust}. For queries of the usual kind, {alarms} of {draws:,} draws led to a warning."
    )


def _shown(rows: list[Row]) -> list[Row]:
    return latest(rows, lambda row: (row.subject, row.figures["target"]))


def _table(kinds: list[dict[str, Any]]) -> str:
    heads = ["queries", "recall", "warned", "check", "planned again", "robust", "rows"]
    lines = [
        [kind["kind"], f"{kind['recall']:.3f}", _number(kind["warned_after"]), kind["verdict"], f"{kind['again']:.3f}",
         *(f"{kind[name]:.3f} ({_number(kind[f'{name}_warned_after'])})" for name in ("robust", "from_rows"))]
        for kind in kinds
    ]  # fmt: skip
    return grid(heads, lines)


def _correlations(kinds: list[dict[str, Any]]) -> str:
    parts = []
    for name, title in (("k-th", "k-th score"), ("first", "first score"), ("difference", "their difference")):
        values = [kind["correlations"][name] for kind in kinds]
        parts.append(f"{title} {min(values):.2f} to {max(values):.2f}")
    return ", ".join(parts)


def _number(searches: int | None) -> str:
    return "no" if searches is None else f"after {searches:,}"


MARKS = ("<!-- shift-table -->", "<!-- /shift-table -->")
MAKERS = {"shift": tables}
