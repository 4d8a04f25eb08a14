"""The folder is whole or absent, the same for the same rows, and takes the place of nothing but an older report."""

import shutil

import pytest
from report_rows import evaluate_row

import matryo.report.build
from matryo.errors import InputError, StorageError
from matryo.report import build_report

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
ROWS = [evaluate_row({8: 0.4, 16: 0.6}, trained=(8, 16)), evaluate_row({8: 0.5, 16: 0.7}, trained=(8, 16), seed=1)]
FILES = [
    "figures/answer.png",
    "figures/answer.svg",
    "figures/evaluate-1-emoji-flat-1-nn-accuracy.png",
    "figures/evaluate-1-emoji-flat-1-nn-accuracy.svg",
    "figures/evaluate-2-emoji-flat-map-10.png",
    "figures/evaluate-2-emoji-flat-map-10.svg",
    "index.html",
    "matryo.json",
    "rows.jsonl",
    "tables/evaluate.csv",
]


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "deep" / "report"
    assert build_report(ROWS, out, title="t") == out / "index.html"
    return out


@pytest.fixture
def report(made, tmp_path):
    """A copy of a report that may be spoilt."""
    return shutil.copytree(made, tmp_path / "report")


def test_the_folder_holds_what_it_says(made):
    assert sorted(files(made)) == FILES
    assert [path.name for path in made.parent.iterdir()] == ["report"]   # no leftovers
    assert oct(made.stat().st_mode) == oct(made.parent.stat().st_mode)


def test_the_same_rows_give_the_same_bytes(made, tmp_path):
    build_report(ROWS, tmp_path / "again", title="t")
    assert files(tmp_path / "again") == files(made)


def test_an_older_report_is_kept_unless_told_otherwise(report):
    before = files(report)
    with pytest.raises(InputError, match="already holds a report: choose another folder, or pass overwrite=True"):
        build_report(ROWS[:1], report, title="t")
    assert files(report) == before
    build_report(ROWS[:1], report, title="t", overwrite=True)
    assert files(report) != before
    assert sorted(files(report)) == FILES
    assert [path.name for path in report.parent.iterdir()] == ["report"]


@pytest.mark.parametrize("name", ["notes.txt", ".precious.tmp", "figures/mine.svg", "tables/mine.xlsx"])
def test_a_report_with_something_else_in_it_is_never_replaced(report, name):
    (report / name).write_text("mine")
    before = files(report)
    with pytest.raises(InputError, match=rf"must be empty, or hold a report .* \(got {name}\): choose"):
        build_report(ROWS, report, title="t", overwrite=True)
    assert files(report) == before


def test_what_is_not_ours_is_never_replaced(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/index.html").write_text("<html>mine</html>")
    (tmp_path / "file").write_text("mine")
    for name in ("site", "file"):
        with pytest.raises(InputError, match=r"must be empty.*\(got no matryo.json\)"):
            build_report(ROWS, tmp_path / name, title="t", overwrite=True)
    assert (tmp_path / "site/index.html").read_text() == "<html>mine</html>"


def test_an_empty_folder_is_free(tmp_path):
    (tmp_path / "out").mkdir()
    assert build_report(ROWS[:1], tmp_path / "out", title="t").is_file()


def test_a_build_that_is_stopped_leaves_what_was_there(report, monkeypatch):
    before = files(report)

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(matryo.report.build, "write_rows", stopped)
        build_report(ROWS[:1], report, title="t", overwrite=True)
    assert files(report) == before
    assert [path.name for path in report.parent.iterdir()] == ["report"]


def test_disk_errors_name_the_cure(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*Not a directory.*a part of this one is a file"):
        build_report(ROWS[:1], tmp_path / "file" / "report", title="t")


def test_a_report_needs_rows_and_a_place(tmp_path):
    with pytest.raises(InputError, match=r"at least one row \(got 0\): measure something first"):
        build_report([], tmp_path / "out", title="t")
    with pytest.raises(InputError, match="a folder of its own"):
        build_report(ROWS, "/", title="t")
