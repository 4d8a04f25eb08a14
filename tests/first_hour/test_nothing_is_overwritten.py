"""Commands do not overwrite files that matryo did not write, unless --force says so."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from matryo import EmbeddingSet, Nesting
from matryo.cli import main
from matryo.embeddings import Head
from matryo.errors import InputError
from matryo.files import check_may_write
from matryo.results import append_rows, check_may_append, holds_rows, stamp

MINE = "my notes\n"


def test_the_rule(tmp_path: Path) -> None:
    path = tmp_path / "file"
    check_may_write(path)
    path.touch()
    check_may_write(path)   # an empty file, as mktemp makes it, has nothing to lose
    path.write_text(MINE)
    with pytest.raises(InputError, match=rf"^{path} exists: choose another name, or --force to overwrite$"):
        check_may_write(path)
    with pytest.raises(InputError, match="exists"):
        check_may_write(path, is_ours=lambda path: path.read_text() != MINE)
    check_may_write(path, is_ours=lambda path: path.read_text() == MINE)
    check_may_write(path, force=True)
    with pytest.raises(InputError, match=f"{tmp_path} is a folder: choose the name of a file"):
        check_may_write(tmp_path, force=True)


def test_rows_are_appended_to_rows_only(tmp_path: Path) -> None:
    rows, mine = tmp_path / "rows.jsonl", tmp_path / "mine.jsonl"
    mine.write_text(MINE)
    check_may_append(rows)
    append_rows(rows, [stamp("kind", "subject", {}, seed=None)])
    assert holds_rows(rows)
    append_rows(rows, [stamp("kind", "subject", {}, seed=None)])
    assert len(rows.read_text().splitlines()) == 2
    with pytest.raises(InputError, match=r"mine\.jsonl holds something other than result rows: choose another name"):
        append_rows(mine, [stamp("kind", "subject", {}, seed=None)])
    with pytest.raises(InputError, match="is a folder"):
        check_may_append(tmp_path)
    assert mine.read_text() == MINE


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoded")
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    vectors = 3 * np.eye(3, 4)[labels] + rng.normal(size=(60, 4))
    head = Head.tied(np.eye(3, 4), dims=(2, 4))
    EmbeddingSet.write(folder / "val", vectors, labels=labels, head=head, nesting=Nesting((2, 4)), classes=list("abc"))
    return folder


@pytest.mark.parametrize(("option", "name"), [("--out", "a.csv"), ("--out", "a.jsonl"), ("--save", "c.json")])
def test_classify(encoded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, name: str) -> None:
    path = tmp_path / name
    words = ["classify", str(encoded), option, str(path)]
    path.write_text(MINE)
    assert main(words) == 1
    assert f"{path} exists: choose another name, or --force to overwrite" in capsys.readouterr().err
    assert path.read_text() == MINE
    assert main([*words, "--force"]) == 0
    assert path.read_text() != MINE
    path.write_text(path.read_text() + "\n")
    assert main(words) == 0   # an earlier result of the same command is replaced
    assert not path.read_text().endswith("\n\n")


def test_classify_appends_to_rows_only(encoded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text(MINE)
    assert main(["classify", str(encoded), "--json", str(path), "--out", str(tmp_path / "a.csv")]) == 1
    assert "holds something other than result rows" in capsys.readouterr().err
    assert not (tmp_path / "a.csv").exists()   # refused before the work


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "demo.jsonl").write_text(MINE)
    assert main(["demo", "--out", str(tmp_path), "--epochs", "0"]) == 1
    assert "demo.jsonl exists: choose another name, or --force" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["demo.jsonl"]


def test_every_verb_that_writes_has_force() -> None:
    from matryo.cli import build_parser

    verbs = build_parser()._subparsers._group_actions[0].choices   # type: ignore[union-attr]
    for verb in ("demo", "encode", "export", "classify"):
        assert "--force" in verbs[verb]._option_string_actions, verb
    words = {"encode": ["run"], "export": ["run", "--to", "onnx"]}
    for verb, rest in words.items():
        parsed: Namespace = verbs[verb].parse_args([*rest, "--overwrite"])
        assert parsed.force, "--overwrite is the older name of --force"
