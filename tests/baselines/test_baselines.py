"""Baselines against scikit-learn, explicit low-rank approximations, and what each map must leave as it was."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from matryo.baselines import (
    DRAWN,
    NAMES,
    PCA,
    RUNGS,
    SVD,
    ClassifierSVD,
    RandomFeatures,
    RandomProjection,
    Truncation,
    baseline,
)
from matryo.embeddings import EmbeddingSet, Head
from matryo.errors import EmbeddingsError, InputError
from matryo.nesting import Nesting, truncate

DIM, CLASSES = 8, 5


def made(count: int = 60, seed: int = 0, head: Head | None = None, **about: Any) -> EmbeddingSet:
    rng = np.random.default_rng(seed)
    shape = np.random.default_rng(1).standard_normal((DIM, DIM))   # neither round nor centred
    vectors = rng.standard_normal((count, DIM)) @ shape + np.linspace(-1, 2, DIM)
    return EmbeddingSet.of(vectors, labels=rng.integers(0, CLASSES, count), head=head, **about)


def made_head(kind: str = "separate", dim: int = DIM) -> Head:
    rng = np.random.default_rng(2)
    weight, bias = rng.standard_normal((CLASSES, dim)), rng.standard_normal(CLASSES)
    if kind == "tied":
        return Head.tied(weight, bias, dims=(dim,))
    return Head.separate({2: weight[:, 2:4], dim: weight}, {2: 2 * bias, dim: bias})


def doubles(values: Any) -> np.ndarray:
    return np.asarray(values, np.float64)


def cosines(vectors: Any) -> np.ndarray:
    unit = truncate(doubles(vectors), np.shape(vectors)[1])
    return np.asarray(unit @ unit.T)


# Columns as they are


def test_truncation_changes_nothing() -> None:
    embeddings = made(head=made_head(), nesting=Nesting([2, 8]))
    mapped = Truncation().fit(embeddings).apply(embeddings)
    np.testing.assert_array_equal(mapped.vectors, embeddings.vectors)
    assert mapped.nesting == embeddings.nesting
    assert mapped.head is not None
    assert mapped.head.kind == "tied"   # the full-dim head read at prefixes, not the head trained for dim 2
    weight, bias = made_head().weights[DIM], made_head().biases[DIM]
    for dim in (1, 2, 5, 8):
        expected = doubles(embeddings.vectors)[:, :dim] @ doubles(weight)[:, :dim].T + doubles(bias)
        np.testing.assert_allclose(mapped.head.logits(mapped.vectors, dim), expected, atol=1e-4)


def test_random_features_are_the_columns_in_another_order() -> None:
    embeddings = made(head=made_head())
    orders = set()
    for seed in range(8):
        mapped = RandomFeatures(seed).fit(embeddings).apply(embeddings)
        same = (embeddings.vectors[:, None, :] == mapped.vectors[:, :, None]).all(axis=0)
        order = same.argmax(axis=1).tolist()
        assert sorted(order) == list(range(DIM))
        orders.add(tuple(order))
        np.testing.assert_array_equal(mapped.vectors, embeddings.vectors[:, order])
        assert mapped.head is not None
        np.testing.assert_array_equal(mapped.head.weights[DIM], made_head().weights[DIM][:, order])
    assert len(orders) == 8
    again = RandomFeatures(3).fit(embeddings).apply(embeddings)
    np.testing.assert_array_equal(again.vectors, RandomFeatures(3).fit(made(9, 7)).apply(embeddings).vectors)


# Better axes


def test_pca_is_that_of_scikit_learn_up_to_sign() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    train, test = made(), made(20, seed=5)
    for normalize in (True, False):
        given = [truncate(doubles(one.vectors), DIM, normalize) for one in (train, test)]
        expected = decomposition.PCA(DIM).fit(given[0]).transform(given[1])
        found = PCA(normalize).fit(train).apply(test).vectors
        signs = np.sign((found * expected).sum(axis=0))
        np.testing.assert_allclose(found * signs, expected, atol=1e-5)


@pytest.mark.parametrize("normalize", [True, False])
def test_pca_decorrelates_and_orders_by_variance(normalize: bool) -> None:
    train = made(200)
    covariance = np.cov(doubles(PCA(normalize).fit(train).apply(train).vectors).T)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-4 * covariance.max())
    assert (np.diff(np.diag(covariance)) <= 1e-6).all()


@pytest.mark.parametrize("normalize", [True, False])
def test_svd_prefixes_are_the_best_low_rank_approximations(normalize: bool) -> None:
    train = made()
    given = truncate(doubles(train.vectors), DIM, normalize)
    u, s, rows = np.linalg.svd(given, full_matrices=False)
    fitted = SVD(normalize).fit(train)
    mapped = doubles(fitted.apply(train).vectors)
    for rank in (1, 3, 8):
        best = (u[:, :rank] * s[:rank]) @ rows[:rank]
        np.testing.assert_allclose(mapped[:, :rank] @ fitted.axes[:, :rank].T, best, atol=1e-4)


def test_at_full_dim_svd_keeps_every_cosine_and_pca_every_distance() -> None:
    train, test = made(), made(20, seed=5)
    np.testing.assert_allclose(cosines(SVD().fit(train).apply(test).vectors), cosines(test.vectors), atol=1e-5)
    unit, mapped = truncate(doubles(test.vectors), DIM), doubles(PCA().fit(train).apply(test).vectors)
    before, after = (((x[:, None] - x[None]) ** 2).sum(-1) for x in (unit, mapped))
    np.testing.assert_allclose(after, before, atol=1e-5)


@pytest.mark.parametrize("kind", ["separate", "tied"])
@pytest.mark.parametrize("method", [PCA(normalize=False), SVD(normalize=False), ClassifierSVD(), RandomFeatures(1)])
def test_a_head_carried_along_gives_its_logits_at_full_dim(method: Any, kind: str) -> None:
    head = made_head(kind)
    train, test = made(head=head), made(20, seed=5, head=head)
    mapped = method.fit(train).apply(test)
    assert mapped.head is not None
    np.testing.assert_allclose(
        mapped.head.logits(mapped.vectors, DIM), head.logits(np.asarray(test.vectors), DIM), atol=1e-4
    )


def test_a_head_is_not_carried_where_that_would_be_wrong() -> None:
    train = made(head=made_head())
    for method in (PCA(), SVD(), RandomProjection(), RandomProjection(normalize=False)):
        assert method.fit(train).apply(train).head is None
    assert Truncation().fit(train).apply(made()).head is None


def test_a_head_without_bias_or_of_fewer_columns() -> None:
    bare = Head.tied(np.random.default_rng(2).standard_normal((CLASSES, 4)), dims=(4,))
    train = made(head=bare)
    for method in (PCA(normalize=False), ClassifierSVD()):
        mapped = method.fit(train).apply(train)
        assert mapped.head is not None
        expected = bare.logits(np.asarray(train.vectors), 4)
        np.testing.assert_allclose(mapped.head.logits(mapped.vectors, DIM), expected, atol=1e-4)


def test_the_classifiers_svd_gives_the_logits_of_each_low_rank_approximation() -> None:
    head = made_head()
    train, test = made(head=head), made(20, seed=5, head=head)
    mapped = ClassifierSVD().fit(train).apply(test)
    u, s, rows = np.linalg.svd(doubles(head.weights[DIM]))
    assert mapped.head is not None
    for rank in range(1, DIM + 1):
        weight = (u[:, :rank] * s[:rank]) @ rows[: min(rank, CLASSES)]   # beyond the rank nothing is added
        expected = doubles(test.vectors) @ weight.T + doubles(head.biases[DIM])
        np.testing.assert_allclose(mapped.head.logits(mapped.vectors, rank), expected, atol=1e-4)
    np.testing.assert_allclose(cosines(mapped.vectors), cosines(test.vectors), atol=1e-5)


def test_few_vectors_still_give_whole_axes() -> None:
    train = made(3)
    for method in (PCA(), SVD()):
        axes = method.fit(train).axes
        np.testing.assert_allclose(axes.T @ axes, np.eye(DIM), atol=1e-12)
    assert np.abs(doubles(PCA().fit(train).apply(train).vectors)[:, 2:]).max() < 1e-6   # three points span two


def test_a_large_mean_does_not_drown_the_variance() -> None:
    rng = np.random.default_rng(0)
    spread = rng.standard_normal((400, 4)) * [1, 8, 2, 4]
    train = EmbeddingSet.of(3000 + spread)
    axes = PCA(normalize=False).fit(train).axes
    assert np.abs(axes).argmax(axis=0).tolist() == [1, 3, 2, 0]


# Random projection


def test_every_prefix_of_a_random_projection_keeps_distances() -> None:
    train, dims, seeds = made(12, seed=4), (2, 4, 8), range(400)
    pairs = np.triu_indices(12, 1)
    unit = truncate(doubles(train.vectors), DIM)
    before = ((unit[:, None] - unit[None]) ** 2).sum(-1)[pairs]
    ratios: dict[int, list[np.ndarray]] = {dim: [] for dim in dims}
    for seed in seeds:
        mapped = doubles(RandomProjection(seed).fit(train).apply(train).vectors)
        for dim in dims:
            cut = mapped[:, :dim] * np.sqrt(DIM / dim)
            ratios[dim].append(((cut[:, None] - cut[None]) ** 2).sum(-1)[pairs] / before)
    for dim in dims:   # a χ² with dim degrees of freedom over dim: mean 1, variance 2 / dim
        every = np.array(ratios[dim])
        standard_error = np.sqrt(2 / dim / len(seeds))
        assert np.abs(every.mean(axis=0) - 1).max() < 5 * standard_error
        assert every.var(axis=0).mean() == pytest.approx(2 / dim, rel=0.25)


def test_a_projection_is_the_same_for_queries_and_database() -> None:
    fitted = RandomProjection(1).fit(made())
    one, other = made(20, seed=5), made(20, seed=5)
    np.testing.assert_array_equal(fitted.apply(one).vectors, fitted.apply(other).vectors)
    assert not np.allclose(fitted.axes, RandomProjection(2).fit(made()).axes)


# The interface


CLOSED = [name for name in NAMES if name not in RUNGS]   # test_ladder_rungs.py has the rungs


@pytest.mark.parametrize("name", CLOSED)
def test_every_baseline_by_name(name: str) -> None:
    train = made(head=made_head(), nesting=Nesting([2, 8]), model="m", dataset="toy", split="train")
    mapped = baseline(name, seed=1).fit(train).apply(train)
    assert mapped.labels is train.labels
    assert (mapped.nesting, mapped.manifest.title, mapped.count, mapped.dim) == (train.nesting, "m", 60, DIM)
    other = baseline(name, seed=2).fit(train).apply(train)
    assert np.array_equal(mapped.vectors, other.vectors) == (name not in DRAWN)
    # Options are values: equal ones are equal, and none can change.
    assert baseline(name, seed=1) == baseline(name, seed=1)
    with pytest.raises(FrozenInstanceError):
        baseline(name).anything = 1   # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CLOSED)
def test_half_precision_on_disk_and_batches_make_no_difference(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = made_head()
    half = EmbeddingSet.write(tmp_path / "half", made().vectors, dtype="float16", head=head)
    wide = EmbeddingSet.of(np.asarray(half.vectors, np.float32), head=head)
    expected = baseline(name).fit(wide).apply(wide).vectors
    monkeypatch.setattr("matryo.embeddings.set._BATCH_BYTES", 7 * 4 * DIM)
    found = baseline(name).fit(half).apply(half).vectors
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-5)


def test_what_cannot_be_mapped(tmp_path: Any) -> None:
    with pytest.raises(InputError, match=r"no such baseline \(got 'umap'\): choose one of truncate, random, pca"):
        baseline("umap")
    with pytest.raises(EmbeddingsError, match=r"fitted on 8 columns needs vectors with 8 columns \(got 3\): fit it"):
        PCA().fit(made()).apply(EmbeddingSet.of(np.ones((2, 3))))
    with pytest.raises(EmbeddingsError, match=r"needs embeddings with a head \(got memory without a head\)"):
        ClassifierSVD().fit(made())
    with pytest.raises(EmbeddingsError, match=r"at least one vector \(got 0\)"):
        SVD().fit(EmbeddingSet.of(np.ones((0, 3))))
    damaged = EmbeddingSet.write(tmp_path / "x", made().vectors)
    path = damaged.path / "vectors.npy"
    data = bytearray(path.read_bytes())
    data[-4:] = np.float32(np.nan).tobytes()
    path.write_bytes(data)
    damaged = EmbeddingSet.open(damaged.path)
    with pytest.raises(EmbeddingsError, match=r"fitted on finite vectors \(got NaN or infinity in row 59 of"):
        PCA().fit(damaged)
    with pytest.raises(EmbeddingsError, match="the first is row 59"):
        PCA().fit(made()).apply(damaged)
