"""matryo classify: tables, answers in files, saved thresholds, and each error in one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import Cascade, EmbeddingSet, Nesting
from matryo.classify import CascadeCurve, CascadeResult
from matryo.cli import main
from matryo.embeddings import Head
from matryo.results import read_rows

DIMS, NAMES = (2, 4, 8), ("ant", "bee", "cow, brown", "dog")
MEANS = np.random.default_rng(5).normal(size=(4, 8)) * 3 / np.arange(1, 9)
HEAD = Head.separate({m: MEANS[:, :m] for m in DIMS}, {m: -0.5 * (MEANS[:, :m] ** 2).sum(axis=1) for m in DIMS})


def write(folder: Path, split: str, count: int, seed: int, **changes: Any) -> EmbeddingSet:
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=count)
    about: dict[str, Any] = {"labels": labels, "head": HEAD, "nesting": Nesting(DIMS), "classes": NAMES}
    about |= {"model": {"name": "m", "seed": 7}, "dataset": "toy", "split": split}
    about |= {"ids": [f"{split}-{n}" for n in range(count)]}
    vectors = MEANS[labels] + rng.normal(size=(count, 8))
    return EmbeddingSet.write(folder / split, vectors, **(about | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder's embeddings: training rows and others."""
    inside = tmp_path / "run" / "embeddings"
    write(inside, "train", 50, 0)
    write(inside, "val", 600, 1)
    return tmp_path / "run"


