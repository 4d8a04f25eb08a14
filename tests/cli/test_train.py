"""train and encode through the command line: flags, several sources, and mistakes told in one line."""

import dataclasses
import io
import json
import re
import shutil
import tarfile

import numpy as np
import pytest
from PIL import Image

from matryo import EmbeddingSet
from matryo.cli import main
from matryo.data import emoji, open_dataset, pack_dataset
from matryo.data.dataset import Dataset
from matryo.results import stamp

FAST = ["--loop.epochs", "1", "--loop.batch", "16", "--data.size", "32", "--encoder.dim", "16", "--data.workers", "0",
        "--loop.device", "cpu", "--augment.crop", "resized", "--data.test", "val", "--quiet"]  # fmt: skip


@pytest.fixture(scope="module")
def few():
    """Three emoji classes of real images, as a dataset with train and val."""
    whole = emoji()
    chosen = np.array([0, 1, 2])
    splits = {}
    for name, source in (("train", "train"), ("val", "flat")):
        split = whole.split(source)
        part = split.subset(np.isin(split.labels, chosen))
        splits[name] = part
    many = splits["train"].subset(np.resize(np.arange(len(splits["train"])), 24))
    return Dataset("few", whole.classes[:3], {"train": many, "val": splits["val"]})


@pytest.fixture
def folder(few, tmp_path):
    root = tmp_path / "pictures"
    for name, split in few.splits.items():
        for i in range(len(split)):
            path = root / name / few.classes[split.labels[i]] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(split.image(i)).save(path)
    return root


def shards(few, root):
    root.mkdir()
    for name, split in few.splits.items():
        with tarfile.open(root / f"{name}-0000.tar", "w") as tar:
            for i in range(len(split)):
                picture = io.BytesIO()
                Image.fromarray(split.image(i)).save(picture, "PNG")
                for ending, data in (("png", picture.getvalue()), ("cls", str(split.labels[i]).encode())):
                    entry = tarfile.TarInfo(f"{i:04d}.{ending}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
    return root


def test_a_folder_of_images_from_training_to_a_table(few, folder, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", "tiny-imagenet-rn18", "--data", str(folder), "--data.source", "folder", "--out", str(run),
                 "--encoder.name", "convnet", "--loop.compile", "false", *FAST]) == 0  # fmt: skip
    assert "next: matryo encode" in capsys.readouterr().out
    assert f"matryo encode {run} --data DIR" in error(capsys, "evaluate", run)
    assert main(["encode", str(run), "--data", str(folder), "--split", "val", "--quiet"]) == 0
    assert "next:" not in capsys.readouterr().out   # there is no database yet
    assert f"matryo encode {run} --data DIR --split train" in error(capsys, "evaluate", run)
    assert main(["encode", str(run), "--data", str(folder), "--quiet"]) == 0
    assert f"next: matryo evaluate {run}\n" in capsys.readouterr().out
    stored = EmbeddingSet.open(run / "embeddings" / "val")
    stored.verify()
    assert stored.classes == tuple(sorted(few.classes))   # folders are read in order of their names
    assert sorted(stored.ids)[0].startswith("val/")
    assert stored.labels.dtype == np.int64
    assert main(["evaluate", str(run), "--quiet"]) == 0
    assert "mAP@10" in capsys.readouterr().out
    facts = json.loads((run / "run.json").read_text())
    assert facts["recipe"]["optim"]["lr"] == 0.5   # the recipe's
    assert facts["recipe"]["loop"]["epochs"] == 1   # the flag's
    assert str(tmp_path) not in facts["row"]["command"]


@pytest.mark.parametrize("source", ["packed", "shards"])
def test_other_sources_train_too(few, tmp_path, source):
    root = shards(few, tmp_path / "data") if source == "shards" else tmp_path / "data"
    if source == "packed":
        pack_dataset(few, root, progress=False)
    words = ["train", "demo", "--data", str(root), "--data.source", source, "--out", str(tmp_path / "run"), *FAST]
    assert main(words) == 0


