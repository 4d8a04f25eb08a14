"""Parts of a page on an index beyond speed: promised recall, little memory, and several threads."""

from __future__ import annotations

from typing import Any

from matryo.results import Row
from pages.markdown import grid
from pages.retrieval_rows import setting, size, speed

NOTES = {
    "promise": """The planner sees some queries and promises a recall with 95 % confidence; the remaining queries test
the promise. *Cheap* is the cost that was minimised: bytes read from bare blocks, or milliseconds of an index as
measured in each draw. *Exact* is the cost of exact search.""",
    "memory": """An index whose files exceed the memory they may use. The files are memory-mapped; after every ten
queries, random pages are released until no more than the limit is resident. (An operating system under pressure would
release the least recently used pages, which is kinder.) *In memory* is the largest resident part of the files,
*beside* the memory of the process besides them, *read* the bytes read from disk per query, and *waits* the number of
reads per query. One query at a time on one thread, after as many queries that only warm the cache.""",
    "advice": """`random` advises the system that rows are picked one by one from the vectors and from the codes of
later stages; `normal` allows read-ahead; `default` is what an index does by itself.""",
    "threads": """Many queries at once through `index.search(…, threads=…)`. *Faster* is the median over rounds in
which the thread counts took turns. The results are identical to the last bit.""",
}


def memory_tables(rows: list[Row]) -> list[str]:
    """Cost per query when the index exceeds the memory it may use."""
    parts = ["## More vectors than memory", NOTES["memory"]]
    newest = {(row.subject, row.hardware, row.figures["name"], *advices(row)): row for row in rows}
    told = any(advices(row) != ["default"] for row in newest.values())
    parts += [NOTES["advice"]] if told else []
    for (subject, hardware, *_), row in newest.items():
        f = row.figures
        lines = [
            ["none" if one["limit"] is None else f"{one['limit']:g} GiB", *([one["advice"]] if told else []),
             size(one["present"]), size(one["held"]), f"{one['recall']:.3f}", f"{one['p50']:.2f}", f"{one['p95']:.2f}",
             size(one["read"]), f"{one['faults']:.0f}"]
            for one in f["limits"]
        ]  # fmt: skip
        parts += [f"**{setting({'build': {}, 'ask': {'plan': f['plan']}})}**"]
        parts += [f"{subject}; {size(f['index_bytes'])} on disk, {f['asked']:,} queries, on {hardware}."]
        heads = ["limit", *(["advice"] if told else []), "in memory", "beside", "recall@10", "ms, median", "ms, 95 %"]
        parts += [grid([*heads, "read", "waits"], lines, left=1 + told)]
    return parts


def advices(row: Row) -> list[str]:
    """The advice given to the operating system."""
    return sorted({one["advice"] for one in row.figures["limits"]})


def thread_tables(rows: list[Row]) -> list[str]:
    """Speed by number of threads."""
    parts = ["## Threads", NOTES["threads"]]
    for row in {(row.subject, row.hardware): row for row in rows}.values():
        lines = [
            [one["name"], f"{one['queries']:,}", f"{many['threads']}", speed(many["qps"]), f"{many['faster']:.2f}"]
            for one in row.figures["searches"] for many in one["threads"]
        ]  # fmt: skip
        heads = ["search", "queries", "threads", "queries/s", "faster"]
        parts += [f"{row.subject}, on {row.hardware}.", grid(heads, lines)]
    return parts


def promise_tables(rows: list[Row]) -> list[str]:
    """How often a promised recall held on the queries that the planner did not see."""
    heads = ["searched", "promised recall", "queries seen", "draws", "kept", "only exact search", "recall, mean",
             "least", "cheap", "exact"]  # fmt: skip
    lines = [
        [f"{one.get('searcher', 'blocks')}, {one['rows']:,}", f"{one['target']:g}", f"{one['seen']:,}",
         f"{one['draws']}", f"{one['kept']}", f"{one['exact']}", f"{one['recall']:.4f}", f"{one['least']:.4f}",
         *promised_costs(one)]
        for one in (row.figures for row in rows)
    ]  # fmt: skip
    return [NOTES["promise"], grid(heads, lines)]


def promised_costs(figures: dict[str, Any]) -> list[str]:
    """Of a query by the chosen plans, and by exact search."""
    if figures.get("milliseconds") is None:
        return [size(figures["bytes"]), size(figures["exact_bytes"])]
    return [f"{figures['milliseconds']:.3f} ms", f"{figures['exact_milliseconds']:.3f} ms"]
