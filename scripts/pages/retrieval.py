"""The pages of retrieval's rows: frontiers, growth, the paper's tables, and the generator.

``MAKERS`` maps each kind of row to the function that turns such rows into Markdown. The figures
are SVG files beside the page: see ``retrieval_figures.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from statistics import fmean
from typing import Any

from matryo.results import Row
from pages.markdown import grid
from pages.retrieval_claim import claims, protocol
from pages.retrieval_promises import memory_tables, promise_tables, thread_tables
from pages.retrieval_rows import (
    ALIKE,
    RECALLS,
    as_good,
    best,
    by_engine,
    enough,
    families,
    ratio,
    setting,
    shown,
    size,
    speed,
    stem,
)

NOTES = {
    "retrieval": """The ten nearest neighbours by cosine similarity, one query at a time on one thread. Each engine is
shown at its fastest setting that reaches the recall@10 against exact search at full dim. *Slower* is the time per
query relative to matryo: the median over turns of one run that measured both, or (with ≈) the ratio of means from
different runs. *MB* is the size of the index on disk, *memory* what its process holds. *Batch* sends all queries at
once, also on one thread. Two caveats. At 512 dims, builds that were not the best of their engine were not measured
again; their older rows use 1,000 queries in groups of fifty per setting, so that caches were warm. While the real
vectors of 2048 dims were searched, the other core of the machine was busy, which slows down most those engines that
read most. SVS offers its compressed codes (LVQ, LeanVec) on Intel processors only, so they are missing here.""",
    "labels": "If only the class matters, other neighbours of the same class count as well, and a prefix may suffice.",
    "growth": """Cost per query as the database grows, at a recall@10 of at least 0.95. Bytes are those of vectors and
codes that are read, where the engine reports them.""",
    "adaptive": """A shortlist of 200 at D_s dims, re-ranked at D_r: the paper's table. MFLOPs are counted as in the
paper; top-1 is 1-NN accuracy; recall@10 is measured against exact search at full dim. All but MFLOPs are in percent.
Bold: within 0.1 of the best single dim.""",
    "funnel": "The paper's funnels: the shortlist shrinks while the dim doubles. Bold as above.",
    "shortlist": "How long the shortlist must be. Bold: the best of a column.",
    "single": "Every vector at one dim, for comparison.",
    "gpu": """Milliseconds per query on a GPU (`index.to("cuda")`); *faster* is relative to exact search at full dim on
the GPU. *torch* is the hand-written version: one matrix product and one `topk`, without re-scoring and without an
order among ties. The vectors are random with a decaying spectrum. Exact search selects candidates by a product in
float16, re-scores them, and proves that nothing was missed. Plans save less than on a CPU: kernel launches cost more
than scores, and with many queries at once the product is cheap while gathering the rows of a shortlist is not.""",
    "generator": """A generator fitted to real embeddings, compared with them: mAP@10, and the share of the ten nearest
at full dim among the first 10 and 200 at each dim, in percent. Only mAP@10 was fitted; each draw has its own classes
and vectors.""",
}


# ── frontiers ─────────────────────────────────────────────────────────────────────────────────────────────────


def frontier_tables(rows: list[Row]) -> list[str]:
    """The paper's claim; for each database the best of each engine at each recall, and its protocol; then growth."""
    parts = [*claims(rows), "## Engines", NOTES["retrieval"]]
    for (subject, hardware), here in shown(rows).items():
        asked, threads = (sorted({row.figures[name] for row in here}) for name in ("queries", "build_threads"))
        words = " or ".join(f"{count:,}" for count in asked), " or ".join(map(str, threads))
        many = "thread" if threads == [1] else "threads"
        parts += [f"## {subject}", f"{words[0]} queries, on {hardware}; built with {words[1]} {many}."]
        parts += [f"![Recall against queries per second]({stem(subject)}.svg)"]
        for recall in RECALLS:
            title = "All found (recall@10 = 1)" if recall == 1 else f"recall@10 ≥ {recall}"
            parts += [f"**{title}**", frontier_table(here, partial(enough, recall=recall))]
        exact = max((row.figures["map@10"] for row in here if enough(row, 1)), default=None)
        if exact is not None:
            title = f"mAP@10 within 0.1 point of exact search, {100 * exact:.2f} %"
            parts += [f"**{title}**", NOTES["labels"], frontier_table(here, partial(as_good, exact=exact))]
        parts += protocol(here)
    return [*parts, *growth(rows)]


