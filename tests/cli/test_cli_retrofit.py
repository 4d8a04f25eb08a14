"""`matryo retrofit` and `matryo index --rotate`, as a user runs them."""

import json

import numpy as np
import pytest

from matryo import Index, Retrofit
from matryo.cli import main


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("vectors")
    turn = np.linalg.qr(rng.normal(size=(32, 32)))[0]
    np.save(folder / "v.npy", (rng.normal(size=(900, 32)) * np.geomspace(1, 0.05, 32) @ turn).astype(np.float32))
    return folder / "v.npy"


def run(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_fit_save_transform_and_rotate(source, tmp_path, capsys):
    code, out, _ = run(capsys, "retrofit", source, "--map", tmp_path / "map", "--transform", tmp_path / "t.npy",
                       "--dim", 8)  # fmt: skip
    assert code == 0 and "pca for all dims" in out and f"matryo index FOLDER --rotate {tmp_path / 'map'}" in out
    small = np.load(tmp_path / "t.npy")
    np.testing.assert_allclose(small, Retrofit.load(tmp_path / "map").transform(np.load(source), 8), atol=1e-6)
    assert small.shape == (900, 8)
    assert run(capsys, "index", tmp_path / "idx", source)[0] == 0
    code, out, _ = run(capsys, "index", tmp_path / "idx", "--rotate", tmp_path / "map")
    assert code == 0 and "rotation: pca" in out
    code, out, _ = run(capsys, "index", tmp_path / "new", source, "--rotate", "--sketch", "--json")
    assert code == 0 and json.loads(out)["rotation"].startswith("pca, fitted on")
    with Index.open(tmp_path / "new") as index:
        np.testing.assert_allclose(index.get([7])[0], np.load(source)[7:8], atol=1e-5)


def test_json(source, capsys):
    code, out, _ = run(capsys, "retrofit", source, "--dims", "8,32", "--json")
    about = json.loads(out)
    assert code == 0 and about["rung"] == "pca" and about["table"][0]["dim"] == 8


@pytest.mark.parametrize(("words", "message"), [
    (["--dim", "8"], "--dim applies to --transform (got no --transform): add --transform FILE"),
    (["--transform", "out.bin"], "--transform writes a .npy file"),
    (["--labels", "missing.npy"], "missing.npy must be a .npy file of labels"),
    (["--dims", "8,64"], "must not exceed the 32"),
    (["--confidence", "2"], "confidence must be a number from 0.5 to 0.9999 (got 2.0)"),
])  # fmt: skip
def test_bad_options_are_one_line(source, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "retrofit", source, *words)
    assert code == 1 and message in err and err.count("\n") == 1 and not out
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_kept(source, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    code, _, err = run(capsys, "retrofit", source, "--map", tmp_path / "mine")
    assert code == 1 and "is not a map of retrofit" in err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
