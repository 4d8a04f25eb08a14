"""Texts and images as queries: the index knows its model, and matryo search encodes with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from matryo import EmbeddingSet, Index, load
from matryo.cli import main
from matryo.errors import InputError

Capture = pytest.CaptureFixture[str]
TEXTS = [f"{noun} number {i}" for i in range(8) for noun in ("cat", "dog")]
FAST = ["--loop.epochs", "1", "--loop.batch", "8", "--loop.device", "cpu", "--loop.compile", "false", "--quiet",
        "--encoder.name", "bert-tiny", "--text.length", "16", "--text.vocabulary", "64",
        "--head.dims", "8,128"]  # fmt: skip


def write(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on the same texts with different seeds, each with its embeddings."""
    home = tmp_path_factory.mktemp("home")
    for split in ("train", "test"):
        write(home / "data" / f"{split}.jsonl", [{"text": text, "label": text[:3]} for text in TEXTS])
    for seed in (0, 1):
        run = home / "runs" / f"r{seed}"
        words = ["train", "clinc-text", "--data", home / "data", "--out", run, "--loop.seed", seed, *FAST]
        assert main([str(word) for word in words]) == 0
        words = ["encode", run, "--data", home / "data", "--quiet", "--device", "cpu"]
        assert main([str(word) for word in words]) == 0
    return home


