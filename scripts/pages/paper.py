"""The page about the paper: claim by claim, with what `matryo reproduce` found and with rows of GPU runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matryo.reproduce.page import OVERVIEW, Evidence, body
from matryo.reproduce.paper import TABLES
from matryo.reproduce.paper.derived import ALONE
from matryo.reproduce.run import KIND, judged
from matryo.reproduce.table import Cell, Cells
from matryo.reproduce.write import write_pictures
from matryo.results import Row, read_rows
from pages.markdown import GENERATED, latest, page, sources
from pages.models import METRICS, seeds_by_column, series_of

NAME = "paper"
PLAIN, BEST = "tiny-imagenet-rn18", "tiny-imagenet-rn18-best"
START = "paper-"   # of the names of its figures
INTRO = """What *Matryoshka Representation Learning* claims, and what is true of the models here. Every claim of its
tables is tested as a comparison: the difference between two columns, with its standard error. A claim that something
is better holds if the difference exceeds the margin in the claim by its standard error; a claim that something is as
good holds if it does not fall short by more. With several seeds the error is that over the seeds, with one that over
the queries. The same comparison is made of the paper's own numbers, which are rounded and have no error."""
HOW = """`matryo reproduce NAME` makes any of these tables again, and `matryo reproduce all` all of them;
[Reproduce the paper](../reproduce.md) describes it. ✓ holds, ✗ does not hold, – cannot be tested there. Differences
are in points; *least of n* is the worst of the n rows that the claim is about, and *best of n* the best one where one
row is enough."""
CAVEAT = """The emoji models are small and trained briefly on three drawings per class, so that all tables take less
than an hour on two CPU cores: they check the machinery and show directions. Where other columns have a verdict too,
believe those of the GPU runs. The first column trains with the paper's loss as it is; the best recipe adds what
[Training](../training.md#better-small-dims) describes."""
_COLUMNS = {"MRL": "MRL", "MRL-E": "MRL-E", "fixed": "FF", "SVD": "SVD", "random features": "Rand. FS",
            "random projection": "JL", "slimmable, truncated": "Slim. Net"}  # fmt: skip


def text(stored: dict[str, list[Row]]) -> str:
    """Return the whole page."""
    rows = [row for row in stored[NAME] if row.kind == KIND]
    evidence = evidences(stored)
    drawn = [OVERVIEW, *(name for name in TABLES if _drawn(name, evidence))]
    figures = {name: f"{START}{name}.svg" for name in drawn}
    parts = [GENERATED, "# The paper, claim by claim", INTRO, HOW, CAVEAT, body(evidence, figures)]
    return page([*parts, "## Where these rows come from", sources(NAME, rows),
                 "The rows of the GPU runs are those of [Tiny-ImageNet](tiny-imagenet.md), "
                 "[Adaptive classification](cascade.md), [Adaptive retrieval](retrieval-tables.md), "
                 "[Masked language modelling](mlm.md) and [Dual encoders](image-text.md)."])  # fmt: skip


def finding(rows: list[Row]) -> str:
    """Return how many claims hold on the emoji."""
    verdicts = [claim["verdict"] for row in rows if row.kind == KIND for claim in row.figures["claims"]]
    held, failed = verdicts.count("holds"), verdicts.count("does not hold")
    return (
        f"Of the {sum(len(table.claims) for table in TABLES.values())} claims of the paper's tables, {held + failed} "
        f"can be tested on the bundled emoji, where {held} hold and {failed} do not; larger runs stand beside them."
    )


def write(docs: Path) -> None:
    """Draw the figures into ``docs``/results."""
    files = {path.stem: read_rows(path) for path in sorted((docs / "results").glob("*.jsonl"))}
    if NAME in files:
        write_pictures(evidences(files), docs / "results", "", START)


def evidences(stored: dict[str, list[Row]]) -> list[Evidence]:
    """Return the columns of evidence."""
    small = Evidence.of("emoji", [row for row in stored[NAME] if row.kind == KIND])
    return [*(one for one in (gpu_runs(stored), best_runs(stored)) if one.tables), small]


