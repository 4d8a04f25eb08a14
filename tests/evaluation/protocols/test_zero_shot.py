"""Zero-shot accuracy against plain loops, scikit-learn, and the nearest neighbour where a class has one text."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.evaluation import table
from matryo.evaluation.predictions import predict
from matryo.evaluation.protocols.zero_shot import ZeroShot, zero_shot
from matryo.nesting import Nesting

if TYPE_CHECKING:
    from pathlib import Path

NESTING = Nesting([2, 4, 8])
KNOWN = np.array([0, 1, 3, 4, 6, 7, 9, 12])   # labels need not be 0, 1, 2, …


def pair(prompts: int = 3, seed: int = 0) -> tuple[EmbeddingSet, EmbeddingSet]:
    """Texts in no order, of several lengths, and queries near them; some of both are of unknown class."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((len(KNOWN), 8))
    described = rng.permutation(np.repeat(np.arange(len(KNOWN)), prompts))
    texts = centres[described] + 0.5 * rng.standard_normal((len(described), 8))
    texts *= rng.uniform(0.1, 10, (len(texts), 1))
    asked = rng.integers(0, len(KNOWN), 57)
    vectors = centres[asked] + rng.standard_normal((57, 8))
    labels, classes = KNOWN[asked], KNOWN[described]
    labels[::9], classes[0] = -1, -1
    about: dict[str, Any] = {"nesting": NESTING, "model": "m", "dataset": "toy", "split": "test"}
    return EmbeddingSet.of(texts, labels=classes), EmbeddingSet.of(vectors, labels=labels, **about)


def scores(texts: EmbeddingSet, query: np.ndarray, dim: int) -> list[float]:
    """The cosine of one query with each class, in float64."""
    found = []
    assert texts.labels is not None
    for label in KNOWN:
        prompts = [row[:dim].astype(np.float64) for row in texts.vectors[texts.labels == label]]
        mean = sum(prompt / np.linalg.norm(prompt) for prompt in prompts) / len(prompts)
        mean = mean / np.linalg.norm(mean)
        found.append(float(query[:dim] @ mean) / float(np.linalg.norm(query[:dim])))
    return found


def test_top1_and_top5_against_plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("matryo.embeddings.set")
    monkeypatch.setattr(module, "_BATCH_ENTRIES", 80)   # ten queries at a time
    texts, queries = pair()
    found = zero_shot(texts, queries)
    assert (found.model, found.dataset, found.split) == ("m", "toy", "test")
    assert (found.prompts, found.dims) == (23, (2, 4, 8))
    assert queries.labels is not None
    rows = [row for row in range(57) if queries.labels[row] != -1]
    for place, dim in enumerate(found.dims):
        hits = {1: 0, 5: 0}
        for row in rows:
            given = scores(texts, queries.vectors[row].astype(np.float64), dim)
            true = given[KNOWN.tolist().index(queries.labels[row])]
            for k in hits:
                hits[k] += sum(other > true for other in given) < k
        assert found.top1[place] == pytest.approx(hits[1] / len(rows))
        assert found.top5[place] == pytest.approx(hits[5] / len(rows))


def test_scikit_learn_agrees() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    texts, queries = pair(seed=5)
    found = zero_shot(texts, queries, dims=[3, 8])
    assert queries.labels is not None
    rows = np.flatnonzero(queries.labels != -1)
    for place, dim in enumerate(found.dims):
        given = np.array([scores(texts, queries.vectors[row].astype(np.float64), dim) for row in rows])
        for k, figure in ((1, found.top1), (5, found.top5)):
            score = metrics.top_k_accuracy_score(queries.labels[rows], given, k=k, labels=KNOWN)
            assert figure[place] == pytest.approx(score)


def test_one_text_a_class_is_the_nearest_neighbour() -> None:
    texts, queries = pair(prompts=1, seed=2)
    assert texts.labels is not None
    texts = texts.select(texts.labels != -1)
    assert queries.labels is not None
    queries = queries.select(np.isin(queries.labels, texts.labels))
    said = predict(queries, texts, dims=[2, 3, 8])
    assert zero_shot(texts, queries, dims=[2, 3, 8]).top1 == pytest.approx(said.correct.mean(axis=1).tolist())


def test_each_prompt_counts_the_same_whatever_its_length() -> None:
    texts, queries = pair()
    longer = texts.transformed(texts.vectors * np.random.default_rng(1).uniform(0.5, 50, (len(texts), 1)))
    assert zero_shot(longer, queries) == zero_shot(texts, queries)
    twice = EmbeddingSet.of(np.repeat(texts.vectors, 2, axis=0), labels=np.repeat(texts.labels, 2))
    again = zero_shot(twice, queries)
    assert (again.top1, again.top5, again.prompts) == (*_tops(zero_shot(texts, queries)), 46)


def _tops(found: ZeroShot) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return found.top1, found.top5


