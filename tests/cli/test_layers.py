"""A run that is cut after fewer layers, from the command line: train, encode, evaluate as a grid, export."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from matryo import EmbeddingSet, load
from matryo.cli import main

WORDS = {
    "colour": ["red", "green", "blue", "yellow", "purple"],
    "number": ["one", "two", "three", "four", "five"],
    "animal": ["cat", "dog", "horse", "sheep", "mouse"],
}
OPTIONS = {
    "encoder.name": "bert-mini", "encoder.layers": "1,3", "head.dims": "8,32,256", "head.self_distil": "0.5",
    "text.vocabulary": "100", "text.length": "8", "loop.steps": "4", "loop.batch": "3", "loop.device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Texts with labels, trained as pairs, encoded after 1 layer, 2 layers and all 4."""
    home = tmp_path_factory.mktemp("layers")
    (home / "data").mkdir()
    for split, end in (("train", "things"), ("test", "items")):
        rows = [{"text": f"some {word} {end}", "label": kind} for kind, words in WORDS.items() for word in words]
        (home / "data" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    fields = [word for name, value in OPTIONS.items() for word in (f"--{name}", value)]
    data = ["--data", str(home / "data")]
    where = ["--out", str(home / "run"), "--quiet"]
    assert not main(["train", "minilm-pairs", "--data.source", "texts", *data, *where, *fields])
    for layers in ([], ["--layers", "1"], ["--layers", "2"], ["--layers", "4"]):
        assert not main(["encode", str(home / "run"), *data, "--quiet", *layers])
    return home / "run"


def test_each_depth_has_its_folder_and_says_so(run):
    whole, shallow = (EmbeddingSet.open(run / part / "embeddings" / "test") for part in ("", "layers-1"))
    assert sorted(path.name for path in run.glob("layers-*")) == ["layers-1", "layers-2"]   # four are all there are
    assert (whole.manifest.model["layers"], shallow.manifest.model["layers"]) == (4, 1)
    costs = [each.manifest.model["mflops_per_token"] for each in (shallow, whole)]
    assert costs == pytest.approx([12 * 256**2 / 1e6, 4 * 12 * 256**2 / 1e6], abs=1e-3)
    texts = [f"some {word} items" for words in WORDS.values() for word in words]
    ours = load(run).encode(texts, layers=1, normalize=False)
    np.testing.assert_allclose(np.asarray(shallow.vectors), ours, atol=1e-5)


def test_the_grid_is_that_of_separate_evaluations(run, tmp_path, capsys):
    assert not main(["evaluate", str(run), "--layers", "1,2", "--dims", "8,32", "--quiet", "--show", "1-NN",
                     "--figure", str(tmp_path / "grid.svg")])  # fmt: skip
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    start = next(i for i, line in enumerate(lines) if line[:2] == ["layers", "MFLOPs/token"])
    assert lines[start][2:] == ["8", "32"]
    assert [line[0] for line in lines[start + 1 : start + 4]] == ["1", "2", "4"]
    for line, folder in zip(lines[start + 1 :], (run / "layers-1", run / "layers-2", run), strict=False):
        assert not main(["evaluate", str(folder), "--dims", "8,32", "--quiet", "--baselines", "none", "--json", "-"])
        figures = json.loads(capsys.readouterr().out)["figures"]["dims"]
        assert line[2:] == [f"{100 * figures[dim]['top1']:.1f}" for dim in ("8", "32")]
    drawn = (tmp_path / "grid.svg").read_text()
    assert "<image" not in drawn
    assert all(f">{value}<" in drawn for value in lines[start + 1][2:])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "3"], r"no .*layers-3\): matryo encode .*run --layers 3"),
        (["--layers", "few"], "must list numbers of layers"),
        (["--figure", "a.svg"], "without --layers"),
        (["--layers", "1", "--figure", "a.pdf"], "as .svg or .png"),
    ],
)
def test_what_is_missing_is_named_before_the_work(run, words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", str(run), "--quiet", *words])
    assert re.search(message, capsys.readouterr().err)


def test_sentence_transformers_loads_the_shallow_model(run, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    options = ["--to", "sentence-transformers", "--layers", "3", "--out", str(tmp_path / "s")]
    assert not main(["export", str(run), *options])
    texts = ["some red things", "a horse", "the number four of everything"]
    for dim in (8, 256):
        theirs = library.SentenceTransformer(str(tmp_path / "s"), device="cpu", truncate_dim=dim)
        vectors = theirs.encode(texts, normalize_embeddings=True)
        np.testing.assert_allclose(vectors, load(run).encode(texts, dim, layers=3), atol=1e-5)
    assert len(theirs[0].auto_model.encoder.layer) == 3
    assert "after layer 3" in (tmp_path / "s" / "README.md").read_text()