def gpu_runs(stored: dict[str, list[Row]]) -> Evidence:
    """Return what the rows of the benchmarks say of the paper's tables."""
    found = {**_tiny(stored.get("tiny-imagenet", []), PLAIN), **_plans(stored.get("retrieval-tables", [])),
             **_masked(stored.get("mlm", [])), **_cosines(stored.get("image-text", []))}  # fmt: skip
    about = "ResNet18 on Tiny-ImageNet, 3 seeds; BERT on IMDb and pairs of Flickr8k where a table says so"
    return _evidence("GPU runs", about, found, _cascade(stored.get("cascade", []), PLAIN))


def best_runs(stored: dict[str, list[Row]]) -> Evidence:
    """Return the same with the nested models of the recipe BEST, beside the fixed ones of the plain recipe."""
    rows = stored.get("tiny-imagenet", [])
    about = f"the nested models of `{BEST}`, 3 seeds, beside the fixed models of the first column"
    if not any(series_of(row.figures["model"]) == BEST for row in rows if row.kind == "evaluate"):
        return Evidence("best recipe", about, {})
    return _evidence("best recipe", about, _tiny(rows, BEST), _cascade(rows, BEST))


def _evidence(title: str, about: str, found: dict[str, tuple[Cells, str]], cascade: Cells) -> Evidence:
    if cascade and "accuracy" in found:
        found["cascade"] = {**cascade, "_FF": found["accuracy"][0]["FF"]}, ""
    tables = {}
    for name, given in found.items():
        cells, note = given if isinstance(given, tuple) else (given, "")
        tables[name] = _figures(name, cells, note)
    return Evidence(title, about, tables)


def _drawn(table: str, evidence: list[Evidence]) -> bool:
    """Whether the table has a figure: a drawn column in the paper, and one in ours."""
    drawn = TABLES[table].drawn
    measured = [one.tables[table]["cells"] for one in evidence if table in one.tables]
    return all(any(column in cells for cells in some for column in drawn) for some in (measured, [TABLES[table].paper]))


def _figures(name: str, cells: Cells, note: str) -> dict[str, Any]:
    full = TABLES[name].with_derived(cells)
    shown = {column: {str(row): list(cell.values) for row, cell in by.items()} for column, by in full.items()
             if not column.startswith("_")}  # fmt: skip
    return {"table": name, "seeds": 3, "cells": shown, "claims": judged(TABLES[name], full), "note": note}


def _tiny(rows: list[Row], recipe: str) -> dict[str, tuple[Cells, str]]:
    """The tables of ResNet18: the nested models of a recipe, and the others of the plain one."""
    evaluated = [row for row in rows if row.kind == "evaluate"]
    nested = [row for row in evaluated if row.figures["model"] == f"{recipe}-separate"]
    others = [row for row in evaluated if series_of(row.figures["model"]) == PLAIN]
    others = [row for row in others if recipe == PLAIN or "-fixed" in row.figures["model"]]
    chosen = latest([*nested, *others], lambda row: (row.subject, row.seed))   # a repeated run counts once
    if not chosen:
        return {}
    head, nearest, precise = (_cells(seeds_by_column(chosen, metric)) for _, _, metric in METRICS)
    retrieval = {f"{column} mAP@10": by for column, by in precise.items() if column in ("FF", "MRL", "MRL-E")}
    heads = {column: by for column, by in head.items() if column not in ("Rand. FS", "JL", "SVD")}
    svd = seeds_by_column(chosen, METRICS[0][2]).get("SVD of the classifier", {})
    heads["SVD"] = {dim: Cell(tuple(values)) for dim, values in svd.items()}
    return {"accuracy": (heads, ""), "1-nn": (nearest, ""), "retrieval": (retrieval, "")} | (
        _stream(rows) if recipe == PLAIN else {}
    )


def _cells(columns: dict[str, dict[int, list[float]]]) -> Cells:
    return {name: {dim: Cell(tuple(values)) for dim, values in columns[column].items()}
            for column, name in _COLUMNS.items() if column in columns}  # fmt: skip


