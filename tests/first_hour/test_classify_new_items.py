"""New images and texts go through classify and encode without labels or a dataset's layout."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import matryo
from matryo import Cascade, EmbeddingSet
from matryo.cli import main

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
Image = pytest.importorskip("PIL.Image")

Captured = pytest.CaptureFixture[str]
FAST = ["--loop.epochs", "2", "--loop.batch", "8", "--loop.device", "cpu", "--loop.compile", "false", "--quiet",
        "--loop.precision", "fp32", "--data.workers", "0"]  # fmt: skip
COLOURS = {"green": (30, 200, 40), "red": (220, 30, 30)}


def paint(path: Path, colour: str, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-20, 20, size=(32, 32, 3))
    Image.fromarray(np.clip(np.array(COLOURS[colour]) + noise, 0, 255).astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run, and photos/ without classes."""
    root = tmp_path_factory.mktemp("images")
    for colour in COLOURS:
        for i in range(12):
            paint(root / "data" / ("train" if i < 8 else "val") / colour / f"{i}.png", colour, i)
    for i, colour in enumerate(("red", "green", "red")):
        paint(root / "photos" / f"{i}.png", colour, 100 + i)
    words = ["train", "demo", "--data", root / "data", "--data.source", "folder", "--data.test", "val", "--out",
             root / "run", "--head.dims", "4,16", "--encoder.dim", "16", "--augment.crop", "resized", *FAST]
    assert main([*map(str, words)]) == 0
    return root