@pytest.fixture
def there(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of these in the working directory."""
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def call(capsys: Capture, *words: Any) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: Capture, *words: Any) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0].removeprefix("matryo: error: ")


def found(capsys: Capture, *words: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in call(capsys, "search", *words, "--json").splitlines()]


def test_the_embeddings_of_a_run_remember_their_model(there: Path, capsys: Capture) -> None:
    told = call(capsys, "index", "idx", "runs/r0/embeddings/test")
    assert f"  model: clinc-text separate, {there / 'runs/r0'}" in told.splitlines()
    texts = ["cat number 3", "a dog"]
    lines = found(capsys, "idx", *texts, "-k", 5)
    assert [line["query"] for line in lines] == texts
    with Index.open("idx") as index:
        wanted = index.search(load("runs/r0", device="cpu").encode(texts), 5, payload=True)
    for line, hits in zip(lines, wanted, strict=True):
        assert [hit["id"] for hit in line["hits"]] == [hit.id for hit in hits]
        assert [hit["score"] for hit in line["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-5)
        assert [hit["payload"] for hit in line["hits"]] == [hit.payload for hit in hits]
    Path("q.txt").write_text("\n".join(texts) + "\n")
    assert [line["hits"] for line in found(capsys, "idx", "q.txt", "-k", 5)] == [line["hits"] for line in lines]
    assert call(capsys, "search", "idx", "cat number 3", "-k", 2).splitlines()[0] == "query cat number 3"


def test_python_names_the_run(there: Path, capsys: Capture) -> None:
    call(capsys, "index", "idx", "runs/r0/embeddings/test")
    with Index.open("idx") as index, pytest.raises(InputError) as stop:
        index.search("a cat")
    assert str(stop.value) == (
        "an index holds vectors, not texts (got 'a cat'): "
        f'encode the queries first: matryo.load("{there / "runs/r0"}").encode(["a cat"])'
    )


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("normalize", [True, False])
def test_queries_are_scaled_as_the_vectors_are(capsys: Capture, metric: str, normalize: bool) -> None:
    model = load("runs/r0", device="cpu")
    vectors = model.encode(TEXTS, normalize=normalize)
    np.save("v.npy", vectors)
    call(capsys, "index", "idx", "v.npy", "--model", "runs/r0", "--metric", metric)
    for row in (0, 7):
        [line] = found(capsys, "idx", TEXTS[row], "-k", 1)
        with Index.open("idx") as index:
            [[hit]] = index.search(vectors[row], 1)
        assert (line["hits"][0]["id"], line["hits"][0]["score"]) == (hit.id, pytest.approx(hit.score, abs=1e-3))


@pytest.mark.usefixtures("there")
def test_a_shorter_index_takes_the_prefix(capsys: Capture) -> None:
    np.save("v.npy", load("runs/r0", device="cpu").encode(TEXTS, dim=8))
    call(capsys, "index", "idx", "v.npy", "--model", "runs/r0")
    assert found(capsys, "idx", TEXTS[5], "-k", 1)[0]["hits"][0]["id"] == 5
    np.save("wide.npy", np.ones((3, 200)))
    told = refused(capsys, "index", "wide", "wide.npy", "--model", "runs/r0")
    assert told.startswith("the model must have the 200 dims of wide (got 128 in runs/r0)")
    assert not Path("wide").exists()
    np.save("long.npy", np.ones((3, 129)))
    call(capsys, "index", "long", "long.npy")
    assert "the model must have the 129 dims of long" in refused(capsys, "index", "long", "--model", "runs/r0")


def test_the_run_may_move(there: Path, capsys: Capture) -> None:
    call(capsys, "index", "a/idx", "runs/r0/embeddings/test")
    before = found(capsys, "a/idx", "cat number 1")
    Path("moved").mkdir()
    for name in ("a", "runs"):
        Path(name).rename(f"moved/{name}")   # both together: the way from one to the other is the same
    assert found(capsys, "moved/a/idx", "cat number 1") == before
    shutil.copytree("moved/runs/r1", "runs/r0")   # another model at the old place: the moved one is found
    assert found(capsys, "moved/a/idx", "cat number 1") == before
    shutil.rmtree("runs")
    Path("moved/runs/r0").rename("r0")
    told = refused(capsys, "search", "moved/a/idx", "cat number 1")
    assert told == (
        f"the model of moved/a/idx must be in its run folder (got {there / 'runs/r0'}, which holds no run): "
        "restore it, or record its new place: matryo index moved/a/idx --model RUN"
    )
    assert found(capsys, "moved/a/idx", "cat number 1", "--model", "r0") == before
    call(capsys, "index", "moved/a/idx", "--model", "r0")
    assert found(capsys, "moved/a/idx", "cat number 1") == before


@pytest.mark.usefixtures("there")
def test_another_model_in_its_place_is_refused(capsys: Capture) -> None:
    call(capsys, "index", "idx", "runs/r0/embeddings/test")
    shutil.rmtree("runs/r0")
    shutil.copytree("runs/r1", "runs/r0")
    told = refused(capsys, "search", "idx", "a cat")
    assert "holds another model than the one that made the vectors of idx (got weights " in told
    assert told.endswith("with --model RUN, or encode and index the data again")


@pytest.mark.usefixtures("there")
def test_vectors_of_two_models_are_not_mixed(capsys: Capture) -> None:
    told = refused(capsys, "index", "idx", "runs/r0/embeddings/test", "runs/r1/embeddings/test")
    assert told.startswith("all vectors of an index must be by one model; those of runs/r0/embeddings/test are by ")
    assert not Path("idx").exists()
    call(capsys, "index", "idx", "runs/r0/embeddings/test")
    assert "those of idx are by clinc" in refused(capsys, "index", "idx", "runs/r1/embeddings/train")
    told = refused(capsys, "index", "idx", "runs/r0/embeddings/train", "--model", "runs/r1")
    assert "those of --model runs/r1 are by" in told


@pytest.mark.usefixtures("there")
def test_embeddings_elsewhere_and_copies(capsys: Capture) -> None:
    """Without the run around them, the name and the weights are remembered; --model adds the place."""
    shutil.copytree("runs/r0/embeddings/test", "emb")
    call(capsys, "index", "idx", "emb")
    told = refused(capsys, "search", "idx", "a cat")
    assert "texts and images need the model of idx, which is recorded without its run folder: clinc-text" in told
    assert "pass its run folder: --model RUN (matryo index idx --model RUN records it)" in told
    assert "holds another model" in refused(capsys, "search", "idx", "a cat", "--model", "runs/r1")
    hits = found(capsys, "idx", "a cat", "--model", "runs/r0")
    call(capsys, "index", "idx", "--model", "runs/r0")
    assert found(capsys, "idx", "a cat") == hits
    call(capsys, "index", "deep/er/copy", "idx", "--dims", "8,128")
    assert found(capsys, "deep/er/copy", "a cat") == hits
    call(capsys, "index", "idx", "--backup", "saved")
    assert found(capsys, "saved", "a cat") == hits


def test_the_width_of_a_slimmable_model_is_kept(tmp_path: Path) -> None:
    """The embeddings record it; naming the run folder does not forget it."""
    from argparse import Namespace

    from matryo.cli.parts.model import _check_same, record_model

    half = {"name": "slim at width 0.5", "weights": "ab", "width": 0.5}
    run = {"name": "slim", "weights": "ab", "run": "runs/slim", "run_from_index": "../runs/slim"}
    args = Namespace(sources=[], model=Path("runs/slim"), folder=Path("idx"))
    with Index.create(tmp_path / "idx", nesting=[8], model=half) as index:
        record_model(args, index, run)
        assert index.model == {**half, **run}
    _check_same(half, run, ("a", "b"))
    with pytest.raises(InputError, match="must be by one model"):
        _check_same(half, {**half, "width": 1.0}, ("a", "b"))


def test_models_known_by_name_or_not_at_all(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vectors = np.eye(8, dtype=np.float32)
    EmbeddingSet.write("emb", vectors, model="text-model-3")
    call(capsys, "index", "named", "emb")
    told = refused(capsys, "search", "named", "a cat")
    assert "the model of named, which is recorded without its run folder: text-model-3 (got 'a cat', " in told
    np.save("v.npy", vectors)
    call(capsys, "index", "idx", "v.npy")
    for word in ("a cat", "cat"):
        told = refused(capsys, "search", "idx", word)
        assert told.startswith("texts and images need the model of idx, which is not recorded (got ")
        assert f"(got '{word}', which is not a file): pass its run folder: --model RUN" in told
    assert "a run folder must hold a complete run (got emb" in refused(capsys, "index", "idx", "--model", "emb")
    assert "a run folder must hold a complete run" in refused(capsys, "search", "idx", "a cat", "--model", "none")
    with Index.create("py", nesting=[8], model={"name": "mine", "run": "runs/mine"}) as index:
        assert index.model == {"name": "mine", "run": "runs/mine"}
        assert index.describe().model == "mine"
        with pytest.raises(InputError, match=r'matryo.load\("runs/mine"\).encode\(\["a", …\]\)|encode\(\["a"\]\)'):
            index.search(["a", "b"])
        index.set_model("other")
    with Index.open("py") as index:
        assert index.model == "other"
        assert "  model: other" in str(index.describe())
        with pytest.raises(InputError, match="with other, which made the vectors"):
            index.search("a")
        with pytest.raises(InputError, match="open for reading"):
            index.set_model("")


@pytest.mark.usefixtures("there")
def test_what_cannot_be_encoded(capsys: Capture) -> None:
    call(capsys, "index", "idx", "runs/r0/embeddings/test")
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (8, 8)).save("cat.png")
    told = refused(capsys, "search", "idx", "cat.png")
    assert told == "the model of idx reads texts, not images (got 'cat.png'): pass a text in quotes"
    for words, part in [
        (["missing.txt"], "there must be a file or folder at each path (got missing.txt)"),
        (["missing.png"], "there must be a file or folder at each path"),
        (["missing.npy"], "must be a readable npy file"),
        (["  "], "a query must not be empty"),
        (["a cat", "cat.png"], "queries must be all texts or all files (got 'cat.png' and 'a cat')"),
        (["q.npy", "a cat"], "only texts and images can be several QUERIES (got 2 QUERIES): search for q.npy alone"),
        (["q.npy", "--model", "runs/r0"], "--model encodes texts and images (got vectors of q.npy): drop --model"),
        (["--like", "test#0", "--model", "runs/r0"], "--model encodes texts and images (got vectors of test#0)"),
        (["a cat", "-k", "0"], "k must be an integer of at least 1 (got 0)"),
        (["a cat", "-k", "-3"], "k must be an integer of at least 1 (got -3)"),
    ]:
        assert part in refused(capsys, "search", "idx", *words), words
    long = "a cat " * 2000   # no path can be so long
    assert found(capsys, "idx", long, "-k", 1)[0]["query"] == long


def test_images_are_encoded(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("train", "val"):
        for label in ("a", "b"):
            folder = Path("pets") / name / label
            folder.mkdir(parents=True)
            for number in range(4):
                image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(folder / f"{number}.png")
    Path("pets.toml").write_text(
        '[data]\nsource = "folder"\ntest = ["val"]\nsize = 16\n[encoder]\ndim = 16\n[loop]\nepochs = 1\nbatch = 4\n'
        'device = "cpu"\n'
    )
    call(capsys, "train", "pets.toml", "--data", "pets", "--out", "run", "--quiet")
    call(capsys, "encode", "run", "--data", "pets", "--split", "val", "--quiet")
    call(capsys, "index", "idx", "run/embeddings/val")
    one, other = "pets/val/a/1.png", "pets/val/b/3.png"
    lines = found(capsys, "idx", one, other, "-k", 1)
    assert [line["query"] for line in lines] == [one, other]
    assert [line["hits"][0]["id"] for line in lines] == ["val/a/1.png", "val/b/3.png"]
    assert len(found(capsys, "idx", "pets/val", "-k", 1)) == 8
    told = refused(capsys, "search", "idx", "a cat")
    assert told == "the model of idx reads images, not texts (got 'a cat'): pass the path of an image"