def _stream(rows: list[Row]) -> dict[str, tuple[Cells, str]]:
    cells: Cells = {}
    for row in (row for row in rows if row.kind == "stream"):
        column = "MRL" if row.figures["model"].endswith("separate") else "FF"
        for group, by_dim in zip(row.figures["groups"], row.figures["accuracy"], strict=True):
            pairs = list(zip(row.figures["dims"], by_dim, strict=True))
            kept = pairs if column == "MRL" else pairs[-1:]   # a fixed model has one dim of its own
            cells[f"{column} {group}"] = {dim: Cell((100 * share,)) for dim, share in kept if share is not None}
    return {"stream": (cells, "Tiny-ImageNet without 40 of its classes, one seed")} if cells else {}


def _plans(rows: list[Row]) -> dict[str, tuple[Cells, str]]:
    chosen = [row.figures for row in rows if row.subject.startswith("tiny-imagenet-rn50")]
    tables = {figures["table"]: figures["entries"] for figures in chosen}
    if "single" not in tables:
        return {}
    alone = _graded({entry["plan"]["stages"][0]["dim"]: entry for entry in tables["single"]})
    beside = {ALONE + metric: alone[metric] for metric in ("Top-1", "mAP@10")}
    named = {"re-rank": ("adaptive", _pair), "funnel": ("funnel", _cascaded), "shortlist": ("shortlist", _length)}
    note = "ResNet50 on Tiny-ImageNet, one seed"
    return {
        table: (_graded({label(entry["plan"]["stages"]): entry for entry in tables[kind]}) | beside, note)
        for table, (kind, label) in named.items() if kind in tables
    }  # fmt: skip


def _graded(entries: dict[Any, dict[str, Any]]) -> Cells:
    named = {"Top-1": ("top1", 100), "mAP@10": ("map@10", 100), "MFLOPs": ("mflops", 1)}
    return {column: {label: Cell((scale * entry[key],)) for label, entry in entries.items()}
            for column, (key, scale) in named.items()}  # fmt: skip


def _pair(stages: list[dict[str, Any]]) -> str:
    return f"{stages[0]['dim']} → {stages[-1]['dim']}"


def _cascaded(stages: list[dict[str, Any]]) -> str:
    return f"{stages[0]['dim']}, {stages[0]['keep']} → …"


def _length(stages: list[dict[str, Any]]) -> int:
    return int(stages[0]["keep"])


def _cascade(rows: list[Row], recipe: str) -> Cells:
    for row in rows:
        figures = row.figures
        ours = row.kind == "cascade" and row.subject.startswith(f"{recipe}-separate")
        if ours and figures["strategy"] == "greedy":
            points = zip(figures["stop"], figures["expected_dim"], figures["accuracy"], strict=True)
            found = {int(stop): (Cell((expected,)), Cell((100 * share,))) for stop, expected, share in points}
            return {"Expected dims": {stop: cell for stop, (cell, _) in found.items()},
                    "Accuracy": {stop: cell for stop, (_, cell) in found.items()}}  # fmt: skip
    return {}


def _masked(rows: list[Row]) -> dict[str, tuple[Cells, str]]:
    cells: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if row.kind == "mlm" and row.figures["changed"] == {"loop.steps": "4000"}:
            column = cells.setdefault("BERT-MRL" if row.figures["model"] == "nested" else "BERT-FF", {})
            for dim, share in row.figures["masked_top1"]["test"].items():
                column.setdefault(int(dim), []).append(100 * share)
    found: Cells = {name: {dim: Cell(tuple(v)) for dim, v in by.items()} for name, by in cells.items()}
    return {"masked-words": (found, "IMDb reviews, d = 512, two seeds")} if found else {}


def _cosines(rows: list[Row]) -> dict[str, tuple[Cells, str]]:
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row.kind == "similarity" and row.subject.startswith("flickr8k"):
            name = "ALIGN-MRL" if row.figures["model"].endswith("nested") else "ALIGN"
            for label, key in (("positive text to image", "positive_mean"), ("random text to image", "random_mean")):
                found.setdefault(name, {}).setdefault(label, []).append(row.figures[key][-1])
    cells: Cells = {name: {label: Cell(tuple(v)) for label, v in by.items()} for name, by in found.items()}
    return {"cosines": (cells, "images and captions of Flickr8k, three seeds")} if cells else {}
