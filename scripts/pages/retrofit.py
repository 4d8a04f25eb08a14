"""The page of maps that make existing vectors nested: recall by dims, exact search, few labels, and the promise."""

from __future__ import annotations

from typing import Any

from matryo.results import Row
from pages.markdown import grid, latest

DIMS_NOTE = """The share of the true ten nearest that are among the hundred nearest by the first m columns, in percent,
for queries that no map was fitted to or chosen with. *Taken* is the map that held-out rows chose at that dim; its name
is in the last column."""
EXACT_NOTE = """Exact search of ten neighbours, one query at a time on one thread, by CPU or wall time (*clock*):
medians of seven turns in which the two indexes alternate. *Bytes* are those that every query reads: all vectors, or
the first level of the sketch, which rotates its own columns in either index. *Same* is the share of hits that are
those of a scan without a rotation. *Panorama* is faiss's IndexFlatL2Panorama behind a PCA of its own. CPU times are
from a machine that was busy with other work: compare them within a row."""
LABELS_NOTE = """Frozen vectors of MiniLM on test queries, in percent: precision@10 by label, or nDCG@10. *Labels* is
the number of labelled rows, or of claims with their abstracts, that the maps were fitted and chosen with. Means over
three draws of these. *Worst* is the smallest difference, at any dim and in any draw, of the taken map from the better
one of truncation and PCA."""

MEMORY_NOTE = """A map fitted to generated batches that are never held together. The peak is that of the process, less
what it used before: the second moment in float64, its eigenvectors, and the sample that held-out queries search. None
of them grows with the number of rows."""

PROMISE_NOTE = """Each draw fits maps to other data, queries or labels, and measures those that were taken above PCA on
thousands of new queries. A draw keeps the promise if none of them, at any dim, is worse than identity or PCA there."""


def by_dims(rows: list[Row]) -> list[str]:
    """One table per set."""
    parts = ["## Recall by dims", DIMS_NOTE]
    for row in latest(rows, lambda row: row.subject):
        figures = row.figures
        names = [*figures["recall"]]
        lines = [
            [str(dim), *(f"{100 * figures['recall'][name][place]:.1f}" for name in names), figures["rungs"][place]]
            for place, dim in enumerate(figures["dims"])
        ]
        heads = ["dim", *("truncated" if name == "identity" else name for name in names), "map"]
        parts += [f"### {row.subject}", f"{figures['source']}. Fitted in {figures['seconds']:.0f} s.",
                  grid(heads, lines)]  # fmt: skip
    return parts


def exact(rows: list[Row]) -> list[str]:
    """Milliseconds and bytes before and after."""
    lines = []
    for row in latest(rows, lambda row: row.subject):
        searches = [part for part in row.figures["searches"] if "ms" in part]
        for guide in dict.fromkeys(part["guide"] for part in searches):
            one, two = (next(part for part in searches if part["guide"] == guide and part["rotation"] == name)
                        for name in ("without", "with"))  # fmt: skip
            other = next((f"{part['ms']:.3f}" for part in searches
                          if part["rotation"] == "panorama" and part["guide"] == guide), "–")  # fmt: skip
            lines.append([row.subject, guide, row.figures.get("clock", "wall"), f"{one['ms']:.3f}", f"{two['ms']:.3f}",
                          f"{one['ms'] / two['ms']:.2f}", other, f"{one['bytes']:,}", f"{two['bytes']:,}",
                          f"{two['same']:.4f}"])  # fmt: skip
    heads = ["set", "search", "clock", "ms without", "ms with", "ratio", "ms Panorama", "bytes without", "bytes with",
             "same"]  # fmt: skip
    return ["## Exact search", EXACT_NOTE, grid(heads, lines)]


def by_labels(rows: list[Row]) -> list[str]:
    """One table per dataset and number of labels."""
    parts = ["## Few labels", LABELS_NOTE]
    kept = latest(rows, lambda row: (row.subject, row.figures["labels"], row.seed))
    for subject in dict.fromkeys(row.subject for row in kept):
        lines = []
        for count in dict.fromkeys(row.figures["labels"] for row in kept if row.subject == subject):
            each = [row.figures for row in kept if row.subject == subject and row.figures["labels"] == count]
            for place, dim in enumerate(each[0]["dims"]):
                mean = {name: sum(figures["worth"][name][place] for figures in each) / len(each)
                        for name in ("identity", "pca", "taken")}  # fmt: skip
                worst = min(_gain(figures["worth"], place) for figures in each)
                taken = ", ".join(sorted({figures["rungs"][place] for figures in each}))
                lines.append([f"{count:,}" if count else "all", str(dim),
                              *(f"{100 * mean[name]:.1f}" for name in mean), f"{100 * worst:+.1f}", taken])  # fmt: skip
        parts += [f"### {subject}", grid(["labels", "dim", "truncated", "PCA", "taken", "worst", "map"], lines)]
    return parts


def promise(rows: list[Row]) -> list[str]:
    """How often it held."""
    lines = []
    for row in latest(rows, lambda row: row.subject):
        figures = row.figures
        lines.append([row.subject, str(figures["draws"]), str(figures["rungs"]), str(figures["kept"]),
                      f"{100 * abs(figures['worst']):.2f}"])  # fmt: skip
    heads = ["drawn", "draws", "maps above PCA that were taken", "draws without a worse one", "largest loss, points"]
    return ["## Never worse", PROMISE_NOTE, grid(heads, lines)]


def _gain(worth: dict[str, Any], place: int) -> float:
    return float(worth["taken"][place] - max(worth["identity"][place], worth["pca"][place]))


def memory(rows: list[Row]) -> list[str]:
    """Peak memory of a streaming fit."""
    lines = [[row.subject, f"{row.figures['bytes'] / 1e9:.1f}",
              f"{(row.figures['peak'] - row.figures['before']) / 1e9:.2f}"]
             for row in latest(rows, lambda row: row.subject)]  # fmt: skip
    return ["## Memory", MEMORY_NOTE, grid(["vectors", "GB of vectors", "GB of peak memory"], lines)]


def finding(rows: list[Row]) -> str:
    """Recall at 64 dims before and after, and how often the promise held."""
    shown = latest([row for row in rows if row.kind == "retrofit-dims"], lambda row: row.subject)
    parts = []
    for row in shown:
        figures = row.figures
        if 64 in figures["dims"]:
            place = figures["dims"].index(64)
            recall = figures["recall"]
            parts.append(f"{100 * recall['identity'][place]:.0f} → {100 * recall['taken'][place]:.0f} % "
                         f"({row.subject.split(',')[0]})")  # fmt: skip
    drawn = [row.figures for row in latest([row for row in rows if row.kind == "retrofit-draws"],
                                           lambda row: row.subject)]  # fmt: skip
    text = f"Shortlist recall at 64 dims, truncated → mapped: {', '.join(parts)}." if parts else ""
    if drawn:
        kept, count = (sum(figures[name] for figures in drawn) for name in ("kept", "draws"))
        text += f" In {kept} of {count} random draws, no map above PCA was worse."
    return text.strip()


MAKERS = {"retrofit-dims": by_dims, "retrofit-exact": exact, "retrofit-labels": by_labels, "retrofit-draws": promise,
          "retrofit-memory": memory}  # fmt: skip
