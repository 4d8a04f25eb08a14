"""The page of compressed vectors: recall by bytes per vector for every method, and the seconds of fitting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matryo.report.draw import drawing, export, legend, log_axis, percent_axis, sheet
from matryo.report.style import categories
from matryo.results import Row, read_rows
from pages.markdown import grid, latest
from pages.retrieval_figures import plot

OURS, PRODUCT, BY_NDCG = "matryo", "matryo product", "matryo by nDCG"
OWN = (OURS, PRODUCT, BY_NDCG)
FEWEST = 3   # of other methods: a best of fewer says little
ORDER = (OURS, "faiss OPQ", "faiss PQ", "faiss RaBitQ", "faiss SQ4", "faiss SQ8", "PCA + int8", "truncation bit",
         "truncation int8", "truncation float32")  # fmt: skip
NOTE = """Each method is fitted to the rows of a set without its queries, and encodes them in at most so many bytes.
Other queries, in float32, are compared with the codes. *Recall@10* is the share of the ten nearest by full vectors that
are among the ten nearest by the codes, in percent; *re-ranked* is their share among the best hundred, which a re-rank
from full vectors finds. *matryo* is what `Compression.choose` takes."""
BEST_NOTE = """*Best other* is the best of all other methods with at most so many bytes. *ahead*, *behind*: by more than
two standard errors of the difference, of independent means; otherwise *equal*."""
NDCG_NOTE = """With `relevance`, `Compression.choose` takes the code with the best nDCG@10 of other queries
whose relevant rows are known: the training claims of SciFact, else rows of the set, for which other rows of the
same class or photo are relevant."""
INDEX_NOTE = """`Index.create(compression=…)`, searched with sums of two queries of the set. The recall of the choice
is that among its sample of 20,000 vectors at most; among all vectors, neighbours lie closer together, and the recall
measured afterwards is lower. *In 100*: the share of the ten nearest among the best hundred. A filter leaves 1 % of the
vectors. Searches take one query at a time; milliseconds of CPU time, the median. The seconds are those of a machine
that did other work, too."""
TIMES_NOTE = """Seconds on one machine that did nothing else. For matryo, fitting includes all candidates and their
trials."""


def figures_of(rows: list[Row]) -> dict[str, dict[str, dict[int, dict[str, Any]]]]:
    """The figures of each set, method and budget; later rows replace earlier ones."""
    found: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for row in rows:
        own = found.setdefault(row.figures["set"], {}).setdefault(row.figures["method"], {})
        own |= {int(budget): figures for budget, figures in row.figures["budgets"].items()}
    return found


def compared(rows: list[Row]) -> dict[str, dict[str, dict[int, dict[str, Any]]]]:
    """The sets that ours and most of the others are measured on."""
    found = figures_of(rows)
    return {name: own for name, own in found.items() if OURS in own and len(set(own) - {*OWN}) >= FEWEST}


def by_bytes(rows: list[Row]) -> list[str]:
    """A picture and two tables per set."""
    parts = ["## Recall by bytes per vector", NOTE, BEST_NOTE]
    for name, methods in compared(rows).items():
        about = next(row for row in rows if row.figures["set"] == name)
        budgets = sorted({budget for own in methods.values() for budget in own})
        trained = about.figures["trained"]
        nested = f", nested at {', '.join(map(str, trained))} dims" if trained else ", not nested"
        full = f"nDCG@10 of full vectors is {100 * about.figures['full']:.1f}"
        source = about.figures["source"].removesuffix(", nested")
        facts = f"{source}{nested}. {about.figures['queries']:,} queries; {full}."
        facts += missing(methods)
        parts += [f"### {about.subject}", facts, f"![Recall by bytes per vector](compress-{name}.svg)"]
        shown = [each for each in ORDER if each in methods]
        parts += [grid(["bytes", *shown], [[str(budget), *(_cell(methods[each].get(budget)) for each in shown)]
                                           for budget in budgets])]  # fmt: skip
        lines = []
        for budget in comparable(methods):
            own, (other, best) = methods[OURS][budget], best_other(methods, budget)
            lines.append([str(budget), own["note"], _percent(own["recall"]), other, _percent(best["recall"]),
                          verdict(own, best, "recall", "error"), _percent(own["reranked"])])  # fmt: skip
        heads = ["bytes", "taken", "recall@10", "best other", "its recall@10", "matryo is", "re-ranked"]
        parts += [grid(heads, lines, left=2), *by_ndcg(methods)]
    return parts


def by_ndcg(methods: dict[str, dict[int, dict[str, Any]]]) -> list[str]:
    """A table of what is taken by nDCG."""
    lines = []
    for budget in comparable(methods):
        own, plain = methods.get(BY_NDCG, {}).get(budget), methods[OURS][budget]
        other, best = best_other(methods, budget, "ndcg")
        chosen = ["–", "–", "–"]
        if own is not None:
            chosen = [own["note"], _percent(own["ndcg"]), verdict(own, best, "ndcg", "ndcg_error")]
        lines.append([str(budget), *chosen, other, _percent(best["ndcg"]), _percent(plain["ndcg"]),
                      verdict(plain, best, "ndcg", "ndcg_error")])  # fmt: skip
    heads = ["bytes", "taken by nDCG", "nDCG@10", "matryo is", "best other", "its nDCG@10", "taken by recall: nDCG@10",
             "matryo is"]  # fmt: skip
    return [NDCG_NOTE, grid(heads, lines, left=2)] if lines else []


def missing(methods: dict[str, Any]) -> str:
    """The sentence that names the methods without rows."""
    absent = [name for name in ORDER if name not in methods]
    return f" Not measured: {', '.join(absent)}." if absent else ""


def comparable(methods: dict[str, Any]) -> list[int]:
    """The budgets at which ours and another method are measured."""
    least = min(figures["bytes"] for name, own in methods.items() if name not in OWN
                for figures in own.values())  # fmt: skip
    return [budget for budget in sorted(methods[OURS]) if budget >= least]


def best_other(methods: dict[str, Any], budget: int, by: str = "recall") -> tuple[str, dict[str, Any]]:
    """The best method that is not ours, with this budget or a smaller one."""
    found = [(name, figures) for name, own in methods.items() if name not in OWN
             for figures in own.values() if figures["bytes"] <= budget]  # fmt: skip
    return max(found, key=lambda pair: float(pair[1][by]))


def verdict(own: dict[str, Any], other: dict[str, Any], by: str, error: str) -> str:
    """Whether the difference of two means is more than noise."""
    apart = own[by] - other[by]
    noise = 2 * float((own[error] ** 2 + other[error] ** 2) ** 0.5)
    return "equal" if abs(apart) <= noise else "ahead" if apart > 0 else "behind"


def times(rows: list[Row]) -> list[str]:
    """Seconds of each method."""
    lines = [[row.subject, str(row.figures["bytes"]), row.figures["method"], f"{row.figures['fit']:.1f}",
              f"{row.figures['encode']:.2f}"]
             for row in latest(rows, lambda row: (row.subject, row.figures["method"]))]  # fmt: skip
    heads = ["set", "bytes", "method", "fit, s", "encode, s"]
    return ["## Seconds", TIMES_NOTE, grid(heads, lines, left=3)]


def indexes(rows: list[Row]) -> list[str]:
    """Indexes of codes: time, size, recall and milliseconds."""
    lines = []
    for row in latest(rows, lambda row: (row.subject, row.figures["bytes"])):
        facts = row.figures
        lines.append([row.subject, facts["code"], str(facts["bytes"]), f"{facts['disk'] / 1e6:.0f}",
                      f"{facts['seconds']['choose']:.0f}", f"{facts['seconds']['add']:.0f}",
                      f"{_percent(facts['expected'])} ({_percent(facts['promised'])})", _percent(facts["recall"]),
                      _percent(facts["among"]), f"{facts['milliseconds']['plain']:.1f}",
                      f"{facts['milliseconds']['filtered']:.1f}"])  # fmt: skip
    heads = ["vectors", "code", "bytes", "MB on disk", "choose, s", "add, s", "recall@10 of the choice (bound)",
             "recall@10", "in 100", "ms", "ms, filtered"]  # fmt: skip
    return ["## An index of codes only", INDEX_NOTE, grid(heads, lines, left=2)]


def finding(rows: list[Row]) -> str:
    """How often ours is ahead, equal and behind, and what 64 bytes keep."""
    measured = compared([row for row in rows if row.kind == "compress-bytes"])
    counts = {"ahead": 0, "equal": 0, "behind": 0}
    kept = []
    for name, methods in measured.items():
        for budget in comparable(methods):
            own = methods[OURS][budget]
            counts[verdict(own, best_other(methods, budget)[1], "recall", "error")] += 1
        at = methods.get(OURS, {}).get(64)
        kept += [f"{100 * at['recall']:.0f} and {100 * at['reranked']:.1f} % ({name})"] if at else []
    lacking = "".join(f" {name}:{missing(own)}" for name, own in measured.items() if missing(own))
    return (f"In {sum(counts.values())} pairs of a set and a number of bytes from 8 to 1024, `Compression.choose` is "
            f"ahead of the best other method {counts['ahead']} times, equal {counts['equal']} times and behind "
            f"{counts['behind']} times. Recall@10 with 64 bytes per vector, without and with a re-rank: "
            f"{', '.join(kept)}.{lacking}")  # fmt: skip


def write(docs: Path) -> None:
    """Draw the figures beside their rows."""
    rows = [row for row in read_rows(docs / "results" / "compress.jsonl") if row.kind == "compress-bytes"]
    for name, methods in compared(rows).items():
        (docs / "results" / f"compress-{name}.svg").write_text(picture(name, rows, methods), encoding="utf-8")


def picture(name: str, rows: list[Row], methods: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Recall@10 over bytes per vector, one line per method."""
    subject = next(row.subject for row in rows if row.figures["set"] == name)
    with drawing():
        figure, (axes,) = sheet([3.6])
        shown = [each for each in ORDER if each in methods]
        for method, look in zip(shown, categories(len(shown)), strict=True):
            points = sorted({(figures["bytes"], figures["recall"]) for figures in methods[method].values()})
            plot(axes, points, method, look)
        log_axis(axes, (8, 16, 32, 64, 128, 256, 512, 1024), "bytes per vector")
        percent_axis(axes, f"recall@10 in percent, {subject}")
        legend(figure, [axes])
        return export(figure).svg


def _cell(figures: dict[str, Any] | None) -> str:
    return "–" if figures is None else _percent(figures["recall"])


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


MAKERS = {"compress-bytes": by_bytes, "compress-times": times, "compress-index": indexes}
