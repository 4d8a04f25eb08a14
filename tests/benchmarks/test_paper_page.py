"""The page about the paper takes its GPU column from the rows of other benchmarks."""

from pathlib import Path
from statistics import fmean

import pytest
from pages import paper

from matryo.reproduce import TABLES
from matryo.results import read_rows

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def stored():
    names = ("tiny-imagenet", "cascade", "retrieval-tables", "mlm", "image-text", "paper")
    return {name: read_rows(RESULTS / f"{name}.jsonl") for name in names}


def test_gpu_figures_are_those_of_the_rows(stored):
    tables = paper.gpu_runs(stored).tables
    latest = {row.seed: row.figures["dims"]["64"] for row in stored["tiny-imagenet"]
              if row.kind == "evaluate" and row.subject == "tiny-imagenet-rn18-separate tiny val"}  # fmt: skip
    for table, column, key in (("accuracy", "MRL", "head_top1"), ("1-nn", "MRL", "top1"),
                               ("retrieval", "MRL mAP@10", "map@10")):  # fmt: skip
        shown = tables[table]["cells"][column]["64"]
        assert fmean(shown) == pytest.approx(100 * fmean(row[key] for row in latest.values()))
    entries = next(row.figures["entries"] for row in stored["retrieval-tables"]
                   if row.subject.startswith("tiny-imagenet-rn50") and row.figures["table"] == "adaptive")  # fmt: skip
    assert tables["re-rank"]["cells"]["mAP@10"]["8 → 16"] == [pytest.approx(100 * entries[0]["map@10"])]


def test_the_page_has_a_verdict_for_every_claim(stored):
    text = paper.text(stored)
    for table in TABLES.values():
        for claim in table.claims:
            line = next(line for line in text.splitlines() if f"| {claim.text} |" in line)
            assert sum(mark in line for mark in "✓✗–") >= 1
