"""`matryo report` refuses a bad --out and a missing package before anything is measured."""

import sys
from types import ModuleType

import pytest

import matryo.cli.evaluate
from matryo.cli import main


@pytest.fixture
def measured(monkeypatch):
    """Whether folders were measured; measuring itself is replaced."""
    calls = []
    monkeypatch.setattr(matryo.cli.evaluate, "measure_folders", lambda *args: calls.append(args) or [])
    return calls


def packages(monkeypatch, missing=""):
    for name in ("matplotlib", "jinja2"):
        monkeypatch.setitem(sys.modules, name, None if name == missing else ModuleType(name))


def test_an_occupied_folder_is_refused_first(tmp_path, capsys, monkeypatch, measured):
    packages(monkeypatch)
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["report", str(tmp_path / "no-such-run"), "--out", str(tmp_path)]) == 1
    assert "must be empty, or hold a report as it was written (got no matryo.json)" in capsys.readouterr().err
    assert measured == []
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_is_reported_first(tmp_path, capsys, monkeypatch, measured, package):
    packages(monkeypatch, missing=package)
    assert main(["report", str(tmp_path / "no-such-run"), "--out", str(tmp_path / "out")]) == 1
    assert f"this needs {package}: pip install 'matryo[report]'" in capsys.readouterr().err
    assert measured == []
