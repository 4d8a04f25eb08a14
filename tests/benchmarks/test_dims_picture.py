"""The chart of README shows the stored rows, and the sentence below it holds."""

from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("matplotlib")   # the pages import the report

from pages.dims_picture import SERIES, picture, plain_columns

from matryo.results import read_rows

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS = read_rows(DOCS / "results" / "tiny-imagenet.jsonl")


def test_the_chart_is_fresh():
    assert (DOCS / "dims.svg").read_text(encoding="utf-8") == picture(ROWS), "python scripts/make_docs.py --figures"
    assert all(label in picture(ROWS) for _, label, *_ in SERIES)


def test_the_nested_model_is_within_2_points_of_fixed_ones_at_every_dim():
    columns = plain_columns(ROWS)
    assert columns["MRL"].keys() == columns["fixed"].keys()
    for dim, fixed in columns["fixed"].items():
        assert fmean(columns["MRL"][dim]) > fmean(fixed) - 2
