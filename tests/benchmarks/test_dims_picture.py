"""The chart of README shows the stored rows, and the sentence below it holds."""

from pathlib import Path
from statistics import fmean, stdev

import pytest

pytest.importorskip("matplotlib")   # the pages import the report

from pages.dims_picture import SERIES, columns_of, picture

from matryo.results import read_rows

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS = read_rows(DOCS / "results" / "tiny-imagenet.jsonl")


def test_the_chart_is_fresh():
    assert (DOCS / "dims.svg").read_text(encoding="utf-8") == picture(ROWS), "python scripts/make_docs.py --figures"
    assert all(label in picture(ROWS) for _, label, *_ in SERIES)


def test_the_nested_model_is_as_good_as_the_best_fixed_one_at_every_dim_within_a_standard_error():
    columns = columns_of(ROWS)
    assert columns["MRL"].keys() == columns["fixed"].keys()
    ahead = 0
    for dim, nested in columns["MRL"].items():
        rival = max((columns[name][dim] for name in ("fixed", "PCA")), key=fmean)
        error = sum(stdev(values) ** 2 / len(values) for values in (nested, rival)) ** 0.5
        assert fmean(nested) >= fmean(rival) - error
        ahead += fmean(nested) > fmean(rival)
    assert ahead > len(columns["MRL"]) / 2
