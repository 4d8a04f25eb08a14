"""Superclass accuracy against plain loops and scikit-learn, and what must hold of any predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError
from matryo.evaluation.predictions import Predictions
from matryo.evaluation.protocols.superclass import Superclasses, superclass_accuracy

DIMS = (2, 4, 8)
CLASSES = ("cat", "dog", "oak", "elm", "cup", "sky")
KINDS = ("animal", "tree", "tool", "unused")
OF = (0, 0, 1, 1, 2, -1)


def sample(seed: int, count: int = 60, of: tuple[int, ...] = OF, **change: Any) -> tuple[EmbeddingSet, Predictions]:
    """Embeddings of known superclasses, and predictions that are right more often than not."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(CLASSES), count)
    about = {"classes": CLASSES, "superclasses": KINDS, "superclass_of": of, **change}
    mine = EmbeddingSet.of(np.ones((count, 8)), labels=labels, model="m", dataset="toy", split="test", **about)
    said = np.where(rng.random((3, count)) < 0.5, labels, rng.integers(-1, len(CLASSES), (3, count)))
    return mine, Predictions("1-NN", DIMS, labels, said, np.ones((3, count), np.float32), np.arange(count))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000))
def test_every_figure_against_plain_loops(seed: int) -> None:
    mine, said = sample(seed)
    found = superclass_accuracy(mine, said)
    assert (found.model, found.dataset, found.split, found.by, found.dims) == ("m", "toy", "test", "1-NN", DIMS)
    graded = [i for i, label in enumerate(said.labels) if OF[label] != -1]
    for place in range(3):
        right: dict[str, list[bool]] = {}
        rejected = fine = 0
        for i in graded:
            answer = int(said.predicted[place, i])
            kind = OF[answer] if answer >= 0 else -1
            right.setdefault(KINDS[OF[said.labels[i]]], []).append(kind == OF[said.labels[i]])
            rejected += kind == -1
            fine += answer == said.labels[i]
        assert found.accuracy[place] == pytest.approx(sum(map(sum, right.values())) / len(graded))
        assert found.rejected[place] == pytest.approx(rejected / len(graded))
        assert found.fine[place] == pytest.approx(fine / len(graded))
        assert {*found.names} == {*right}
        for name, count, each in zip(found.names, found.counts, found.each, strict=True):
            assert count == len(right[name])
            assert each[place] == pytest.approx(sum(right[name]) / count)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000))
def test_what_must_hold(seed: int) -> None:
    found = superclass_accuracy(*sample(seed))
    for place in range(3):
        assert found.fine[place] <= found.accuracy[place] <= 1 - found.rejected[place] + 1e-12
        weighted = sum(n * each[place] for n, each in zip(found.counts, found.each, strict=True))
        assert found.accuracy[place] == pytest.approx(weighted / sum(found.counts))
    each_its_own = superclass_accuracy(*sample(seed, of=(0, 1, 2, 3, 4, 5), superclasses=CLASSES))
    assert each_its_own.accuracy == each_its_own.fine
    all_one = superclass_accuracy(*sample(seed, of=(0,) * 6))
    assert all_one.accuracy == pytest.approx([1 - share for share in all_one.rejected])


def test_scikit_learn_agrees() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    mine, said = sample(3)
    found = superclass_accuracy(mine, said)
    truth = np.array(OF)[said.labels]
    for place in range(3):
        answers = np.array([OF[answer] if answer >= 0 else -1 for answer in said.predicted[place]])[truth >= 0]
        assert found.accuracy[place] == pytest.approx(metrics.accuracy_score(truth[truth >= 0], answers))
        each = metrics.recall_score(truth[truth >= 0], answers, labels=[0, 1, 2], average=None)
        assert [one[place] for one in found.each] == pytest.approx(each.tolist())


def test_a_class_beyond_the_names_is_rejected() -> None:
    mine, said = sample(2)
    stranger = replace(said, predicted=np.full((3, 60), 6))   # the label of a neighbour in a set without names
    found = superclass_accuracy(mine, stranger)
    assert (found.accuracy, found.rejected) == ((0, 0, 0), (1, 1, 1))


def test_it_is_json_and_comes_back() -> None:
    found = superclass_accuracy(*sample(1))
    assert Superclasses.from_figures(json.loads(json.dumps(found.to_figures(), allow_nan=False))) == found


def test_what_has_no_superclass_accuracy() -> None:
    mine, said = sample(0)
    bare = EmbeddingSet.of(mine.vectors, labels=mine.labels, classes=CLASSES)
    with pytest.raises(EmbeddingsError, match=r"must have superclasses .*write them again.*superclass_of=…"):
        superclass_accuracy(bare, said)
    with pytest.raises(EmbeddingsError, match=r"a class that has a superclass \(got 60 examples without one"):
        superclass_accuracy(*sample(0, of=(-1,) * 6))
    with pytest.raises(EmbeddingsError, match=r"must be of these embeddings.*call predict"):
        superclass_accuracy(mine.select(np.arange(59)), said)
    with pytest.raises(EmbeddingsError, match="must be of these embeddings"):
        superclass_accuracy(sample(1)[0], said)
    with pytest.raises(EmbeddingsError, match="the embeddings must have labels"):
        superclass_accuracy(EmbeddingSet.of(mine.vectors), said)
