"""Means against plain loops, and against clusters that are known."""

from __future__ import annotations

import numpy as np
import pytest
from needs_core import needs_core

from matryo.compiled import require_core
from matryo.retrieve.guides.partition.means import assigned_by_numpy, find_means, nearest_mean, two_means
from matryo.retrieve.vectors.blocks import tiles


def planted(rng: np.random.Generator, clusters: int, each: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Tight clusters around far points, shuffled, and the number of each vector's cluster."""
    centres = rng.standard_normal((clusters, width)) * 10
    number = rng.permutation(np.repeat(np.arange(clusters), each))
    return (centres[number] + rng.standard_normal((len(number), width)) * 0.01).astype(np.float32), number


@pytest.mark.parametrize("round_", [False, True])
def test_the_nearest_mean_is_the_nearest(round_: bool) -> None:
    rng = np.random.default_rng(0)
    vectors, means = rng.standard_normal((200, 6)).astype("f4"), rng.standard_normal((9, 6)).astype("f4")
    if round_:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        means /= np.linalg.norm(means, axis=1, keepdims=True)
    for vector, found in zip(vectors, nearest_mean(vectors, means, round_=round_), strict=True):
        distances = [float(np.sum((vector.astype(float) - mean) ** 2)) for mean in means]
        assert distances[found] <= min(distances) + 1e-5


@pytest.mark.parametrize("round_", [False, True])
def test_the_second_mean_has_the_smallest_loss_of_soar(round_: bool) -> None:
    rng = np.random.default_rng(0)
    vectors, means = rng.standard_normal((200, 6)).astype("f4"), rng.standard_normal((9, 6)).astype("f4")
    vectors[3] = means[4]   # no residual
    if round_:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        means /= np.linalg.norm(means, axis=1, keepdims=True)
    chosen = two_means(vectors, means, round_=round_)
    np.testing.assert_array_equal(chosen[:, 0], nearest_mean(vectors, means, round_=round_))
    others = 0
    for vector, (first, second) in zip(vectors.astype(float), chosen.tolist(), strict=True):
        residual, losses = vector - means[first], {}
        length = float(np.linalg.norm(residual))
        for number, mean in enumerate(means.astype(float)):
            if number != first:   # ‖r₂‖² + (r₂ · r₁ / ‖r₁‖)²
                own = vector - mean
                parallel = float(own @ residual) / length if length else 0.0
                losses[number] = float(own @ own) + parallel**2
        assert second != first and losses[second] <= min(losses.values()) + 1e-4
        others += second != min(losses, key=lambda number: float(np.sum((vector - means[number]) ** 2)))
    assert others > 20   # the second is not always the second nearest


@needs_core
@pytest.mark.parametrize("round_", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (11, 3, 7), (40, 33, 16), (400, 150, 45), (100, 97, 200), (30, 1000, 64)])
def test_the_core_assigns_like_numpy_in_float64(shape: tuple[int, int, int], round_: bool) -> None:
    count, many, width = shape
    rng = np.random.default_rng(count)
    for scale, shift in ((1.0, 0.0), (1.0, 1000.0), (1e-12, 0.0), (1e-34, 0.0), (1e12, 0.0)):
        vectors = ((rng.standard_normal((count, width)) + shift) * scale).astype("f4")
        means = ((rng.standard_normal((many, width)) + shift) * scale).astype("f4")
        means[many // 2 :] = means[: many - many // 2]   # ties
        if shift == 0:
            means[rng.integers(many)] *= 1e3   # an outlier
        vectors[rng.integers(0, count, count // 3)] = means[0]
        for copies in (1, 2):
            chosen = np.empty((count, copies), np.int64)
            require_core().Means(means, not round_).nearest(vectors, chosen, 2)
            np.testing.assert_array_equal(chosen, assigned_by_numpy(vectors, means, copies, round_))


@needs_core
def test_bad_shapes_are_refused_before_anything_is_read() -> None:
    vectors, means, chosen = np.ones((5, 3), np.float32), np.ones((2, 3), np.float32), np.zeros((5, 1), np.int64)
    for call in (
        lambda: require_core().Means(means[:, :2].copy(), True).nearest(vectors, chosen, 1),
        lambda: require_core().Means(means[:0], True).nearest(vectors, chosen, 1),
        lambda: require_core().Means(means, True).nearest(vectors, chosen[:4], 1),
        lambda: require_core().Means(means, True).nearest(vectors, np.zeros((5, 3), np.int64), 1),
        lambda: require_core().Means(means, True).nearest(vectors, chosen, 0),
        lambda: require_core().Means(means[:, :0].copy(), True).nearest(vectors[:, :0].copy(), chosen, 1),
    ):
        with pytest.raises(ValueError):
            call()


def test_a_single_mean_is_both() -> None:
    assert two_means(np.ones((3, 2), np.float32), np.ones((1, 2), np.float32), round_=False).tolist() == [[0, 0]] * 3


def test_two_means_of_equal_means_are_two() -> None:
    chosen = two_means(np.ones((5, 3), np.float32), np.ones((4, 3), np.float32), round_=False)
    assert (chosen[:, 0] != chosen[:, 1]).all()


def test_means_of_known_clusters_are_found() -> None:
    rng = np.random.default_rng(1)
    vectors, number = planted(rng, 5, 40, 8)
    means = find_means(vectors, 25, round_=False, rng=rng)   # more than there are, as some begin in the same cluster
    near = nearest_mean(vectors, means, round_=False)
    for one in np.unique(near):
        assert len(set(number[near == one])) == 1


@pytest.mark.parametrize("round_", [False, True])
def test_vectors_are_nearer_to_their_means_than_to_where_these_began(round_: bool) -> None:
    vectors = np.random.default_rng(2).standard_normal((500, 4)).astype("f4")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    def spread(means: np.ndarray) -> float:
        return float(np.square(vectors - means[nearest_mean(vectors, means, round_=round_)]).sum())

    means = find_means(vectors, 20, round_=round_, rng=np.random.default_rng(3))
    assert spread(means) < 0.9 * spread(vectors[np.random.default_rng(3).permutation(500)[:20]])
    if round_:
        np.testing.assert_allclose(np.linalg.norm(means, axis=1), 1, atol=1e-6)


def test_as_many_means_as_vectors_are_the_vectors() -> None:
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)
    means = find_means(vectors, 4, round_=False, rng=np.random.default_rng(0))
    assert sorted(means.tolist()) == vectors.tolist()


def test_equal_vectors_leave_no_mean_undefined() -> None:
    for round_ in (False, True):
        means = find_means(np.ones((50, 4), np.float32) / 2, 8, round_=round_, rng=np.random.default_rng(0))
        assert np.isfinite(means).all()
        np.testing.assert_allclose(means, 0.5, atol=0.01)


def test_tiles_cover_all_rows_in_order() -> None:
    for count, width in [(0, 3), (5, 1 << 30), (1 << 23, 1), (3, 1 << 21)]:
        found = list(tiles(count, width))
        assert [part.start for part in found] == [0, *(part.stop for part in found[:-1])][: len(found)]
        assert sum(part.stop - part.start for part in found) == count
