"""The rungs of a retrofit as baselines: as `Retrofit` fits them, and measured by `evaluate` as any other."""

import numpy as np
import pytest

from matryo import EmbeddingSet, Nesting, Retrofit
from matryo.baselines import baseline
from matryo.errors import EmbeddingsError
from matryo.evaluation import Subject, measure_baseline

DIM = 16


def made(rows=600, seed=0, nesting=(4, DIM)):
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(9).normal(size=(DIM, DIM)))[0]
    means = np.random.default_rng(8).normal(size=(6, DIM)) * np.where(np.arange(DIM) < 12, 0, 0.6)
    labels = rng.integers(6, size=rows)
    vectors = (rng.normal(size=(rows, DIM)) * np.geomspace(2, 0.2, DIM) + means[labels]) @ turn
    return EmbeddingSet.of(vectors, labels=labels, nesting=None if nesting is None else Nesting(nesting))


def test_retrofit_is_the_map_that_retrofit_takes():
    train = made(nesting=None)
    mapped = baseline("retrofit").fit(train).apply(train).vectors
    np.testing.assert_allclose(mapped, Retrofit.fit(train).transform(train.vectors / np.linalg.norm(
        train.vectors, axis=1, keepdims=True)), atol=1e-5)  # fmt: skip


def test_blocks_keep_the_span_and_classes_find_the_classes():
    train, queries = made(), made(200, seed=1)
    blocks = baseline("blocks").fit(train)
    assert not blocks.axes[:4, 4:].any() and not blocks.axes[4:, :4].any()
    subject = Subject("m", 0, train, {"test": queries}, asked_dims=(4,), progress=False)
    (svd,), (classes,) = (measure_baseline(subject, name) for name in ("svd", "classes"))
    assert classes.rows[0].top1 > svd.rows[0].top1 + 0.15 and classes.model == "m + rotation for classes"


@pytest.mark.parametrize("name", ["learned", "adaptor"])
def test_rungs_that_are_trained(name):
    pytest.importorskip("torch")
    train = made(300)
    fitted = baseline(name).fit(train)
    mapped = fitted.apply(train).vectors
    assert np.isfinite(mapped).all() and (fitted.correction is not None) == (name == "adaptor")
    np.testing.assert_array_equal(mapped, baseline(name).fit(train).apply(train).vectors)


def test_what_a_rung_needs():
    with pytest.raises(EmbeddingsError, match=r"the rung blocks needs a nesting of several dims"):
        baseline("blocks").fit(made(nesting=None))
    with pytest.raises(EmbeddingsError, match=r"the rung classes needs labels"):
        baseline("classes").fit(EmbeddingSet.of(made().vectors))
