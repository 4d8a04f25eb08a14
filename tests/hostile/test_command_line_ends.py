"""Commands in hard surroundings end with one line of error: streams, names, links, rows and JSON of any kind."""

import hashlib
import io
import json
import os
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

from matryo import EmbeddingSet, Index
from matryo.cli import main
from matryo.data import open_dataset, open_unlabelled
from matryo.errors import DataError, EmbeddingsError, InputError, MatryoError, StorageError, one_line
from matryo.files import check_may_write
from matryo.results import append_rows, check_may_append, read_rows, stamp
from matryo.retrieve.vectors.array_folder import open_arrays, write_arrays


@pytest.fixture
def refused(capfd, tmp_path, monkeypatch):
    """The one line of error of a command that runs in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words, code=1):
        capfd.readouterr()
        try:
            ended = main([str(word) for word in words])
        except SystemExit as stop:
            ended = stop.code
        lines = capfd.readouterr().err.splitlines()
        assert (ended, len(lines)) == (code, 1), lines
        assert "error: " in lines[0]
        return lines[0]

    return run


def vectors(folder):
    for name in ("train", "test"):
        EmbeddingSet.write(folder / name, np.random.default_rng(0).normal(size=(8, 4)), labels=[0, 1] * 4)
    return folder


# --- messages ---


def test_a_message_is_one_line_of_bounded_length():
    error = InputError("a\nrule", got="x\r\n  y\x1b[2J\ud800\u202e" + "z" * 10_000, cure="do\tthis")
    text = str(error)
    assert "\n" not in text and "\r" not in text and "\x1b" not in text
    assert text.startswith("a rule (got x y\\x1b[2J\\ud800\\u202ez")
    assert text.endswith("z): do this")
    assert len(text) < 700
    text.encode()
    assert str(type(error)(text)) == text, "as unpickling builds it"
    assert str(MatryoError("no/such  folder/naïve 東京 👩‍👧")) == "no/such  folder/naïve 東京 👩‍👧"
    assert len(one_line("x" * 10**6)) == 4000


@pytest.mark.parametrize(
    "words", [["search"], ["search", "x", "-k", "two\nlines"], ["fly\n"], ["info", "a\0b"], ["encode", "x", "\ud800"]]
)
def test_bad_usage_takes_one_line(words, refused):
    assert refused(*words, code=2).startswith("matryo")


# --- names, links and streams ---


def test_names_that_the_system_refuses(refused, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    folder = vectors(tmp_path / "emb")
    for name in ("x" * 300, "a/" * 3000, "loop/x", "n\udcff", "a\nb"):
        refused("info", name)
        refused("evaluate", name)
        refused("index", name, "gone.npy")
        refused("train", "demo", "--data.source", "folder", "--data", name)
        if not name.startswith(("n", "a\n")):   # these can be created
            refused("evaluate", folder, "--quiet", "--json", f"{name}/x")


def test_data_behind_links_in_a_circle(tmp_path):
    (tmp_path / "data" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "data" / "train" / "cat" / "up").symlink_to("../..")
    for opened in (lambda: open_dataset("folder", tmp_path / "data"), lambda: open_unlabelled(tmp_path / "data")):
        with pytest.raises(DataError, match="must not contain itself"):
            opened()
    (tmp_path / "self").symlink_to("self")
    for source in ("folder", "texts", "pairs", "packed", "shards", "captions", "corpus", "beir"):
        for name in ("self", "x" * 300):
            with pytest.raises((DataError, StorageError)):
                open_dataset(source, tmp_path / name)


def test_a_working_directory_that_was_deleted(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    for call in (EmbeddingSet.open, Index.open, Index.exists, lambda path: Index.create(path, [2]),
                 lambda path: EmbeddingSet.write(path, np.eye(2))):  # fmt: skip
        for path in ("x", ".", ""):
            with pytest.raises(MatryoError):
                call(path)


def shell(line, folder):
    command = line.replace("matryo", f"{sys.executable} -m matryo")
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)


def test_closed_full_and_broken_streams(tmp_path):
    """All in one shell, as each process takes half a second."""
    np.save(tmp_path / "v.npy", np.eye(4, dtype=np.float32))
    done = shell(
        "matryo index i v.npy >&-; echo $? >&2; matryo index i - <&-; echo $? >&2; "
        "matryo info i >/dev/full; echo $? >&2; matryo info i --help | true; echo ${PIPESTATUS[0]} >&2",
        tmp_path,
    )
    lines = done.stderr.splitlines()
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert lines[0] == "0"
    assert lines[1].startswith("matryo: error: standard input must be open")
    assert lines[3].startswith("matryo: error: cannot use the output (got No space left on device)")
    assert [lines[2], lines[4], lines[5]] == ["1", "1", "0"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_device_is_never_replaced(tmp_path):
    before = os.lstat("/dev/null")
    for check in (check_may_append, check_may_write):
        with pytest.raises(InputError, match="/dev/null is a device or a pipe: choose the name of a file"):
            check(tmp_path.joinpath("/dev/null"))
    with pytest.raises(InputError, match="a device"):
        check_may_write(tmp_path.joinpath("/dev/null"), force=True)
    assert os.path.samestat(os.lstat("/dev/null"), before)


def test_texts_that_are_no_text(monkeypatch):
    from matryo.cli.parts.items import open_items

    for stream, rule in ((None, "one text per line"), (io.TextIOWrapper(io.BytesIO(b"\xd0(x\n"), "utf-8"), "UTF-8")):
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(InputError, match=f"standard input must .*{rule}"):
            open_items(["-"])


# --- values ---


@pytest.mark.parametrize("options", [["--holdout", "nan"], ["--holdout", "inf"], ["--seed", "-1"]])
def test_numbers_that_no_split_allows(options, refused, tmp_path):
    assert options[0] in refused("classify", vectors(tmp_path / "emb"), "--split", "test", *options)


def test_json_of_any_depth(refused, tmp_path):
    np.save(tmp_path / "v.npy", np.eye(4, dtype=np.float32))
    assert main(["index", "i", "v.npy"]) == 0
    assert "nested too deeply" in refused("search", "i", "v.npy", "--where", '{"a":' * 20_000)
    deep = tmp_path / "deep.jsonl"
    deep.write_text("[" * 20_000)
    for words in (["index", "i", deep], ["search", "i", deep], ["search", "i", "v.npy", "--plan", deep],
                  ["report", "--rows", deep], ["info", deep], ["classify", vectors(tmp_path / "emb"), "--split", "test",
                                                               "--cascade", deep]):  # fmt: skip
        refused(*words)


def test_columns_of_one_name(refused, tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    column = arrow.array([[1.0, 2.0]])
    parquet.write_table(arrow.Table.from_arrays([column, column], names=["vector", "vector"]), tmp_path / "two.parquet")
    assert "must have different names (got vector twice)" in refused("index", "i", "two.parquet")
    words = arrow.array(["a"])
    parquet.write_table(arrow.Table.from_arrays([words, words], names=["text", "text"]), tmp_path / "train.parquet")
    with pytest.raises(DataError, match="different names"):
        open_dataset("texts", tmp_path)


@pytest.mark.parametrize("damage", [
    {"figures": []}, {"kind": 7}, {"seed": "1"}, {"subject": None}, {"versions": "x"}, {"role": 3},
    {"figures": {"dims": {"8": {"top1": "high"}}}}, {"figures": {"dims": {"x": {}}}}, {"figures": {"dims": [8]}},
])  # fmt: skip
def test_a_damaged_row_is_named(damage, refused, tmp_path):
    pytest.importorskip("matplotlib")   # checked before the rows are read
    row = asdict(stamp("evaluate", "mine", {"model": "m", "dims": {}}, seed=0)) | damage
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert "row" in refused("report", "--rows", "rows.jsonl", "--out", "page")
    assert not (tmp_path / "page").exists()


def test_a_row_that_holds_a_line_separator_is_read_again(tmp_path):
    row = stamp("step-cost", "a\u2028b\x85c", {"model": "\x0b"}, seed=0)
    append_rows(tmp_path / "rows.jsonl", [row, row])
    assert read_rows(tmp_path / "rows.jsonl") == [row, row]


# --- forged headers ---


@pytest.mark.parametrize("name", ["../secret.npy", "/etc/passwd", "..", "a/b.npy"])
def test_a_header_of_arrays_names_files_of_its_own_folder(name, tmp_path):
    np.save(tmp_path / "secret.npy", np.ones(3))
    write_arrays(tmp_path / "a", "h.json", 1, {"dim": 3}, {"secret": np.ones(3)})
    header = json.loads((tmp_path / "a" / "h.json").read_text())
    del header["sha256"]
    for files in ({name: header["files"]["secret.npy"]}, [name], {"secret.npy": {}}):
        forged = {**header, "files": files}
        digest = hashlib.sha256(json.dumps(forged, sort_keys=True).encode()).hexdigest()
        (tmp_path / "a" / "h.json").write_text(json.dumps({**forged, "sha256": digest}))
        with pytest.raises(EmbeddingsError, match="is damaged"):
            open_arrays(tmp_path / "a", "h.json", 1)
