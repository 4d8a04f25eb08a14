"""train, encode and evaluate on texts, pairs and emoji with their names, through the command line."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from matryo import EmbeddingSet, load
from matryo.cli import main

FAST = ["--loop.epochs", "1", "--loop.batch", "8", "--loop.device", "cpu", "--loop.compile", "false", "--quiet",
        "--encoder.name", "bert-tiny", "--text.length", "16", "--text.vocabulary", "64", "--head.dims", "8,128"]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def words(command):
    return [str(word) for word in command]


def test_labelled_texts_from_training_to_a_table(tmp_path, capsys):
    rows = [{"text": f"{noun} number {i}", "label": noun} for i in range(8) for noun in ("cat", "dog")]
    for split in ("train", "test"):
        write(tmp_path / "data" / f"{split}.jsonl", rows)
    run = tmp_path / "run"
    assert main(words(["train", "clinc-text", "--data", tmp_path / "data", "--out", run, *FAST])) == 0
    shown = capsys.readouterr().out
    assert "texts/s" in shown
    assert "head top-1 on test  8:" in shown
    assert main(words(["encode", run, "--data", tmp_path / "data", "--quiet"])) == 0
    stored = EmbeddingSet.open(run / "embeddings" / "test")
    assert stored.classes == ("cat", "dog")
    assert stored.head is not None
    assert main(words(["evaluate", run, "--quiet"])) == 0
    assert load(run, device="cpu").encode(["cat"], dim=8).shape == (1, 8)


def test_a_corpus_and_its_masked_words(tmp_path, capsys):
    text = "the cat sat on the mat and looked at the dog that looked at the bird\n"
    for split in ("train", "test"):
        (tmp_path / f"{split}.txt").write_text(text * 20, encoding="utf-8")
    run = tmp_path / "run"
    assert main(words(["train", "imdb-mlm", "--data", tmp_path, "--out", run, *FAST])) == 0
    shown = capsys.readouterr().out
    assert "masked-token accuracy on test  8:" in shown
    assert "masked-token loss on test" in shown
    assert "windows/s" in shown
    for splits in (["--split", "test"], []):   # nothing here has a label: there is nothing to evaluate
        assert main(words(["encode", run, "--data", tmp_path, *splits, "--quiet"])) == 0
        assert "next:" not in capsys.readouterr().out
    assert len(EmbeddingSet.open(run / "embeddings" / "test")) == 20


def test_pairs_become_two_folders(tmp_path, capsys):
    rows = [{"query": f"what is {i}", "positive": f"the number {i}"} for i in range(16)]
    for split in ("train", "test"):
        write(tmp_path / "data" / f"{split}.jsonl", rows)
    run = tmp_path / "run"
    assert main(words(["train", "minilm-pairs", "--data", tmp_path / "data", "--out", run, *FAST])) == 0
    assert "hit@10 on test" in capsys.readouterr().out
    assert main(words(["evaluate", run])) == 1   # and what it says to do instead is done next
    assert f"matryo encode {run} --data DIR --split test\n" in capsys.readouterr().err
    assert main(words(["encode", run, "--data", tmp_path / "data", "--split", "test", "--quiet"])) == 0
    shown = capsys.readouterr().out
    assert "test/queries: 16 vectors of 128 dimensions" in shown
    assert shown.endswith(f"next: matryo evaluate {run}\n")
    assert len((run / "embeddings" / "test" / "relevance.tsv").read_text().splitlines()) == 17
    assert main(words(["encode", run, "--data", tmp_path / "data", "--split", "test", "--quiet"])) == 0
    assert "already complete" in capsys.readouterr().out
    write(tmp_path / "data" / "test.jsonl", rows[::-1])   # as many rows under the same name
    assert main(words(["encode", run, "--data", tmp_path / "data", "--split", "test", "--quiet"])) == 1
    assert "made from other data): choose another --out, or pass --force" in capsys.readouterr().err
    assert main(words(["evaluate", run, "--quiet"])) == 0
    assert "nDCG@10" in capsys.readouterr().out


def test_labels_make_pairs(tmp_path, capsys):
    nouns = ["cat", "dog", "bird", "fish", "tree", "stone", "river", "moon"]
    rows = [{"text": f"{noun} number {i}", "label": noun} for i in range(6) for noun in nouns]
    for split in ("train", "test"):
        write(tmp_path / "data" / f"{split}.jsonl", rows)
    run, data = tmp_path / "run", ["--data", tmp_path / "data"]
    command = ["train", "minilm-pairs", *data, "--data.source", "texts", "--out", run, *FAST, "--optim.lr", "1e-3"]
    assert main(words([*command, "--loop.epochs", "20"])) == 0
    shown = capsys.readouterr().out
    assert "pairs/s" in shown
    assert "hit@1 on test  8:" in shown
    figures = json.loads((run / "run.json").read_text())["row"]["figures"]
    assert figures["hit@1"]["test"]["128"] == 1
    assert main(words(["encode", run, *data, "--quiet"])) == 0
    assert main(words(["evaluate", run, "--quiet"])) == 0
    assert "1-NN" in capsys.readouterr().out
