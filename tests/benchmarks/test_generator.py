import numpy as np
import pytest
from generator import (
    BATCH,
    Generator,
    Trial,
    axes_of,
    bisect,
    calibrate,
    compared,
    drawn_arrays,
    fit,
    neighbours,
    write,
)

from matryo import EmbeddingSet, Nesting

NESTING = Nesting([4, 8, 16])


def real(rectify=False, confused=0.3):
    """Classes with means that differ in the first columns most; some queries look like another class."""
    rng = np.random.default_rng(0)
    means = 3 * rng.standard_normal((12, 16)) / np.arange(1, 17) ** 0.5
    sides = []
    for count, share in ((3000, 0.1), (800, confused)):
        labels = rng.integers(12, size=count)
        look = np.where(rng.random(count) < share, rng.integers(12, size=count), labels)
        vectors = means[look] + rng.standard_normal((count, 16)) * np.linspace(1.2, 0.4, 16)
        sides.append(EmbeddingSet.of(np.maximum(vectors, 0) if rectify else vectors, labels=labels, nesting=NESTING))
    return sides


def test_axes_have_the_covariance_of_the_vectors():
    rng = np.random.default_rng(1)
    vectors = (rng.standard_normal((5000, 6)) @ rng.standard_normal((6, 6))).astype("f4")
    axes, rest = axes_of(vectors)
    np.testing.assert_allclose(axes.T @ axes + np.diag(rest**2), np.cov(vectors.T, bias=True), rtol=1e-3, atol=1e-3)


def test_of_few_vectors_the_axes_are_fewer():
    vectors = np.random.default_rng(1).standard_normal((5, 8)).astype("f4")
    axes, rest = axes_of(vectors)
    assert axes.shape == (4, 8)
    np.testing.assert_allclose(axes.T @ axes + np.diag(rest**2), np.cov(vectors.T, bias=True), atol=1e-5)


def test_neighbours_are_the_other_classes_by_distance():
    means = np.random.default_rng(2).standard_normal((7, 3)).astype("f4")
    found = neighbours(means)
    for i, row in enumerate(found):
        distances = np.linalg.norm(means[row] - means[i], axis=1)
        assert i not in row and len(set(row)) == 6 and (np.diff(distances) >= 0).all()


def test_drawn_class_means_have_exactly_the_fitted_covariance():
    model = fit(*real())
    means = model.means(50, seed=3)
    np.testing.assert_allclose(means.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(np.cov(means.T, bias=True), model.between.T @ model.between, atol=1e-3)


def test_confusion_is_counted_and_drawn():
    model = fit(*real(confused=0.4))
    # Of those that look like a class drawn at random, one in twelve looks like its own.
    assert model.confused[1] == pytest.approx(0.4 * 11 / 12, abs=0.05)
    labels, look, _ = model.parts(1, BATCH, neighbours(model.means(12, 0)), np.random.default_rng(0))
    assert (labels != look).mean() == pytest.approx(model.confused[1], abs=1e-3)


def test_a_longer_draw_begins_with_a_shorter_one():
    model = fit(*real())
    means = model.means(12, seed=0)
    short = next(model.draw(0, 100, means, seed=5))
    long = next(model.draw(0, 300, means, seed=5))
    np.testing.assert_array_equal(short[1], long[1][:100])
    other = next(model.draw(0, 100, means, seed=6))
    assert not np.array_equal(short[1], other[1])


def test_rectified_where_the_real_ones_are():
    assert not fit(*real()).rectified
    model = fit(*real(rectify=True))
    vectors, _, queries, _ = drawn_arrays(model, (200, 50), 12, seed=0)
    assert model.rectified and vectors.min() == 0 and queries.min() == 0


def test_calibrated_draws_have_the_map_of_the_real_ones():
    database, queries = real()
    goal = compared(database.vectors, database.labels, queries.vectors, queries.labels, NESTING)["map@10"]
    model = fit(database, queries)
    trials = [Trial(model, (3000, 800), 12, seed) for seed in (100, 101, 102)]
    model = calibrate(model, {int(dim): value for dim, value in goal.items()}, trials)
    drawn = [compared(*drawn_arrays(model, (3000, 800), 12, seed), NESTING)["map@10"] for seed in range(6)]
    for dim, value in goal.items():
        assert np.mean([one[dim] for one in drawn]) == pytest.approx(value, abs=0.05)   # 800 queries of 12 classes


def test_saved_and_loaded_it_draws_the_same(tmp_path):
    model = fit(*real(rectify=True))
    model.save(tmp_path / "model.safetensors")
    again = Generator.load(tmp_path / "model.safetensors")
    assert (again.nesting, again.confused, again.factors, again.title) == (
        model.nesting, model.confused, model.factors, model.title)  # fmt: skip
    ours, theirs = (next(one.draw(0, 100, one.means(12, 0), seed=1))[0] for one in (model, again))
    np.testing.assert_allclose(ours, theirs, atol=0.05)   # half precision


def test_written_folders_hold_what_is_drawn(tmp_path):
    model = fit(*real())
    places = write(model, (300, 40), 12, 7, tmp_path, dtype="float32")
    vectors, labels, queries, asked = drawn_arrays(model, (300, 40), 12, seed=7)
    for place, wanted, known in zip(places, (vectors, queries), (labels, asked), strict=True):
        opened = EmbeddingSet.open(place)
        np.testing.assert_array_equal(opened.vectors, wanted)
        np.testing.assert_array_equal(opened.labels, known)
        assert opened.nesting.dims == NESTING.dims
    assert write(model, (300, 40), 12, 7, tmp_path) == places   # they stay


def test_bisect_ends_where_nothing_suits():
    assert bisect(lambda x: -x, 0, 1, goal=-2, steps=20) == pytest.approx(1)
    assert bisect(lambda x: -x, 0, 1, goal=2, steps=20) == pytest.approx(0, abs=1e-5)
