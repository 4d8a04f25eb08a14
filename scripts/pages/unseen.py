"""The page of search on kinds of vectors that no default was tuned on: each set, at each target, beside tuned peers."""

from __future__ import annotations

from matryo.results import Row
from pages.markdown import grid, latest

NOTES = """matryo runs with its defaults: `Index.create`, `add`, `build()`, `plan(recall=…, queries=tuning)`. Each peer
uses the fastest of its settings whose recall@10 of the tuning queries reaches the target. Recall and queries per second
are those of other queries, one at a time on one thread, by CPU time; the engines answer in turns, and figures are
medians over turns. matryo promises its recall with 95 % confidence, so it is above the target; the peers promise
nothing, so theirs may be below. *matryo is* the ratio of the queries per second. Of an engine that was built in several
ways, the fastest is shown."""
EXACT = "matryo exact"


def tables(rows: list[Row]) -> list[str]:
    """One table per set and target, fastest first."""
    parts = [NOTES]
    shown = latest(rows, lambda row: (row.subject, row.figures["target"], row.figures["engine"]))
    for subject in dict.fromkeys(row.subject for row in shown):
        parts += [f"## {subject}"]
        here = [row for row in shown if row.subject == subject]
        for target in sorted({row.figures["target"] for row in here}):
            parts += [f"**recall@10 ≥ {target:g}**", _table([row for row in here if row.figures["target"] == target])]
    return parts


def finding(rows: list[Row]) -> str:
    """How the defaults compare with the fastest peer, and with our own exact search."""
    shown = latest(rows, lambda row: (row.subject, row.figures["target"], row.figures["engine"]))
    ratios, exact = {}, []
    for case in dict.fromkeys((row.subject, row.figures["target"]) for row in shown):
        speeds = {row.figures["engine"]: row.figures["qps"] for row in shown
                  if (row.subject, row.figures["target"]) == case}   # fmt: skip
        ours, own = speeds.pop("matryo"), speeds.pop(EXACT)
        exact.append(ours / own)
        ratios[case] = ours / max(speeds.values())
    ahead = sum(ratio >= 1 for ratio in ratios.values())
    (subject, target), worst = min(ratios.items(), key=lambda entry: entry[1])
    return (
        f"With defaults only, matryo is faster than every tuned peer in {ahead} of {len(ratios)} cases; the lowest "
        f"ratio is {worst:.2f} ({subject.partition(',')[0]} at {target:g}). Its plans are {min(exact):.1f} to "
        f"{max(exact):.0f} times as fast as its own exact search."
    )


def _table(rows: list[Row]) -> str:
    ours = next((row.figures["qps"] for row in rows if row.figures["engine"] == "matryo"), None)
    lines, families = [], set()
    for row in sorted(rows, key=lambda row: -row.figures["qps"]):
        figures = row.figures
        family = figures["engine"] if figures["engine"] == EXACT else _family(figures["engine"])
        if family in families:
            continue
        families.add(family)
        ratio = "" if ours is None else f"{ours / figures['qps']:.2f} ×"
        lines.append([
            figures["engine"], f"{figures['recall@10']:.4f}", f"{figures['qps']:,.0f}", ratio,
            f"{figures['build_cpu_seconds']:,.0f}", f"{figures['index_bytes'] / 1e6:,.0f}",
        ])  # fmt: skip
    return grid(["engine", "recall@10", "queries/s", "matryo is", "build, s", "MB"], lines)


def _family(engine: str) -> str:
    """The engine without the settings of its build."""
    return " ".join(word for word in engine.split() if "=" not in word)


MAKERS = {"unseen": tables}
