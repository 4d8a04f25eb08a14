"""Where matplotlib is not installed, everything can be imported and the cure is named."""

import sys

import pytest
from report_rows import evaluate_row

from matryo.errors import MissingExtra
from matryo.report import build_report


def test_without_matplotlib_the_cure_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"needs matplotlib: pip install 'matryo\[report\]'"):
        build_report([evaluate_row({8: 0.5})], tmp_path / "out", title="t")
    assert list(tmp_path.iterdir()) == []