def answers(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def expected(root: Path, paths: list[Path]) -> tuple[list[str], Any]:
    """Class and confidence at the full dim, from torch."""
    model = matryo.load(root / "run", device="cpu")
    import torch

    assert model.head is not None
    vectors = torch.from_numpy(model.encode(paths, normalize=False))
    with torch.no_grad():
        chance = model.head(vectors)[-1].softmax(-1)
    return [model.classes[column] for column in chance.argmax(-1)], chance.amax(-1).numpy()


def test_images_without_labels(images: Path, tmp_path: Path, capsys: Captured) -> None:
    run, photos = str(images / "run"), sorted((images / "photos").iterdir())
    capsys.readouterr()
    assert main(["classify", run, str(images / "photos"), "--json", "-", "--device", "cpu", "--quiet"]) == 0
    printed = capsys.readouterr()
    assert "no encoded test split to choose thresholds on, so dim 16 answers" in printed.err
    folder = answers(printed.out)
    names, confidence = expected(images, photos)
    assert [line["class"] for line in folder] == names
    assert [line["confidence"] for line in folder] == pytest.approx(confidence, abs=1e-5)
    assert [line["id"] for line in folder] == ["0.png", "1.png", "2.png"]
    assert {line["dim"] for line in folder} == {16}

    out = tmp_path / "answers.csv"
    assert main(["classify", run, *map(str, photos), "--device", "cpu", "--out", str(out), "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["0.png", names[0], f"{confidence[0]:.3f}", "dim", "16"]
    assert lines[-1] == f"3 answers in {out}"
    assert [line["class"] for line in csv.DictReader(out.read_text().splitlines())] == names


def test_encode_images_without_labels(images: Path, tmp_path: Path, capsys: Captured) -> None:
    words = ["encode", str(images / "run"), str(images / "photos"), "--device", "cpu", "--quiet"]
    assert main(words) == 1
    assert "new data needs a folder to write to (got no --out): add --out DIR" in capsys.readouterr().err
    out = tmp_path / "emb"
    assert main([*words, "--out", str(out), "--split", "val"]) == 1
    assert "--split is for datasets, and ITEM … replaces the dataset" in capsys.readouterr().err
    assert main([*words, "--out", str(out)]) == 0
    stored = EmbeddingSet.open(out)
    model = matryo.load(images / "run", device="cpu")
    wanted = model.encode(sorted((images / "photos").iterdir()), normalize=False)
    np.testing.assert_allclose(stored.vectors, wanted, atol=1e-5)
    assert list(stored.ids) == ["0.png", "1.png", "2.png"]
    assert stored.head is not None
    assert (np.asarray(stored.labels) == -1).all()
    assert f"{out}: 3 vectors of 16 dimensions" in capsys.readouterr().out


def test_thresholds_of_an_encoded_split_or_a_file(images: Path, tmp_path: Path, capsys: Captured) -> None:
    run, photos, saved = str(images / "run"), str(images / "photos"), tmp_path / "cascade.json"
    words = ["classify", run, photos, "--json", "-", "--device", "cpu", "--quiet"]
    assert main([*words, "--save", str(saved)]) == 1
    assert f"no encoded test split with labels (got --save {saved}): matryo encode {run}" in capsys.readouterr().err
    assert main(["encode", run, "--data", str(images / "data"), "--device", "cpu", "--quiet"]) == 0
    capsys.readouterr()
    try:
        assert main([*words, "--save", str(saved)]) == 0
        printed = capsys.readouterr()
        assert "3 items; greedy thresholds chosen on 8 rows of val" in printed.err
        fitted = Cascade().fit(EmbeddingSet.open(images / "run" / "embeddings" / "val"))
        assert Cascade.load(saved).thresholds_.tolist() == fitted.thresholds_.tolist()
        assert {line["dim"] for line in answers(printed.out)} <= {4, 16}
        assert main([*words, "--cascade", str(saved)]) == 0
        again = capsys.readouterr()
        assert again.out == printed.out
        assert "thresholds of cascade.json" in again.err
    finally:
        shutil.rmtree(images / "run" / "embeddings")


def test_options_for_splits_are_refused(images: Path, capsys: Captured) -> None:
    run, photos = str(images / "run"), str(images / "photos")
    for words in (["--split", "val"], ["--curve"], ["--holdout", "0.4"]):
        assert main(["classify", run, photos, *words]) == 1
        assert f"ITEM … replaces these (got {' '.join(words)}): drop one" in capsys.readouterr().err
    assert main(["classify", run, photos, "--json", "rows.jsonl"]) == 1
    assert "there are no result rows to store (got --json rows.jsonl): write the answers with --out" in (
        capsys.readouterr().err
    )
    assert main(["classify", run, photos, "-"]) == 1
    assert "- (standard input) must be the only ITEM" in capsys.readouterr().err
    assert main(["classify", run, str(images / "gone.png")]) == 1
    assert "gone.png" in capsys.readouterr().err


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("texts")
    rows = [{"text": f"{noun} number {i}", "label": noun} for i in range(8) for noun in ("cat", "dog")]
    (root / "data").mkdir()
    for split in ("train", "test"):
        (root / "data" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["train", "clinc-text", "--data", root / "data", "--out", root / "run", "--encoder.name", "bert-tiny",
             "--text.length", "16", "--text.vocabulary", "64", "--head.dims", "8,128", *FAST]  # fmt: skip
    assert main([*map(str, words)]) == 0
    return root


def test_texts_from_a_file_and_from_standard_input(
    texts: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, new = str(texts / "run"), ["cat number 9", "dog number 9"]
    file = tmp_path / "new.txt"
    file.write_text("\n".join(new) + "\n")
    capsys.readouterr()
    names, confidence = expected(texts, new)   # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(new) + "\n\n"))
    for item in (str(file), "-"):
        assert main(["classify", run, item, "--json", "-", "--device", "cpu", "--quiet"]) == 0
        lines = answers(capsys.readouterr().out)
        assert [line["class"] for line in lines] == names
        assert [line["confidence"] for line in lines] == pytest.approx(confidence, abs=1e-5)
    assert [line["id"] for line in lines] == ["stdin#0", "stdin#1"]
    assert main(["classify", run, "-"]) == 1
    assert "standard input must have one text per line" in capsys.readouterr().err
    photo = tmp_path / "photo.png"
    paint(photo, "red", 0)
    assert main(["classify", run, str(photo), "--quiet"]) == 1
    assert "this model reads texts" in capsys.readouterr().err