def test_few_classes_are_all_in_the_top_five() -> None:
    queries = EmbeddingSet.of([[1, 0], [0, 1], [1, 1]], labels=[0, 1, 1])
    found = zero_shot(EmbeddingSet.of([[0, 1], [1, 0]], labels=[0, 1]), queries, dims=[2])
    assert (found.top1, found.top5) == ((0.0,), (1.0,))   # of equal scores the smaller class comes first
    assert ZeroShot.from_figures(json.loads(json.dumps(found.to_figures(), allow_nan=False))) == found


def test_texts_about_superclasses_ask_for_these() -> None:
    _, queries = pair()
    assert queries.labels is not None
    rng = np.random.default_rng(3)
    names, of = ("plants", "animals", "things"), [*rng.integers(0, 3, 12).tolist(), -1]   # the last has none
    about: dict[str, Any] = {"classes": [f"c{i}" for i in range(13)], "superclasses": names, "superclass_of": of}
    asked = EmbeddingSet.of(queries.vectors, labels=queries.labels, nesting=NESTING, **about)
    described = EmbeddingSet.of(rng.standard_normal((6, 8)), labels=[0, 1, 2, 0, 1, 2], classes=names)
    known = np.array([-1 if label == -1 else of[label] for label in queries.labels])
    by_hand = EmbeddingSet.of(queries.vectors, labels=known, classes=names, nesting=NESTING)
    assert zero_shot(described, asked) == zero_shot(described, by_hand)
    assert asked.labels is not None
    assert asked.labels.max() == 12   # the caller's labels stay


def test_what_cannot_be_asked() -> None:
    texts, queries = pair()
    with pytest.raises(EmbeddingsError, match="the texts must have labels"):
        zero_shot(EmbeddingSet.of(texts.vectors), queries)
    with pytest.raises(EmbeddingsError, match="the queries must have labels"):
        zero_shot(texts, EmbeddingSet.of(queries.vectors))
    with pytest.raises(EmbeddingsError, match=r"texts and queries must have the same number .*got 3 and 8"):
        zero_shot(EmbeddingSet.of(np.ones((2, 3)), labels=[0, 1]), queries)
    named = [EmbeddingSet.of(np.eye(2), labels=[0, 1], classes=names) for names in (["a", "b"], ["b", "a"])]
    with pytest.raises(EmbeddingsError, match="texts and queries must have the same list of classes"):
        zero_shot(*named)
    with pytest.raises(EmbeddingsError, match=r"describe at least two classes.*got 1\): give a text"):
        zero_shot(EmbeddingSet.of(np.ones((2, 8)), labels=[0, -1]), queries)
    with pytest.raises(EmbeddingsError, match=r"got 50 queries of known class, 6 classes without a text"):
        zero_shot(EmbeddingSet.of(np.ones((2, 8)), labels=[0, 1]), queries)
    with pytest.raises(EmbeddingsError, match=r"there must be queries of known class.*got 0 queries of known class"):
        zero_shot(texts, EmbeddingSet.of(queries.vectors, labels=[-1] * 57))
    with pytest.raises(NestingError, match="must not exceed the 8"):
        zero_shot(texts, queries, dims=[9])


def test_vectors_that_turned_nan_are_refused(tmp_path: Path) -> None:
    sound = pair()
    for role, row in (("texts", 23), ("queries", 56)):
        given = dict(zip(("texts", "queries"), sound, strict=True))
        path = tmp_path / role
        EmbeddingSet.write(path, given[role].vectors, labels=given[role].labels, nesting=NESTING)
        data = bytearray((path / "vectors.npy").read_bytes())
        data[-4:] = np.float32(np.nan).tobytes()
        (path / "vectors.npy").write_bytes(data)
        given[role] = EmbeddingSet.open(path)
        with pytest.raises(EmbeddingsError, match=rf"every vector of the {role} must be finite.*from row {row}"):
            zero_shot(**given)


def test_models_stand_side_by_side_in_a_table_for_each_split() -> None:
    one = ZeroShot("a", "toy", "test", 8, (2, 4), (0.25, 0.5), (0.5, 1.0))
    other = ZeroShot("b", "toy", "test", 8, (4, 8), (0.125, 0.375), (0.75, 1.0))
    elsewhere = ZeroShot("a", "", "", 1200, (2,), (0.5,), (1.0,))
    text = table([one, other, elsewhere], markdown=True)
    assert text.splitlines() == [
        "**toy / test: zero-shot with 8 texts**", "",
        "| dim | a top-1 | a top-5 | b top-1 | b top-5 |", "| ---: | ---: | ---: | ---: | ---: |",
        "| 2 | 25.0 | 50.0 | – | – |", "| 4 | 50.0 | 100.0 | 12.5 | 75.0 |", "| 8 | – | – | 37.5 | 100.0 |", "",
        "**a: zero-shot with 1,200 texts**", "", "| dim | top-1 | top-5 |", "| ---: | ---: | ---: |",
        "| 2 | 50.0 | 100.0 |",
    ]  # fmt: skip
    with pytest.raises(InputError, match="there must be a result to show"):
        table([])