def refused(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    """The one line on stderr of a command that must fail."""
    assert main(["classify", *map(str, words)]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("matryo: error: ")
    return lines[0]


def test_half_is_held_out_and_the_other_half_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = folder.parent / "rows.jsonl"
    assert main(["classify", str(folder), "--json", str(rows)]) == 0
    printed = capsys.readouterr().out
    [row] = read_rows(rows)
    found = CascadeResult.from_figures(row.figures)
    val = EmbeddingSet.open(folder / "embeddings" / "val")
    held = np.zeros(600, bool)
    held[np.random.default_rng(0).permutation(600)[:300]] = True
    cascade = Cascade().fit(val.select(held))
    assert found == cascade.measure(val.select(~held))
    assert (row.kind, row.subject, row.seed) == ("classify", "run toy val", 7)
    assert str(folder) not in row.command
    lines = printed.splitlines()
    assert lines[0] == "run: toy / val, 300 rows; greedy thresholds chosen on 300 others"
    assert lines[2].split() == [
        "cascade", f"{100 * found.accuracy:.1f}", f"{found.expected_dim:.1f}", f"{found.cumulative_dim:.1f}",
    ]   # fmt: skip
    assert lines[3].split() == ["dim", "8", f"{100 * found.full_accuracy:.1f}", "8.0", "8.0"]
    shares = [float(line.split()[-1].rstrip("%")) for line in lines[6:9]]
    assert shares == pytest.approx([100 * share for share in found.shares], abs=0.06)
    assert [line.split()[0] for line in lines[6:9]] == ["2", "4", "8"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_answers_are_written(folder: Path, suffix: str) -> None:
    out = folder.parent / f"answers.{suffix}"
    write(folder / "embeddings", "test", 40, 2)
    assert main(["classify", str(folder), "--split", "test", "--fit-on", "val", "--out", str(out)]) == 0
    if suffix == "csv":
        lines = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    else:
        lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    val, test = (EmbeddingSet.open(folder / "embeddings" / name) for name in ("val", "test"))
    cascade = Cascade(classes=NAMES).fit(val)
    assert [line["id"] for line in lines] == test.ids.tolist()
    assert [line["class"] for line in lines] == cascade.predict(test).tolist()
    assert [int(line["dim"]) for line in lines] == cascade.exit_dim(test).tolist()
    assert [float(line["confidence"]) for line in lines] == pytest.approx(cascade.answers(test).confidence, abs=1e-6)


def test_saved_thresholds_serve_rows_without_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, out = folder.parent / "cascade.json", folder.parent / "answers.csv"
    write(folder / "embeddings", "wild", 30, 3, labels=None, classes=(), ids=None)
    assert main(["classify", str(folder), "--split", "val", "--max-loss", "0.05", "--save", str(saved)]) == 0
    assert "certified: at most 5 points lost against dim 8, with 95 % confidence" in capsys.readouterr().out
    assert main(["classify", str(folder), "--split", "wild", "--cascade", str(saved), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "30 rows; thresholds of cascade.json\n" in printed
    assert printed.splitlines()[-1] == f"30 answers in {out}"
    assert "accuracy" not in printed   # nobody knows it
    wild = EmbeddingSet.open(folder / "embeddings" / "wild")
    lines = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [int(line["class"]) for line in lines] == Cascade.load(saved).predict(wild).tolist()   # no names: numbers
    assert [int(line["id"]) for line in lines] == list(range(30))


def test_a_dim_or_a_loss_names_the_strategy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = folder.parent / "c.json"
    for words, strategy in [
        (["--expected-dim", "3"], "budget"),
        (["--max-loss", "0.05"], "risk"),
        (["--strategy", "budget", "--expected-dim", "3"], "budget"),
        ([], "greedy"),
    ]:
        assert main(["classify", str(folder), "--save", str(saved), *words]) == 0
        assert Cascade.load(saved).strategy == strategy
    capsys.readouterr()
    message = refused(capsys, folder, "--strategy", "greedy", "--expected-dim", "3")
    assert "--expected-dim requires the strategy budget" in message
    assert "drop one" in refused(capsys, folder, "--max-loss", "0.1", "--expected-dim", "3")


CERTIFIED = "certified: at most 5 points lost against dim 8, with 95 % confidence"
SILENT = "certified for the split it was fitted on, not for these rows"


def test_a_certificate_speaks_of_its_own_split_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = folder.parent / "c.json"
    write(folder / "embeddings", "test", 40, 2)
    for words, said in [
        (["val", "--max-loss", "0.05", "--save", saved], CERTIFIED),
        (["val", "--cascade", saved], CERTIFIED),
        (["test", "--cascade", saved], SILENT),
        (["test", "--max-loss", "0.05", "--fit-on", "val"], SILENT),
    ]:
        assert main(["classify", str(folder), "--split", *map(str, words)]) == 0
        printed = capsys.readouterr().out
        assert [text for text in (CERTIFIED, SILENT) if text in printed] == [said]


def test_rows_that_chose_saved_thresholds_are_answered_and_not_measured(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, again, out, rows = (folder.parent / name for name in ("c.json", "d.json", "a.csv", "r.jsonl"))
    words = ["classify", str(folder), "--split", "val", "--json", str(rows)]
    assert main([*words, "--holdout", "0.4", "--seed", "3", "--save", str(saved)]) == 0
    capsys.readouterr()
    assert main([*words, "--cascade", str(saved), "--out", str(out), "--save", str(again)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("600 rows; thresholds of c.json, chosen on 240 of these, which are not measured")
    assert lines[-1] == f"thresholds in {again}, 600 answers in {out}, 1 row in {rows}"
    first, second = read_rows(rows)
    assert first.figures == second.figures
    assert second.figures["count"] == 360
    assert len(out.read_text().splitlines()) == 1 + 600
    assert again.read_bytes() == saved.read_bytes()   # it still knows its rows

    write(folder / "embeddings", "test", 600, 1)   # the same rows by another name are another split
    assert main(["classify", str(folder), "--split", "test", "--cascade", str(saved), "--json", str(rows)]) == 0
    assert read_rows(rows)[-1].figures["count"] == 600
    write(folder / "embeddings", "val", 600, 1, model="another", overwrite=True)
    assert main([*words, "--cascade", str(saved)]) == 0
    assert read_rows(rows)[-1].figures["count"] == 600


def test_nothing_is_measured_where_every_row_chose_or_none_can_be_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = folder.parent / "c.json"
    write(folder / "embeddings", "test", 40, 2)
    assert main(["classify", str(folder), "--split", "test", "--fit-on", "val", "--save", str(saved)]) == 0
    capsys.readouterr()
    for text in ("chosen on 600 of these, which are not measured", "with other labels: none of these rows is measured"):
        assert main(["classify", str(folder), "--split", "val", "--cascade", str(saved)]) == 0
        printed = capsys.readouterr().out
        assert text in printed
        assert "accuracy" not in printed
        write(folder / "embeddings", "val", 500, 1, overwrite=True)   # encoded again, and fewer


def test_files_are_named_beside_json_on_stdout(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = folder.parent / "c.json"
    assert main(["classify", str(folder), "--json", "-", "--save", str(saved)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["figures"]["count"] == 300
    assert printed.err == f"thresholds in {saved}\n"


def test_options_that_would_be_idle_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = folder.parent / "c.json"
    assert main(["classify", str(folder), "--save", str(saved)]) == 0
    for words in (
        ["--holdout", "0.4"], ["--seed", "0"], ["--max-loss", "0.1"], ["--expected-dim", "3.0"],
        ["--strategy", "greedy"], ["--confidence", "0.9"], ["--curve"],
    ):  # fmt: skip
        message = refused(capsys, folder, "--cascade", saved, *words)
        assert f"--cascade has its own thresholds, so none are chosen (got {' '.join(words)}): drop" in message
    for words in (["--holdout", "0.4"], ["--curve"]):
        message = refused(capsys, folder, "--fit-on", "train", *words)
        assert f"--fit-on chooses thresholds on another split, and holds out no rows (got {' '.join(words)})" in message
    for words, strategy in (([], "greedy"), (["--expected-dim", "3"], "budget"), (["--strategy", "greedy"], "greedy")):
        message = refused(capsys, folder, "--confidence", "0.9", *words)
        assert "requires the strategy risk, the only one that certifies a loss" in message
        assert f"(got --confidence 0.9 with {strategy})" in message
    assert "must be between 0 and 1" in refused(capsys, folder, "--max-loss", "0.1", "--confidence", "0")


def test_a_file_for_another_model_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, inside = folder.parent / "c.json", folder / "embeddings"
    assert main(["classify", str(folder), "--save", str(saved)]) == 0
    rule = f"the thresholds of {saved} must fit this model, which has"
    for name, head, told in [
        ("separate", Head.separate({m: MEANS[:, :m] for m in (2, 8)}), "4 classes and the dims 2, 8"),
        ("narrow", Head.tied(MEANS[:, :4], dims=(2, 4)), "4 classes and the dims 2, 4"),
        ("few", Head.tied(MEANS[:3], dims=DIMS), "3 classes and the dims 2, 4, 8"),
    ]:
        write(inside, name, 20, 0, head=head, classes=(), labels=None)
        message = refused(capsys, folder, "--split", name, "--cascade", saved)
        assert f"{rule} {told} (got 4 classes, dims 2, 4, 8): use thresholds that were chosen for this" in message


def test_rows_of_unknown_class_are_answered_and_not_counted(folder: Path) -> None:
    labels = np.random.default_rng(1).integers(4, size=600)
    labels[:100] = -1
    write(folder / "embeddings", "part", 600, 1, labels=labels)
    out, rows = folder.parent / "a.jsonl", folder.parent / "r.jsonl"
    assert main(["classify", str(folder), "--split", "part", "--out", str(out), "--json", str(rows)]) == 0
    assert len(out.read_text().splitlines()) == 600 - 250   # 250 of the 500 labelled rows chose the thresholds
    assert read_rows(rows)[0].figures["count"] == 250


def test_the_curve(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = folder.parent / "rows.jsonl"
    assert main(["classify", str(folder), "--curve", "--json", str(rows), "--holdout", "0.4"]) == 0
    _, row = read_rows(rows)
    curve = CascadeCurve.from_figures(row.figures)
    assert (row.kind, curve.holdouts, curve.stop, curve.fitted_on) == ("cascade", 30, DIMS, 240)
    printed = capsys.readouterr().out
    assert "over 30 hold-outs, fitted on 240 rows, tested on 360" in printed
    assert printed.splitlines()[-1] == f"2 rows in {rows}"
    last = printed.splitlines()[-2].split()
    assert (last[0], float(last[1])) == ("8", pytest.approx(100 * curve.accuracy[-1], abs=0.06))
    assert main(["classify", str(folder), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "classify"   # and no table


def test_folders_and_splits_that_are_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = folder / "embeddings"
    assert "which is not a folder): check the path" in refused(capsys, folder.parent / "nothing")
    assert f"which is an embeddings folder itself): give {inside}" in refused(capsys, inside / "val")
    assert "embeddings of the split test (got train, val): choose from" in refused(capsys, folder, "--split", "test")
    (folder / "run.json").write_text("{}")
    assert f"matryo encode {folder} --split x" in refused(capsys, folder, "--fit-on", "x")
    write(inside, "more", 10, 4)
    assert "--split must say which split" in refused(capsys, folder)
    assert "must be a saved cascade" in refused(capsys, folder, "--split", "val", "--cascade", folder / "none.json")
    assert "another split than --split" in refused(capsys, folder, "--split", "val", "--fit-on", "val")
    assert "--out must end in .csv or .jsonl (got a.txt)" in refused(capsys, folder, "--out", "a.txt")


def test_rows_that_cannot_be_classified(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = folder / "embeddings"
    write(inside, "bare", 20, 0, head=None)
    assert "must hold the head that classifies them" in refused(capsys, folder, "--split", "bare")
    write(inside, "dumb", 20, 0, labels=None)
    assert "must have labels to choose thresholds on" in refused(capsys, folder, "--split", "dumb")
    assert "the embeddings must have labels" in refused(capsys, folder, "--split", "val", "--fit-on", "dumb")
    write(inside, "same", 20, 0, labels=np.zeros(20, int))
    same = refused(capsys, folder, "--split", "same")
    assert "at least two classes (got 10 rows, 1 class): give labelled rows of several classes" in same
    write(inside, "tiny", 1, 0)
    assert "--holdout must leave rows on both sides" in refused(capsys, folder, "--split", "tiny")
    few = refused(capsys, folder, "--split", "val", "--max-loss", "0.005")
    assert "at least 1,149 rows are needed to certify a loss of at most 0.5 % (got 300)" in few
    assert "expected_dim of at least 2" in refused(capsys, folder, "--split", "val", "--expected-dim", "1")
    other = Head.separate({m: MEANS[:, :m] for m in (2, 8)})
    write(inside, "other", 20, 0, head=other, nesting=Nesting([2, 8]))
    misfit = refused(capsys, folder, "--split", "other", "--fit-on", "val")
    assert "thresholds of val must fit this model, which has 4 classes and the dims 2, 8 (got 4 cl" in misfit
    path = inside / "val" / "vectors.npy"
    data = bytearray(path.read_bytes())
    data[-32:] = np.full(8, np.nan, np.float32).tobytes()
    path.write_bytes(data)
    assert "logits must be finite" in refused(capsys, folder, "--split", "val")
