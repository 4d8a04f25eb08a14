"""The chart of README shows the stored rows, and the sentence below it holds."""

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")   # the pages import the report

from pages.best import comparisons, difference
from pages.dims_picture import SERIES, columns_of, picture

from matryo.results import read_rows

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS = read_rows(DOCS / "results" / "tiny-imagenet.jsonl")


def test_the_chart_is_fresh():
    assert (DOCS / "dims.svg").read_text(encoding="utf-8") == picture(ROWS), "python scripts/make_docs.py --figures"
    assert all(label in picture(ROWS) for _, label, *_ in SERIES)


def test_the_nested_model_is_ahead_of_every_fixed_one_at_every_dim_and_at_256_within_a_standard_error():
    assert columns_of(ROWS)["MRL"].keys() == columns_of(ROWS)["fixed"].keys()
    found = [one for one in comparisons(ROWS) if one[:2] == ("tiny-imagenet-rn18-best", "val")]
    assert [metric for _, _, metric, _, _ in found] == ["head top-1", "1-NN", "mAP@10"]
    close = set()
    for _, _, metric, nested, rivals in found:
        assert {"fixed", "fixed, with map"} <= rivals.keys()
        assert all(len(values) == 3 for values in nested.values())
        for dim, values in nested.items():
            gap, error, _ = difference(values, rivals, dim)
            assert gap > 0
            close |= {(metric, dim)} if gap <= error else set()
    assert close == {("head top-1", 256), ("1-NN", 256)}