def error(capsys, *words):
    assert main([str(word) for word in words]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_mistakes_are_one_line_with_a_cure(folder, tmp_path, capsys):
    base = ["train", "demo", "--data.source", "folder", "--out", tmp_path / "run", *FAST]
    assert "did you mean demo?" in error(capsys, "train", "demoo")
    assert "--data DIR" in error(capsys, *base)
    assert "missing" in error(capsys, *base, "--data", tmp_path / "missing")
    assert "true or false" in error(capsys, *base, "--data", folder, "--head.bias", "maybe")
    assert "must not exceed the 16" in error(capsys, *base, "--data", folder, "--head.dims", "8,64")
    assert "unknown encoder" in error(capsys, *base, "--data", folder, "--encoder.name", "resnet51")
    assert "complete run" in error(capsys, "encode", tmp_path / "missing")

    (folder / "train" / "empty").mkdir()
    assert "empty" in error(capsys, *base, "--data", folder)
    (folder / "train" / "empty").rmdir()

    for picture in (folder / "train").rglob("*.png"):
        picture.write_bytes(picture.read_bytes()[:50])
    assert re.search(r"train/\S+.*/\d+\.png", error(capsys, *base, "--data", folder))
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[optim]\nlearning_rate = 1\n")
    assert "unknown recipe field" in error(capsys, "train", recipe)


def test_encode_tells_what_is_wrong_and_overwrites_only_when_asked(few, tmp_path, capsys):
    root, run = tmp_path / "data", tmp_path / "run"
    pack_dataset(few, root, progress=False)
    assert main(["train", "demo", "--data", str(root), "--data.source", "packed", "--out", str(run), *FAST]) == 0
    encode = ["encode", run, "--data", root, "--quiet"]
    assert "no such split" in error(capsys, *encode, "--split", "nope")
    assert main([str(word) for word in encode]) == 0
    before = (run / "embeddings" / "val" / "vectors.npy").read_bytes()
    other = tmp_path / "other"
    words = ["train", "demo", "--data", str(root), "--data.source", "packed", "--out", str(other), *FAST]
    assert main([*words, "--loop.seed", "1"]) == 0
    shutil.copytree(run / "embeddings", other / "embeddings")
    assert "holds other embeddings" in error(capsys, "encode", other, "--data", root, "--quiet")
    assert (other / "embeddings" / "val" / "vectors.npy").read_bytes() == before
    assert main(["encode", str(other), "--data", str(root), "--quiet", "--overwrite"]) == 0
    assert (other / "embeddings" / "val" / "vectors.npy").read_bytes() != before


def test_a_renamed_class_is_another_dataset(folder, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["train", "demo", "--data", folder, "--data.source", "folder", "--out", run, *FAST]
    assert main([str(word) for word in words]) == 0
    for split in ("train", "val"):
        first = sorted((folder / split).iterdir())[0]
        first.rename(first.with_name("zebra"))   # every label shifts by one
    assert "holds another run" in error(capsys, *words)


def test_a_corrupt_image_is_one_line_from_worker_processes_too(folder, tmp_path, capsys):
    for picture in (folder / "train").rglob("*.png"):
        picture.write_bytes(picture.read_bytes()[:50])
    words = ["train", "demo", "--data", folder, "--data.source", "folder", "--out", tmp_path / "run", *FAST]
    assert ".png" in error(capsys, *words, "--data.workers", "1")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--head.knd", "tied"], "--head.knd: did you mean --head.kind?"),
        (["--optim.lrr=3"], "--optim.lrr=3: did you mean --optim.lr?"),
        (["--lr", "3"], "--lr: did you mean --optim.lr?"),
        (["--set", "optim.lr=1"], "--set: write --optim.lr 1"),
        (["--set=optim.lr=1"], "--set=optim.lr=1: write --optim.lr 1"),
        (["optim.lr=1"], "optim.lr=1: write --optim.lr 1"),
        (["--set", "optim.rate=1"], "--set"),   # nothing is near
        (["--verbose"], "--verbose"),
    ],
)
def test_a_misspelt_flag_names_the_one_meant(given, told, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "demo", *given])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith(f"unrecognized argument {told}\n")


def test_numbered_classes_are_names_of_their_own(few, tmp_path):
    digits = tmp_path / "digits"
    for split in ("train", "val"):
        for name in ("0", "1"):
            (digits / split / name).mkdir(parents=True)
            Image.fromarray(few.split("val").image(0)).save(digits / split / name / "a.png")
    known = open_dataset("folder", digits, classes=("cat", "dog"))
    assert {*known.split("val").labels, *known.split("train").labels} == {-1}


def test_extend_reaches_the_training(tmp_path, capsys, monkeypatch):
    run, given = tmp_path / "run", []

    def train(recipe, _dataset, out, *, extend, progress):
        given.append((recipe.loop.epochs, extend, progress))
        out.mkdir(exist_ok=True)
        row = stamp("train", "demo", {"seconds": 1.0, "images_per_second": 9.5}, seed=0)
        (out / "run.json").write_text(json.dumps({"row": dataclasses.asdict(row)}))

    monkeypatch.setattr("matryo.training.train", train, raising=False)
    words = ["train", "demo", "--out", str(run), "--loop.epochs"]
    for more, complete in ((["1"], False), (["2", "--extend", "--quiet"], False), (["2"], True)):
        assert main([*words, *more]) == 0
        assert ("was already complete; nothing was trained" in capsys.readouterr().out) == complete
    assert given == [(1, False, True), (2, True, False), (2, False, True)]
