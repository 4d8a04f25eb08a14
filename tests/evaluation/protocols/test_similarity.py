"""Similarity span against every pair there is, a closed form, scikit-learn and plain loops."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import permutations, product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.evaluation import Relevance
from matryo.evaluation import cosines as cosines_module
from matryo.evaluation.protocols import similarity as module
from matryo.evaluation.protocols.similarity import Similarity, similarity_span
from matryo.nesting import Nesting, truncate

if TYPE_CHECKING:
    from pathlib import Path

NESTING = Nesting([2, 4, 8])


def clustered(count: int, seed: int = 0, classes: int = 4) -> EmbeddingSet:
    """Classes of unequal size, one row in ten of unknown class."""
    rng = np.random.default_rng(seed)
    labels = np.minimum(rng.geometric(0.4, count) - 1, classes - 1)
    vectors = np.random.default_rng(99).standard_normal((classes, 8))[labels] + rng.standard_normal((count, 8))
    labels[::10] = -1
    return EmbeddingSet.of(vectors, labels=labels, nesting=NESTING, model="m", dataset="toy", split="test")


def every_pair(one: EmbeddingSet, other: EmbeddingSet | None, dim: int) -> tuple[list[float], list[float]]:
    """The cosines of all positive and of all random pairs."""
    right = one if other is None else other
    assert one.labels is not None
    assert right.labels is not None
    places = permutations(range(len(one)), 2) if other is None else product(range(len(one)), range(len(right)))
    positive, random = [], []
    for i, j in places:
        if one.labels[i] == -1 or right.labels[j] == -1:
            continue
        x, y = one.vectors[i, :dim].astype(np.float64), right.vectors[j, :dim].astype(np.float64)
        cosine = float(x @ y) / (float(np.linalg.norm(x)) * float(np.linalg.norm(y)))
        random.append(cosine)
        if one.labels[i] == right.labels[j]:
            positive.append(cosine)
    return positive, random


@pytest.mark.parametrize("others", [None, clustered(25, seed=7)], ids=["one set", "two sets"])
def test_the_draws_settle_on_every_pair_there_is(others: EmbeddingSet | None) -> None:
    mine, pairs = clustered(30), 40_000
    found = similarity_span(mine, others, pairs=pairs, dims=[2, 5, 8], seed=3)
    assert (found.model, found.dataset, found.split, found.pairs) == ("m", "toy", "test", pairs)
    assert found.dims == (2, 5, 8)
    for place, dim in enumerate(found.dims):
        positive, random = map(np.array, every_pair(mine, others, dim))
        for cosines, mean, sd, shares in (
            (positive, found.positive_mean, found.positive_sd, found.positive),
            (random, found.random_mean, found.random_sd, found.random),
        ):
            assert mean[place] == pytest.approx(cosines.mean(), abs=5 * cosines.std() / math.sqrt(pairs))
            assert sd[place] == pytest.approx(cosines.std(), rel=0.03)
            assert sum(shares[place]) == pytest.approx(1)
            for share, low, high in zip(shares[place], found.edges, found.edges[1:], strict=False):
                p = ((low <= cosines) & (cosines < high)).mean()
                assert share == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / pairs) + 1e-9)
        auc = np.mean([(p > random).mean() + (p == random).mean() / 2 for p in positive])
        assert found.auc[place] == pytest.approx(auc, abs=5 / math.sqrt(2 * pairs))


def test_every_pair_is_as_likely_as_any_other() -> None:
    rng = np.random.default_rng(0)
    first, last = np.array([0, 0, 0, 3, 4, 4]), np.array([3, 3, 3, 4, 6, 6])
    for distinct in (True, False):
        possible = {(i, j) for i in range(6) for j in range(first[i], last[i]) if not (distinct and i == j)}
        i, j = module._draw_within(first, last, distinct, 60_000, rng)
        counts = Counter(zip(i.tolist(), j.tolist(), strict=True))
        assert {*counts} == possible
        expected = 60_000 / len(possible)
        assert all(abs(number - expected) < 5 * math.sqrt(expected) for number in counts.values())


def test_cosines_at_every_dim_are_those_of_truncated_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cosines_module, "_BATCH", 80)   # ten pairs at a time
    mine, rng = clustered(30), np.random.default_rng(4)
    rows = [rng.integers(0, 30, 77), rng.integers(0, 30, 77)]
    cosines = cosines_module.cosines((mine, mine), rows, NESTING)
    for dim, found in zip(NESTING.dims, cosines, strict=True):
        unit = truncate(mine.vectors.astype(np.float64), dim)
        assert found == pytest.approx((unit[rows[0]] * unit[rows[1]]).sum(axis=1), abs=1e-12)


def test_auc_with_ties_against_plain_loops_and_scikit_learn() -> None:
    rng = np.random.default_rng(2)
    positive, random = rng.integers(2, 9, 70) / 10, rng.integers(0, 7, 70) / 10
    wins = sum((p > r) + (p == r) / 2 for p in positive for r in random) / 70**2
    assert module._auc(positive, random) == pytest.approx(wins)
    metrics = pytest.importorskip("sklearn.metrics")
    score = metrics.roc_auc_score(np.repeat([1, 0], 70), np.concatenate([positive, random]))
    assert module._auc(positive, random) == pytest.approx(score)


def test_classes_at_right_angles_have_a_closed_form() -> None:
    mine = EmbeddingSet.of(np.repeat(np.eye(4), 6, axis=0) * 3, labels=np.repeat(np.arange(4), 6), nesting=Nesting([4]))
    found = similarity_span(mine, pairs=5000, dims=[4])
    assert (found.positive_mean, found.positive_sd) == ((1.0,), (0.0,))
    # A random pair has cosine 1 within a class and 0 otherwise; the former ties with every positive pair.
    assert found.auc[0] == pytest.approx(1 - found.random_mean[0] / 2)
    assert found.random_mean[0] == pytest.approx(5 / 23, abs=0.03)
    assert found.positive[0][-1] == 1
    assert found.edges == pytest.approx([i / 20 - 1 for i in range(41)])


def test_a_vector_and_its_double_lie_in_the_last_bin() -> None:
    x = np.random.default_rng(0).standard_normal((50, 8))
    found = similarity_span(EmbeddingSet.of(np.r_[x, 2 * x], labels=np.r_[:50, :50], nesting=NESTING), pairs=500)
    assert [shares[-1] for shares in found.positive] == [1, 1, 1]   # however the last bit of their cosine is rounded


def test_labels_that_say_nothing_give_one_half() -> None:
    rng = np.random.default_rng(0)
    mine = EmbeddingSet.of(rng.standard_normal((400, 16)), labels=rng.integers(0, 5, 400))
    assert similarity_span(mine).auc == pytest.approx([0.5, 0.5], abs=0.02)


def test_the_seed_decides_the_draw() -> None:
    mine = clustered(60)
    found = similarity_span(mine, pairs=300, seed=1)
    assert found.dims == NESTING.dims
    assert similarity_span(mine, pairs=300, seed=1) == found
    assert similarity_span(mine, pairs=300, seed=2) != found
    assert Similarity.from_figures(json.loads(json.dumps(found.to_figures(), allow_nan=False))) == found


def test_a_zero_vector_is_like_nothing() -> None:
    mine = EmbeddingSet.of(np.zeros((4, 2)), labels=[0, 0, 1, 1])
    found = similarity_span(mine, pairs=50, dims=[1, 2])
    assert found.positive_mean == found.random_mean == (0.0, 0.0)
    assert found.auc == (0.5, 0.5)


def test_pairs_across_two_sets_that_are_listed() -> None:
    rng = np.random.default_rng(0)
    images, texts = (EmbeddingSet.of(rng.standard_normal((n, 8)), nesting=NESTING) for n in (9, 14))   # no labels
    listed = [(0, 3), (1, 1), (8, 13), (2, 2)]
    found = similarity_span(images, texts, relevance=Relevance.of(listed), pairs=40_000, dims=[3, 8])
    for place, dim in enumerate(found.dims):
        x, y = (truncate(one.vectors.astype(np.float64), dim) for one in (images, texts))
        positive, random = np.array([x[i] @ y[j] for i, j in listed]), (x @ y.T).ravel()
        for cosines, mean in ((positive, found.positive_mean), (random, found.random_mean)):
            assert mean[place] == pytest.approx(cosines.mean(), abs=5 * cosines.std() / math.sqrt(40_000))
        assert found.auc[place] == pytest.approx(
            np.mean([(p > random).mean() + (p == random).mean() / 2 for p in positive]), abs=5 / math.sqrt(80_000)
        )
    with pytest.raises(InputError, match="among 14 queries and 9 candidates"):
        similarity_span(texts, images, relevance=Relevance.of(listed))
    with pytest.raises(EmbeddingsError, match="embeddings and others must have the same number of columns"):
        similarity_span(images, EmbeddingSet.of(np.ones((3, 5))), relevance=Relevance.of(listed))


def test_what_has_no_pairs() -> None:
    x = np.random.default_rng(0).standard_normal((4, 8))
    with pytest.raises(InputError, match=r"pairs must be at least 1 \(got 0\)"):
        similarity_span(clustered(20), pairs=0)
    with pytest.raises(EmbeddingsError, match="the embeddings must have labels"):
        similarity_span(EmbeddingSet.of(x))
    with pytest.raises(EmbeddingsError, match="the others must have labels"):
        similarity_span(clustered(20), EmbeddingSet.of(x))
    for labels in ([0, 1, 2, 3], [-1, -1, -1, -1], [0, 1, -1, -1]):
        with pytest.raises(EmbeddingsError, match=r"some class must have two rows.*label more examples"):
            similarity_span(EmbeddingSet.of(x, labels=labels))
    with pytest.raises(EmbeddingsError, match="some class must have two rows"):
        similarity_span(EmbeddingSet.of(x, labels=[0, 0, 1, 1]), EmbeddingSet.of(x, labels=[2, 2, 3, 3]))
    with pytest.raises(EmbeddingsError, match=r"rows of two classes.*got one class"):
        similarity_span(EmbeddingSet.of(x, labels=[5, 5, 5, -1]))
    with pytest.raises(EmbeddingsError, match=r"embeddings and others must have the same number .*got 8 and 4"):
        similarity_span(EmbeddingSet.of(x, labels=[0, 0, 1, 1]), EmbeddingSet.of(x[:, :4], labels=[0, 0, 1, 1]))
    with pytest.raises(NestingError, match="must not exceed the 8"):
        similarity_span(clustered(20), dims=[16])


def test_vectors_that_turned_nan_are_refused(tmp_path: Path) -> None:
    mine = clustered(20)
    EmbeddingSet.write(tmp_path / "x", mine.vectors, labels=mine.labels, nesting=NESTING)
    path = tmp_path / "x" / "vectors.npy"
    data = bytearray(path.read_bytes())
    data[-4:] = np.float32(np.nan).tobytes()
    path.write_bytes(data)
    with pytest.raises(EmbeddingsError, match=r"every vector of the embeddings must be finite.*from row 19"):
        similarity_span(EmbeddingSet.open(tmp_path / "x"), pairs=500)
