"""The study of finetuned sentence encoders: batches that are fair and the same for all, figures that are known ones."""

import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("scipy")

import text_finetune  # noqa: E402
from support.text_quick import make  # noqa: E402
from support.text_tasks import SHARES, Source, Tasks, Tokenised, batches, encode, sources  # noqa: E402

from matryo import truncate  # noqa: E402
from matryo.data import Tokenizer, open_dataset  # noqa: E402
from matryo.encoders import Bert, Tokens  # noqa: E402
from matryo.results import read_rows  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("texts")
    make(place)
    return place


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.open(folder / "model")


def test_no_batch_holds_a_negative_that_is_none(folder, tokenizer):
    given = sources(tokenizer, folder, 32, seed=0)
    order = batches(given, 30, 16, seed=1)
    assert len(order) == 30
    for batch in order:
        source = given[batch.source]
        assert len(batch.rows) <= 16
        for side in (0, 1):
            assert len({*source.keys[batch.rows, side].tolist()}) == len(batch.rows)
    counts = np.bincount([batch.source for batch in order])
    assert counts.tolist() == [round(30 * SHARES[source.name]) for source in given]
    intents = open_dataset("texts", folder / "clinc150").split("train").labels
    rows = given[1].pairs
    assert (intents[rows[:, 0]] == intents[rows[:, 1]]).all()
    assert (rows[:, 0] != rows[:, 1]).all()


def test_the_seed_alone_decides_the_batches(folder, tokenizer):
    given = sources(tokenizer, folder, 32, seed=0)
    one, same, other = (batches(given, 20, 8, seed) for seed in (0, 0, 1))
    assert [(b.source, b.rows.tolist()) for b in one] == [(b.source, b.rows.tolist()) for b in same]
    assert [(b.source, b.rows.tolist()) for b in one] != [(b.source, b.rows.tolist()) for b in other]


def test_every_pair_has_its_turn():
    keys = np.stack([np.arange(40) % 7, np.arange(40)], axis=1)
    source = Source("wordnet", None, None, keys, keys)
    seen = np.concatenate([batch.rows for batch in batches([source], 40, 5, seed=0)])
    assert {*seen.tolist()} == set(range(40))
    counts = np.bincount(seen, minlength=40)
    assert counts.max() - counts.min() <= 3   # those that must wait come next


def test_papers_are_told_apart_and_test_claims_are_not_trained_on(folder, tokenizer):
    (scifact, *_) = sources(tokenizer, folder, 32, seed=0)
    opened = open_dataset("beir", folder / "scifact")
    assert len(scifact.pairs) == len(opened.split("titles").pairs) + len(opened.split("train").pairs)
    asked = {opened.split("test").queries.text(i) for i in range(len(opened.split("test").queries))}
    trained = {tokenizer.decode(ids) for ids in np.split(scifact.queries.ids, scifact.queries.offsets[1:-1])}
    assert not asked & trained


def test_texts_are_encoded_alike_whatever_stands_beside_them(folder, tokenizer):
    bert = Bert.open(folder / "model").eval()
    texts = ["ba0 ca1", "da2", "ba0 ca1 da2 ea3 ba4 ba1 ca2 ca3 ca4 da1", "ea1 ea2 ea3"]
    found = encode(lambda ids, mask: bert(Tokens(ids, mask)), Tokenised(tokenizer, texts, 32), CPU)
    with torch.no_grad():
        for text, vector in zip(texts, found, strict=True):
            ids, _ = tokenizer.encode([text], 32)
            ids = torch.from_numpy(ids[:, : int((ids != tokenizer.pad).sum())]).long()
            np.testing.assert_allclose(vector, bert(Tokens(ids))[0].numpy(), atol=1e-5)


def test_figures_by_hand(folder, tokenizer):
    tasks = Tasks(tokenizer, folder, 32)
    rng = np.random.default_rng(0)
    vectors = {name: rng.standard_normal((len(texts), 8)).astype(np.float32) for name, texts in tasks.texts.items()}
    graded = tasks.grade(vectors, [4, 8])
    near = truncate(vectors["clinc150 test"], 4) @ truncate(vectors["clinc150 train"], 4).T
    right = tasks.labels["train"][near.argmax(axis=1)] == tasks.labels["test"]
    assert graded["clinc150"]["1-nn"][0] == pytest.approx(right.mean())
    order = np.argsort(-(truncate(vectors["scifact queries"], 8) @ truncate(vectors["scifact corpus"], 8).T), axis=1)
    places = [row.tolist().index(own) for row, own in zip(order, tasks.relevance.pairs[:, 1], strict=True)]
    by_hand = np.mean([1 / np.log2(place + 2) if place < 10 else 0 for place in places])   # one paper a claim
    assert graded["scifact"]["ndcg@10"][1] == pytest.approx(by_hand)
    assert len(graded["stsb"]["spearman"]) == 2


def test_the_program_runs_and_stores_a_row_for_each_arm(tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.jsonl"
    words = ["--quick", "--seeds", "3", "--arms", "original", "pca", "nested", "plain", "--steps", "4", "--out", out]
    monkeypatch.setattr(sys, "argv", ["text_finetune.py", *map(str, words)])
    text_finetune.main()
    rows = read_rows(out)
    assert [(row.kind, row.subject, row.seed) for row in rows] == [
        ("text-finetune", "original", None),
        ("text-finetune", "pca", None),
        ("text-finetune", "plain", 3),
        ("text-finetune", "nested", 3),
        ("text-steps", "a training step", None),
    ]
    for row in rows[:-1]:
        assert row.figures["dims"] == [12, 16, 24, 32, 48]
        assert row.figures["trained"] == [12, 24, 48]
        assert row.figures["quick"]
        assert all(0 <= value <= 1 for value in row.figures["scifact"]["ndcg@10"])
    assert {*rows[-1].figures["steps"]} == {"plain", "nested"}
    capsys.readouterr()


def test_matryo_and_sentence_transformers_take_the_same_steps(folder, monkeypatch):
    pytest.importorskip("sentence_transformers")
    words = ["--data", folder, "--model", folder / "model", "--length", "32", "--test-length", "32", "--lr", "1e-3"]
    monkeypatch.setattr(sys, "argv", ["text_finetune.py", *map(str, words)])
    study = text_finetune.Study(text_finetune.parse())
    order = batches(study.sources, 4, 8, seed=0)
    ended = []
    for name in ("nested", "matryoshka", "nested loss"):
        arm = study.arm(name)
        for part in arm.model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
            if hasattr(part, "dropout") and isinstance(part.dropout, float):
                part.dropout = 0.0
        step = text_finetune.Step(arm, 1e-3, 4, CPU)
        losses = [float(step(*study.texts(batch))) for batch in order]
        ended.append(losses)
    assert ended[0] == pytest.approx(ended[2], rel=2e-3)
    assert ended[0] == pytest.approx(ended[1], rel=2e-3)
