"""export through the command line: a run that was trained here goes elsewhere, and mistakes are one line."""

import json
import re

import numpy as np
import pytest

import matryo
from matryo.cli import main

FAST = ["--loop.epochs", "1", "--loop.batch", "8", "--loop.device", "cpu", "--loop.precision", "fp32", "--quiet"]
INTENTS = {"weather": ["will it rain", "is it sunny today", "how cold is it"], "food": ["a recipe", "cook me rice"]}


@pytest.fixture(scope="module")
def texts_run(tmp_path_factory):
    """A run on a few texts with labels."""
    root = tmp_path_factory.mktemp("texts")
    rows = [{"text": text, "label": label} for label, some in INTENTS.items() for text in some]
    for split, repeat in (("train", 4), ("test", 1)):
        lines = [json.dumps(row) for row in rows * repeat]
        (root / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    out = root / "run"
    words = ["train", "demo", "--data", str(root), "--data.source", "texts", "--data.test", "test", "--encoder.name",
             "bert-tiny", "--encoder.dim", "0", "--head.dims", "8,128", "--text.vocabulary", "60",
             "--text.length", "16", "--out", str(out), *FAST]  # fmt: skip
    assert main(words) == 0
    return out


def test_a_run_goes_to_sentence_transformers(texts_run, tmp_path, capsys):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    out = tmp_path / "hub" / "intents"
    assert main(["export", str(texts_run), "--to", "sentence-transformers", "--out", str(out)]) == 0
    assert f"{out}: written for sentence-transformers" in capsys.readouterr().out
    some = INTENTS["weather"]
    theirs = sentence_transformers.SentenceTransformer(str(out), device="cpu", truncate_dim=8)
    ours = matryo.load(texts_run, device="cpu").encode(some, dim=8)
    np.testing.assert_allclose(theirs.encode(some, normalize_embeddings=True), ours, atol=1e-5)


def test_the_card_has_what_the_run_measured(texts_run, capsys):
    assert main(["export", str(texts_run), "--to", "transformers"]) == 0
    card = texts_run / "export" / "transformers" / "README.md"
    assert str(card) in capsys.readouterr().out
    text = card.read_text()
    figures = json.loads((texts_run / "run.json").read_text())["row"]["figures"]
    for dim, value in figures["top1"]["test"].items():
        assert re.search(rf"\| {dim} \|.* {100 * value:.1f} \|", text)
    assert str(texts_run.parent) not in text
    assert "\n# run\n" in text, "it is called like the run, not like the format"
    assert 'from_pretrained("run")' in text


def test_rows_of_evaluate_join_the_card(texts_run, tmp_path):
    from matryo.results import append_rows, stamp

    rows = tmp_path / "rows.jsonl"
    append_rows(rows, [stamp("sts", "texts", {"dims": (8, 128), "spearman": (0.5, 0.75)}, seed=0)])
    out = tmp_path / "out"
    assert main(["export", str(texts_run), "--to", "transformers", "--out", str(out), "--rows", str(rows)]) == 0
    assert "| dim | spearman |\n|---:|---:|\n| 8 | 0.5 |\n| 128 | 0.75 |" in (out / "README.md").read_text()


def error(capsys, *words):
    assert main([str(word) for word in words]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_mistakes_are_one_line_with_a_cure(texts_run, tmp_path, capsys):
    assert "complete run" in error(capsys, "export", tmp_path, "--to", "onnx", "--out", tmp_path / "out")
    told = error(capsys, "export", texts_run, "--to", "timm", "--out", tmp_path / "out")
    assert "export it to sentence-transformers or transformers or onnx" in told
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("x")
    assert "another --out" in error(capsys, "export", texts_run, "--to", "transformers", "--out", tmp_path / "there")
    assert "only a slimmable network" in error(
        capsys, "export", texts_run, "--to", "transformers", "--out", tmp_path / "out", "--width", "0.5"
    )
    with pytest.raises(SystemExit) as stop:
        main(["export", str(texts_run), "--to", "keras", "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