def frontier_table(rows: list[Row], good: Callable[[Row], bool]) -> str:
    """One line an engine, quickest first."""
    lines = []
    ours = best(rows, lambda row: row.figures["engine"] == "matryo" and good(row))
    found = [row for group in by_engine(rows).values() if (row := best(group, good))]
    for row in sorted(found, key=lambda row: -row.figures["qps"]):
        f = row.figures
        slower = ratio(row, rows, lambda other: other.figures["engine"] == "matryo" and good(other))
        apart = "–" if ours is None else f"≈ {ours.figures['qps'] / f['qps']:.2f}"
        lines.append([
            f["engine"], setting(f), f"{f['recall@10']:.3f}", f"{100 * f['map@10']:.2f}", speed(f['qps']),
            apart if slower is None else f"{slower:.2f}", f"{f['batch_qps']:,.0f}", f"{f['build_seconds']:,.1f}",
            f"{f['index_bytes'] / 1e6:,.0f}", f"{f['held_bytes'] / 1e6:,.0f}",
        ])  # fmt: skip
    nobody = [name for name, group in by_engine(rows).items() if best(group, good) is None]
    heads = ["engine", "setting", "recall@10", "mAP@10, %", "queries/s", "slower", "batch", "build, s", "MB", "memory"]
    return grid(heads, lines, left=2) + (f"\n\nNo setting tried is there: {', '.join(nobody)}." if nobody else "")


def growth(rows: list[Row]) -> list[str]:
    """Databases of one kind and several sizes: milliseconds and bytes per query."""
    parts: list[str] = []
    for family, here in families(rows).items():
        counts = sorted({row.figures["count"] for row in here})
        lines = []
        for engine, group in by_engine(here).items():
            at = best_by_count(group, counts)
            if any(at.values()):
                lines.append([engine, *("–" if row is None else cost(row) for row in at.values())])
        parts += [f"## {family}: growth", NOTES["growth"], f"![Cost against size]({stem(family)}-growth.svg)"]
        parts += [grid(["ms, bytes", *(f"{count:,}" for count in counts)], lines)]
    return parts


def best_by_count(rows: list[Row], counts: Iterable[int]) -> dict[int, Row | None]:
    """The best at the lowest recall, for each size of the database."""
    good = partial(enough, recall=RECALLS[0])
    return {count: best([row for row in rows if row.figures["count"] == count], good) for count in counts}


def cost(row: Row) -> str:
    """Milliseconds and bytes of a query."""
    read = row.figures["bytes_read"]
    return f"{1e3 / row.figures['qps']:.3f}" + ("" if read is None else f", {size(read)}")


# ── the paper's tables, and the generator ─────────────────────────────────────────────────────────────────────


def paper_tables(rows: list[Row]) -> list[str]:
    """For each model: D_s × D_r, the funnel, the length of the shortlist, single dims."""
    parts: list[str] = []
    last = {(row.subject, row.figures["table"]): row for row in rows}
    for subject in dict.fromkeys(subject for subject, _ in last):
        about = last[subject, "single"].figures
        parts += [f"## {subject}", f"{about['queries']:,} queries in a database of {about['database']:,}."]
        single = about["entries"]
        for table, title in (("adaptive", "D_s × D_r"), ("funnel", "Funnel"), ("shortlist", "Length of the shortlist"),
                             ("single", "Single dims")):  # fmt: skip
            if (subject, table) in last:
                entries = last[subject, table].figures["entries"]
                parts += [f"### {title}", NOTES[table], paper_table(table, entries, single)]
    return parts


