"""The paper's claim about speed, as parts of a page: a shortlist of 200 at few dims against HNSW at full dim."""

from __future__ import annotations

from functools import partial
from typing import Any

from matryo import Plan
from matryo.results import Row
from pages.markdown import grid
from pages.retrieval_rows import as_good, best, databases, enough, family, setting, times_slower, together

PAPER = 200   # the length of the paper's shortlist
LONGEST = 32   # dims of the first stages that count as the paper's
NOTES = {
    "claim": """The paper's own comparison. Both sides fetch a shortlist of 200: HNSW (M = 32) at full dim, and
adaptive retrieval at 16 or 32 dims, which is then re-ranked at full dim or by a funnel. Plans are run as in the paper,
and with 8-bit stages between the first and the last. Shown is the fastest plan whose mAP@10 is at most 0.1 points
below that of HNSW, or the plan with the best mAP@10 if there is none. *Faster* is the time of HNSW divided by the time
of the plan, the median over turns of one run. The stricter columns compare with the fastest HNSW of the same recall@10
or mAP@10, however few candidates it fetches. *FLOPs* divides those of exact search by those of the plan, counted as in
the paper with every row in the first stage.""",
    "about": """A plan that probes few partitions (IVF lists) finds fewer of the nearest neighbours but more of the
query's class, so its mAP@10 may exceed that of exact search. Generated databases are drawn from [a
model](generator.md) of 200 classes; with as many classes, 250,000 vectors have as many rows per class as ImageNet-1K.
A thousand classes exceed what the model's first 16 dims can separate, and a graph walk that holds 200 candidates
hardly leaves a class of 250.""",
    "protocol": """Both sides fetch a shortlist of 200, as in the claim above. `i` marks a stage that reads 8 bits per
column; `:200` is how many rows it keeps.""",
}


def claims(rows: list[Row]) -> list[str]:
    """One table over databases, the largest of those alike: adaptive retrieval and the funnel, each at its best."""
    lines = []
    largest = {(family(here[0]), hardware): (subject, here) for (subject, hardware), here in databases(rows).items()
               if shortlists(here)}  # fmt: skip
    for subject, here in sorted(largest.values(), key=lambda one: one[1][0].figures["count"]):
        for hnsw in shortlists(here):
            ours: dict[str, list[Row]] = {}
            for row in matched(here, hnsw):
                ours.setdefault(f"{kind(row)}, {stages_of(row)[0]['dim']} dims", []).append(row)
            quickest = {name: chosen(group, hnsw) for name, group in sorted(ours.items())}
            lines += [[subject, name, *compared(row, hnsw, here)] for name, row in quickest.items() if row]
    heads = ["database", "plan", *HEADS]
    return ["## The paper's claim", NOTES["claim"], grid(heads, lines, left=2), NOTES["about"]] if lines else []


def protocol(rows: list[Row]) -> list[str]:
    """For one database: every kind of plan, at the share of rows that serves it best."""
    lines = []
    for hnsw in shortlists(rows):
        by_stages: dict[str, list[Row]] = {}
        for row in matched(rows, hnsw):
            by_stages.setdefault(str(stages_of(row)), []).append(row)
        found = [one for group in by_stages.values() if (one := chosen(group, hnsw))]
        found.sort(key=lambda one: -one.figures["qps"])
        lines += [[setting(one.figures), *compared(one, hnsw, rows)] for one in found]
    return ["**A shortlist of 200**", NOTES["protocol"], grid(["plan", *HEADS], lines)] if lines else []


HEADS = ["mAP@10, %", "HNSW’s", "recall@10", "ms", "HNSW’s", "faster", "at its recall", "at its mAP", "FLOPs"]


def compared(row: Row, hnsw: Row, rows: list[Row]) -> list[str]:
    """One line, under ``HEADS``."""
    f, theirs = row.figures, hnsw.figures
    graphs = [one for one in rows if one.figures["engine"] == theirs["engine"] and together(one, hnsw)]
    by_recall = best(graphs, lambda one: enough(one, f["recall@10"]))
    by_map = best(graphs, lambda one: as_good(one, f["map@10"]))
    return [
        f"{100 * f['map@10']:.2f}", f"{100 * theirs['map@10']:.2f}", f"{f['recall@10']:.3f}", f"{1e3 / f['qps']:.3f}",
        f"{1e3 / theirs['qps']:.3f}", f"{times_slower(hnsw, row):.1f}",
        *("–" if one is None else f"{times_slower(one, row):.1f} (ef {one.figures['ask']['ef']})"
          for one in (by_recall, by_map)),
        f"{fewer_flops(f):.0f}",
    ]  # fmt: skip


def fewer_flops(figures: dict[str, Any]) -> float:
    """How many times the plan's FLOPs exact search has, where the first stage scans all rows."""
    plan = Plan.from_dict({"stages": figures["ask"]["plan"]["stages"]})
    count, dim = figures["count"], figures["dim"]
    return Plan.single(dim).mflops(count) / plan.mflops(count, reuse=False)


def shortlists(rows: list[Row]) -> list[Row]:
    """Graphs that were searched for a shortlist of 200."""
    return [row for row in rows if row.figures["ask"].get("shortlist") == PAPER]


def matched(rows: list[Row], hnsw: Row) -> list[Row]:
    """Plans measured beside it whose first stage keeps 200, of more."""
    found = [row for row in rows if len(stages_of(row)) > 1 and together(row, hnsw)]
    first = [stages_of(row)[0] for row in found]
    return [row for row, stage in zip(found, first, strict=True)
            if stage["dim"] <= LONGEST and stage["keep"] == PAPER < seen(row)]  # fmt: skip


def seen(row: Row) -> float:
    """How many rows the first stage looks at."""
    return float(row.figures["ask"]["plan"].get("probe", 1) * row.figures["count"])


def stages_of(row: Row) -> list[dict[str, Any]]:
    """The figures of its plan."""
    found: list[dict[str, Any]] = row.figures["ask"].get("plan", {}).get("stages", [])
    return found


def kind(row: Row) -> str:
    """Whether the shortlist shrinks as in the paper's funnel or is ranked at full dim, and whether in 8 bits before."""
    first, *later = stages_of(row)
    funnel = Plan.funnel(first["dim"], later[-1]["dim"], keep=PAPER).stages
    alike = [(stage["dim"], stage["keep"]) for stage in (first, *later)] == [(one.dim, one.keep) for one in funnel]
    small = any(stage.get("precision") == "int8" for stage in later)
    return f"{'funnel' if alike else 'adaptive'}{', 8 bits between' if small else ''}"


def chosen(rows: list[Row], hnsw: Row) -> Row | None:
    """The quickest that is as good by mAP@10; or as the best of them, if none is."""
    most = max((row.figures["map@10"] for row in rows), default=0.0)
    return best(rows, partial(as_good, exact=min(most, hnsw.figures["map@10"])))
