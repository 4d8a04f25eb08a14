"""The page of plans on databases, beside each database's own index of all dims."""

from __future__ import annotations

from typing import Any

from matryo.results import Row
from pages.markdown import grid, latest

RECALLS = ("0.95", "0.99")
BUILD = """## Indexes

Rows are copied by the bulk path of the database; indexes are made one after another. *Estimated* is what `prepare` says
before it builds. The index of all dims is the one that the manual of the database shows; where its estimate is half as
large, `prepare` would build it in half precision, as it does those of first dims."""
SEARCH = """## Search

One query at a time from one client (p50, p99), then from eight, on the two cores that the database runs on as well.
Each setting is the fastest of a grid that reached the recall on other queries: *all dims* on the index of all dims (a
scan, where there is none), *planned* on the index of first dims. Recall counts against exact search in float32."""
FILTERED = """### Under filters

The plans for recall 0.95, which were chosen without a filter; the filter compares a number in the payload. Where few
rows match, the search is exact."""
PROMISE = """## The promise

Each draw of queries plans anew; other queries say what the recall truly is."""


def build(rows: list[Row]) -> list[str]:
    """Loads and indexes."""
    lines = []
    for row in latest(rows, lambda row: row.subject):
        figures = row.figures
        for index in figures["indexes"]:
            dims = "all" if index["dim"] == figures["dim"] else str(index["dim"])
            guess = index["estimated"]
            lines.append([row.subject, f"{figures['load_seconds']:.1f}", dims, _megabytes(index["bytes"]),
                          _megabytes(guess["bytes"]), f"{index['seconds']:.0f}", f"{guess['seconds']:.0f}"])
    heads = ["engine, set", "load, s", "dims", "MB", "estimated", "build, s", "estimated"]
    return [_sets(rows), BUILD, grid(heads, lines)]


def _sets(rows: list[Row]) -> str:
    """The sets: what they are, and how near the generated ones are to the real ones that they imitate."""
    lines = []
    for row in latest(rows, lambda row: row.figures["set"]["name"]):
        known = row.figures["set"]
        line = f"- {row.subject.partition(', ')[2]}: {row.figures['rows']:,} × {row.figures['dim']}, {known['name']}"
        if "real" in known:
            dims = [dim for dim in known["real"] if dim in ("16", "64", "256")]
            pairs = (f"{known['recall'][dim]:.2f} ({known['real'][dim]:.2f}) at {dim}" for dim in dims)
            line += f"; first dims alone find, of the 10 nearest (the real vectors: in brackets), {', '.join(pairs)}"
        lines.append(f"{line}.")
    return "\n".join(lines)


def search(rows: list[Row]) -> list[str]:
    """Plans at equal recall, and under filters."""
    lines, filtered = [], []
    for row in latest(rows, lambda row: row.subject):
        figures = row.figures
        for recall in RECALLS:
            full, planned = (figures["plans"].get(f"{name} {recall}") for name in ("full", "planned"))
            for name, found in (("all dims", full), ("planned", planned)):
                if found is not None:
                    ratio = "" if name == "all dims" else f"{full['p50_ms'] / found['p50_ms']:.2f} ×"
                    lines.append([row.subject, recall, name, _outline(found["plan"]), f"{found['recall']:.4f}",
                                  f"{found['p50_ms']:.2f}", f"{found['p99_ms']:.2f}", f"{found['qps']:,.0f}",
                                  f"{found['qps_8']:,.0f}", ratio])
        for share, each in figures["filtered"].items():
            for name, found in each.items():
                filtered.append([row.subject, f"{100 * float(share):g} %", "all dims" if name == "full" else name,
                                 f"{found['recall']:.4f}", f"{found['p50_ms']:.2f}", f"{found['p99_ms']:.2f}"])
    heads = ["engine, set", "recall asked", "search", "plan", "recall@10", "p50, ms", "p99, ms", "per second",
             "8 clients", "faster"]
    scans = [f"{row.subject} {row.figures['exact_ms']:.0f} ms" for row in latest(rows, lambda row: row.subject)]
    parts = [SEARCH, grid(heads, lines, left=4), f"Exact search by the database takes: {'; '.join(scans)} (median)."]
    heads = ["engine, set", "matching", "search", "recall@10", "p50, ms", "p99, ms"]
    return [*parts, FILTERED, grid(heads, filtered, left=3)]


def promise(rows: list[Row]) -> list[str]:
    """Draws in which the promised recall was true."""
    lines = [[row.subject, f"{row.figures['rows']:,}", f"{row.figures['target']:g}", f"{row.figures['seen']}",
              f"{row.figures['kept']} of {row.figures['draws']}", f"{row.figures['recall']:.4f}",
              f"{row.figures['least']:.4f}"] for row in latest(rows, lambda row: row.subject)]
    heads = ["engine, set", "rows", "promised", "queries seen", "kept", "mean recall", "worst draw"]
    return [PROMISE, grid(heads, lines)]


def finding(rows: list[Row]) -> str:
    """What planned search gains on each set, in time and in the size of the index."""
    said = []
    for row in latest([row for row in rows if row.kind == "engines-search"], lambda row: row.subject):
        plans = row.figures["plans"]
        ratios = [plans[f"full {recall}"]["p50_ms"] / plans[f"planned {recall}"]["p50_ms"] for recall in RECALLS]
        text = f"{row.subject}: {ratios[0]:.2f} and {ratios[1]:.2f} × as fast (p50) as the index of all dims at recall "
        text += "0.95 and 0.99"
        built = [other for other in rows if other.kind == "engines-build" and other.subject == row.subject]
        if built:
            sizes = {index["dim"]: index["bytes"] for index in built[-1].figures["indexes"]}
            used = [plans[f"planned {recall}"]["plan"]["stages"][0]["dim"] for recall in RECALLS]
            full = sizes[row.figures["dim"]]   # 0 where all dims are scanned without an index
            shares = [full / sizes[dim] for dim in used if full and sizes.get(dim)]
            text += f", with an index {min(shares):.1f} × smaller" if shares else ""
        said.append(text)
    if said:
        return f"Planned search, {'; '.join(said)}."
    sizes = {index["dim"]: index["bytes"] for index in rows[0].figures["indexes"]}
    small = min(sizes, key=lambda dim: sizes[dim])
    return f"An index of {small} of {max(sizes)} dims is {sizes[max(sizes)] / sizes[small]:.1f} × smaller."


def _outline(plan: dict[str, Any]) -> str:
    stages = " → ".join(f"{stage['dim']}:{stage['keep']}" for stage in plan["stages"])
    return f"ef {plan['ef']}: {stages}" if plan.get("ef") else stages


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f}"


MAKERS = {"engines-build": build, "engines-search": search, "engines-promise": promise}
