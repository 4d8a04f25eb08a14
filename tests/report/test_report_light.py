"""Without matplotlib or jinja2 everything can be imported, and the error names the cure."""

import sys
from types import ModuleType

import pytest
from report_rows import evaluate_row

from matryo.errors import MissingExtra
from matryo.report import build_report


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_is_named_with_its_cure(tmp_path, monkeypatch, package):
    for name in ("matplotlib", "jinja2"):
        monkeypatch.setitem(sys.modules, name, None if name == package else ModuleType(name))
    with pytest.raises(MissingExtra, match=rf"needs {package}: pip install 'matryo\[report\]'"):
        build_report([evaluate_row({8: 0.5})], tmp_path / "out", title="t")
    assert list(tmp_path.iterdir()) == []