def paper_table(table: str, entries: list[dict[str, Any]], single: list[dict[str, Any]]) -> str:
    """One of them."""
    names = ["top1", "top5", "top10", "map@10", "p@10"] if table == "funnel" else [
        "top1", *(f"{name}@{k}" for name in ("map", "p") for k in (10, 25, 50, 100))]  # fmt: skip
    names = [*names, "recall@10"]
    among = entries if table == "shortlist" else single
    room = 0.0 if table == "shortlist" else ALIKE
    bars = {name: max(entry[name] for entry in among) - room for name in ("top1", "map@10")}
    lines = []
    for entry in entries:
        stages = entry["plan"]["stages"]
        worth = [f"{100 * entry[name]:.2f}" for name in names]
        bold = [f"**{text}**" if table != "single" and entry[name] >= bars.get(name, 2) - 1e-9 else text
                for name, text in zip(names, worth, strict=True)]  # fmt: skip
        lines.append([*stage_cells(table, stages), f"{entry['mflops']:.2f}", *bold])
    return grid([*STAGES[table], "MFLOPs", *(spelt(name) for name in names)], lines)


STAGES = {"adaptive": ["D_s", "D_r"], "funnel": ["dims", "shortlists"], "shortlist": ["shortlist"], "single": ["dim"]}


def stage_cells(table: str, stages: list[dict[str, Any]]) -> list[str]:
    """The stages of a plan, in the columns of its table."""
    dims, keeps = [f"{stage['dim']}" for stage in stages], [f"{stage['keep']}" for stage in stages]
    if table == "funnel":
        return ["→".join(dims), "→".join(keeps)]
    return [keeps[0]] if table == "shortlist" else dims


def spelt(name: str) -> str:
    """A metric as tables call it.

    >>> spelt("map@10"), spelt("p@25"), spelt("top1")
    ('mAP@10', 'P@25', 'top-1')
    """
    metric, at, k = name.partition("@")
    return {"map": "mAP", "p": "P"}.get(metric, metric).replace("top", "top-") + at + k


def generator_tables(rows: list[Row]) -> list[str]:
    """Real and drawn beside each other, dim by dim."""
    parts = [NOTES["generator"]]
    for row in {row.subject: row for row in rows}.values():
        f, lines = row.figures, []
        for dim in map(str, f["dims"]):
            line = [dim]
            for name in f["real"]:
                drawn = [100 * one[name][dim] for one in f["drawn"]]
                line += [f"{100 * f['real'][name][dim]:.2f}", " ".join(f"{value:.2f}" for value in drawn)]
            lines.append(line)
        gap = max(abs(fmean(one["map@10"][dim] for one in f["drawn"]) - f["real"]["map@10"][dim])
                  for dim in f["real"]["map@10"])  # fmt: skip
        about = f"{f['queries']:,} queries in {f['database']:,} of {f['classes']} classes; {len(f['drawn'])} draws"
        parts += [f"## {row.subject}", f"{about}, whose mean mAP@10 is off by {100 * gap:.2f} points or less."]
        parts += [grid(["dim", *(head for name in f["real"] for head in (spelt(name), "drawn"))], lines)]
        scaled = ", ".join(f"{factor:.2f}" for factor in f["factors"])
        parts += [f"Spread within a class, a block, times {scaled}; looking like another class: "
                  f"{100 * f['confused'][0]:.0f} % of the database, {100 * f['confused'][1]:.0f} % of the queries."]
    return parts


def gpu_tables(rows: list[Row]) -> list[str]:
    """Plans on a GPU, with one query and with many, beside exact search there."""
    parts = [NOTES["gpu"]]
    for row in rows:
        many = row.figures["batch"]
        lines = [
            [name, f"{one['recall']:.3f}", f"{one['mflops']:.1f}", f"{one['ms_1']:.2f}", f"{one['faster_1']:.1f}",
             f"{one[f'ms_{many}']:.4f}", f"{one[f'faster_{many}']:.1f}"]
            for name, one in row.figures["plans"].items()
        ]  # fmt: skip
        heads = ["plan", "recall@10", "MFLOPs", "ms", "faster", f"ms, {many} at once", "faster"]
        parts += [f"**{row.figures['count']:,} × {row.figures['dim']}**, on {row.hardware}.", grid(heads, lines)]
    return parts


MAKERS: dict[str, Callable[[list[Row]], list[str]]] = {
    "retrieval": frontier_tables,
    "retrieval-table": paper_tables,
    "generator": generator_tables,
    "retrieval-gpu": gpu_tables,
    "planner-promise": promise_tables,
    "retrieval-memory": memory_tables,
    "retrieval-threads": thread_tables,
}
"""The functions that turn rows of a kind into parts of a page."""
