"""Predictions at every dim against plain loops, scikit-learn and the evaluation of the same embeddings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from matryo.embeddings import EmbeddingSet, Head
from matryo.embeddings import set as embedding_set
from matryo.errors import EmbeddingsError, NestingError
from matryo.evaluation import evaluate
from matryo.evaluation import predictions as module
from matryo.evaluation.predictions import predict
from matryo.nesting import Nesting

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = 5
NESTING = Nesting([2, 4, 8])


def clustered(count: int, seed: int, unknown: int = 0, **about: Any) -> EmbeddingSet:
    """``count`` rows around the centres of the classes, every 7th of unknown class where asked for."""
    centres = np.random.default_rng(99).standard_normal((CLASSES, 8))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    vectors = centres[labels] + 0.9 * rng.standard_normal((count, 8))
    labels[: 7 * unknown : 7] = -1
    return EmbeddingSet.of(vectors, labels=labels, nesting=NESTING, **about)


def tied() -> Head:
    rng = np.random.default_rng(99)
    return Head.tied(rng.standard_normal((CLASSES, 8)), rng.standard_normal(CLASSES), dims=NESTING.dims)


def separate() -> Head:
    rng = np.random.default_rng(98)
    weights = {m: rng.standard_normal((CLASSES, m)) for m in NESTING.dims}
    return Head.separate(weights, {m: rng.standard_normal(CLASSES) for m in weights})


def test_a_head_says_what_plain_loops_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_set, "_BATCH_ENTRIES", 80)   # ten rows at a time
    for head, dims in [(tied(), None), (tied(), [3, 7, 8]), (separate(), None), (separate(), [8, 2, 2])]:
        queries = clustered(53, 1, unknown=4, head=head)
        said = predict(queries, dims=dims)
        assert said.by == "head"
        assert said.dims == tuple(sorted({*(dims or NESTING.dims)}))
        assert queries.labels is not None
        assert said.rows.tolist() == [row for row in range(53) if queries.labels[row] != -1]
        assert said.labels.tolist() == queries.labels[said.rows].tolist()
        for place, dim in enumerate(said.dims):
            entry = 8 if head.kind == "tied" else dim
            weight, bias = (np.array(part[entry], np.float64) for part in (head.weights, head.biases))
            for column, row in enumerate(said.rows):
                logits = weight[:, :dim] @ queries.vectors[row, :dim].astype(np.float64) + bias
                powers = [math.exp(value) for value in logits]
                assert said.predicted[place, column] == max(range(CLASSES), key=powers.__getitem__)
                assert said.confidence[place, column] == pytest.approx(max(powers) / sum(powers), rel=1e-4)


def test_without_a_head_the_nearest_neighbour_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH", 80)
    database, queries = clustered(60, 1, unknown=8), clustered(41, 2, unknown=3)
    said = predict(queries, database)
    assert (said.by, said.dims) == ("1-NN", (2, 4, 8))
    assert database.labels is not None
    assert queries.labels is not None
    assert said.rows.tolist() == np.flatnonzero(queries.labels != -1).tolist()
    for place, dim in enumerate(said.dims):
        x = [row / np.linalg.norm(row) for row in database.vectors[:, :dim].astype(np.float64)]
        for column, row in enumerate(said.rows):
            query = queries.vectors[row, :dim].astype(np.float64)
            cosines = [float(query @ one) / float(np.linalg.norm(query)) for one in x]
            best = max(range(60), key=cosines.__getitem__)
            assert said.predicted[place, column] == database.labels[best]
            assert said.confidence[place, column] == pytest.approx(cosines[best], abs=1e-6)
    assert (said.predicted == -1).any()   # a neighbour of unknown class is found, and is wrong
    assert not said.correct[said.predicted == -1].any()


@pytest.mark.parametrize("head", [None, tied(), separate()], ids=["1-NN", "tied", "separate"])
def test_the_accuracy_is_that_of_the_evaluation(head: Head | None) -> None:
    database = clustered(60, 1)
    assert database.labels is not None
    database = database.select(database.labels != 3)   # a class that the database lacks
    queries = clustered(80, 2, unknown=5, head=head)
    found, said = evaluate(database, queries, interpolated=False, progress=False), predict(queries, database)
    if head is None:
        assert len(said.rows) == found.queries < 75
        assert said.correct.mean(axis=1).tolist() == pytest.approx([row.top1 for row in found.rows])
    else:   # a head may know what the database lacks
        assert len(said.rows) == 75
        known = said.labels != 3
        assert said.correct[:, known].mean(axis=1).tolist() == pytest.approx([row.head_top1 for row in found.rows])


def test_scikit_learn_agrees() -> None:
    neighbors, metrics = pytest.importorskip("sklearn.neighbors"), pytest.importorskip("sklearn.metrics")
    database, queries = clustered(90, 3), clustered(70, 4)
    said = predict(queries, database, dims=[3, 5, 8])
    for place, dim in enumerate(said.dims):
        model = neighbors.KNeighborsClassifier(1, metric="cosine").fit(database.at(dim), database.labels)
        assert said.predicted[place].tolist() == model.predict(queries.at(dim)).tolist()
        score = metrics.accuracy_score(queries.labels, said.predicted[place])
        assert said.correct[place].mean() == pytest.approx(score)


def test_ties_go_to_the_smaller() -> None:
    queries = EmbeddingSet.of([[1.0, 0.0]], labels=[1])
    database = EmbeddingSet.of([[0, 1], [3, 0], [2, 0]], labels=[0, 4, 1])
    assert predict(queries, database, dims=[2]).predicted.tolist() == [[4]]
    head = Head.tied([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], dims=[2])
    tie = predict(EmbeddingSet.of([[1.0, 0.0]], labels=[1], head=head))
    assert tie.predicted.tolist() == [[1]]
    assert tie.confidence[0, 0] == pytest.approx(math.e / (2 * math.e + 1))


def test_large_logits_keep_a_confidence() -> None:
    head = Head.tied(np.eye(3) * 1e4, dims=[3])
    said = predict(EmbeddingSet.of([[3.0, 1.0, 0.0]], labels=[0], head=head))
    assert said.confidence.tolist() == [[1.0]]


def test_vectors_of_one_dim_are_read_at_its_halves() -> None:
    x = np.random.default_rng(0).standard_normal((6, 32))
    mine = EmbeddingSet.of(x, labels=[0, 1, 2, 0, 1, 2])
    said = predict(mine, mine.select(range(len(mine))))
    assert said.dims == (8, 16, 32)
    assert said.correct.all()   # each finds itself
    assert said.confidence == pytest.approx(1)
    assert said.confidence.max() <= 1


def test_what_cannot_be_predicted() -> None:
    queries, database = clustered(20, 1), clustered(30, 2)
    with pytest.raises(EmbeddingsError, match=r"need a head, or a database.*got memory without.*give the"):
        predict(queries)
    bare = EmbeddingSet.of(queries.vectors)
    with pytest.raises(EmbeddingsError, match="the queries must have labels"):
        predict(bare, database)
    with pytest.raises(EmbeddingsError, match="the queries must have labels"):
        predict(EmbeddingSet.of(queries.vectors, head=tied()))
    with pytest.raises(EmbeddingsError, match="the database must have labels"):
        predict(queries, bare)
    with pytest.raises(EmbeddingsError, match=r"database and queries must have the same number .*got 3 and 8"):
        predict(queries, EmbeddingSet.of(np.ones((2, 3)), labels=[0, 1]))
    named = [clustered(9, 1, classes=[f"{name}{i}" for i in range(CLASSES)]) for name in "ab"]
    with pytest.raises(EmbeddingsError, match="same list of classes"):
        predict(*named)
    with pytest.raises(EmbeddingsError, match=r"more than one class.*got only class 2"):
        predict(queries, EmbeddingSet.of(queries.vectors, labels=[2] * 20))
    for labels in ([-1] * 20, [77] * 20):
        strangers = EmbeddingSet.of(queries.vectors, labels=labels)
        with pytest.raises(EmbeddingsError, match="some queries must be of a known class"):
            predict(strangers, database)
        with pytest.raises(EmbeddingsError, match="some queries must be of a known class"):
            predict(queries, strangers)
    with pytest.raises(EmbeddingsError, match="some queries must be of a known class"):
        predict(EmbeddingSet.of(queries.vectors, labels=[-1] * 20, head=tied()))
    with pytest.raises(EmbeddingsError, match=r"and every class of the queries.*got 5 classes, labels up to 77"):
        predict(EmbeddingSet.of(queries.vectors, labels=[77] * 20, head=tied()))
    with pytest.raises(EmbeddingsError, match=r"at least two classes.*got 1 classes"):
        predict(EmbeddingSet.of(np.ones((2, 3)), labels=[0, 0], head=Head.tied(np.ones((1, 3)), dims=[3])))


def test_dims_that_do_not_fit() -> None:
    queries, database = clustered(20, 1), clustered(30, 2)
    with pytest.raises(NestingError, match="must not exceed the 8"):
        predict(queries, database, dims=[4, 16])
    with pytest.raises(NestingError, match="must not exceed the 8"):
        predict(clustered(20, 1, head=tied()), dims=[4, 16])
    with pytest.raises(NestingError, match=r"a separate head.*got 3"):
        predict(clustered(20, 1, head=separate()), dims=[2, 3])


def damaged(embeddings: EmbeddingSet, path: Path) -> EmbeddingSet:
    """The set on disk, with its last number turned NaN behind its back."""
    EmbeddingSet.write(
        path, embeddings.vectors, labels=embeddings.labels, nesting=embeddings.nesting, head=embeddings.head
    )
    data = bytearray((path / "vectors.npy").read_bytes())
    data[-4:] = np.float32(np.nan).tobytes()
    (path / "vectors.npy").write_bytes(data)
    return EmbeddingSet.open(path)


def test_vectors_that_turned_nan_are_refused(tmp_path: Path) -> None:
    queries, database = clustered(20, 1), clustered(30, 2)
    with pytest.raises(EmbeddingsError, match=r"every vector of the queries must be finite.*row 19"):
        predict(damaged(clustered(20, 1, head=tied()), tmp_path / "head"))
    with pytest.raises(EmbeddingsError, match=r"finite.*row 29"):
        predict(queries, damaged(database, tmp_path / "database"))
    with pytest.raises(EmbeddingsError, match=r"finite.*row 19"):
        predict(damaged(queries, tmp_path / "queries"), database)
