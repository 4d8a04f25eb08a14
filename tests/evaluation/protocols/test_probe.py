"""The linear probe against scikit-learn's logistic regression, finite differences, and what it must ignore."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

import matryo.evaluation.protocols.probe as module
from matryo.baselines import RandomFeatures
from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError, InputError, MissingExtra, NestingError
from matryo.evaluation.protocols.probe import Probe, linear_probe
from matryo.nesting import Nesting

CLASSES, DIM = 6, 12
quiet = partial(linear_probe, progress=False)


def made(count: int, seed: int, **about: Any) -> EmbeddingSet:
    """Clusters, far from the origin, whose columns have very different spreads."""
    spread = np.geomspace(3, 0.1, DIM)
    centres = np.random.default_rng(99).standard_normal((CLASSES, DIM))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    vectors = 5 + spread * (centres[labels] + 0.9 * rng.standard_normal((count, DIM)))
    return EmbeddingSet.of(vectors, labels=labels, nesting=Nesting([2, 6, 12]), **about)


def standardised(train: EmbeddingSet, test: EmbeddingSet, dim: int) -> tuple[np.ndarray, np.ndarray]:
    x, q = (np.asarray(one.vectors, np.float64)[:, :dim] for one in (train, test))
    scale = np.sqrt(((x - x.mean(axis=0)) ** 2).mean())
    return (x - x.mean(axis=0)) / scale, (q - x.mean(axis=0)) / scale


def test_the_accuracy_is_that_of_scikit_learn() -> None:
    pytest.importorskip("scipy")
    linear_model = pytest.importorskip("sklearn.linear_model")
    train, test = made(300, 1), made(400, 2)
    for l2 in (1e-1, 1e-3):
        found = quiet(train, test, l2=l2, tolerance=1e-12, iterations=500)
        assert found.dims == (2, 6, 12)
        for dim, top1, top5 in zip(found.dims, found.top1, found.top5, strict=True):
            x, q = standardised(train, test, dim)
            model = linear_model.LogisticRegression(C=1 / (len(x) * l2), tol=1e-10, max_iter=5000).fit(x, train.labels)
            assert top1 == pytest.approx(model.score(q, test.labels), abs=1 / 400 + 1e-9)   # one query on the border
            best = np.argsort(-model.decision_function(q), axis=1)[:, :5]
            assert top5 == pytest.approx((best == np.asarray(test.labels)[:, None]).any(axis=1).mean(), abs=1 / 400)
    assert found.top1[0] < found.top1[-1]


def test_the_classifier_is_that_of_scikit_learn() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    linear_model = pytest.importorskip("sklearn.linear_model")
    train, l2 = made(300, 1), 1e-2
    x = np.asarray(train.vectors, np.float64)
    x = x - x.mean(axis=0)
    scale = np.sqrt((x**2).mean())
    model = linear_model.LogisticRegression(C=1 / (len(x) * l2), tol=1e-10, max_iter=5000).fit(x / scale, train.labels)
    space = module._Space.of(x.T @ x / len(x), CLASSES, l2)
    options = {"maxiter": 500, "ftol": 1e-13, "gtol": 0.0}
    search = partial(optimize.minimize, jac=True, method="L-BFGS-B", options=options)
    weight, bias = module._classifier(x.astype(np.float32), np.asarray(train.labels), space, search)
    np.testing.assert_allclose(weight * scale, model.coef_, atol=5e-3)
    np.testing.assert_allclose(bias - bias.mean(), model.intercept_ - model.intercept_.mean(), atol=5e-3)


def test_loss_and_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    columns, labels = rng.standard_normal((37, 5)).astype(np.float32), rng.integers(0, 3, 37)
    penalty, weights = rng.random(5), rng.standard_normal((3, 5))
    loss = module._Loss(columns, labels, 3, penalty)
    logits = columns.astype(np.float64) @ weights.T
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = -logs[np.arange(37), labels].mean() + (penalty * weights**2).sum() / 2
    value, gradient = loss(weights.ravel())
    assert value == pytest.approx(expected, rel=1e-6)
    for place in range(15):
        step = np.zeros(15)
        step[place] = 1e-2
        slope = (loss(weights.ravel() + step)[0] - loss(weights.ravel() - step)[0]) / 2e-2
        assert gradient[place] == pytest.approx(slope, abs=1e-4)
    monkeypatch.setattr(module, "_LOGITS", 12)   # four rows at a time
    batched = loss(weights.ravel())
    assert batched[0] == pytest.approx(value)
    np.testing.assert_allclose(batched[1], gradient, atol=1e-6)


def test_each_dim_stands_alone_and_moves_and_scales_do_not_matter() -> None:
    pytest.importorskip("scipy")
    train, test = made(300, 1), made(400, 2)
    together = quiet(train, test)
    for dim, top1 in zip(together.dims, together.top1, strict=True):
        cut = [one.transformed(np.asarray(one.vectors)[:, :dim]) for one in (train, test)]
        assert quiet(*cut, dims=[dim]).top1 == (top1,)
    moved = [one.transformed(100 * np.asarray(one.vectors) - 7) for one in (train, test)]
    assert quiet(*moved, dims=together.dims).top1 == pytest.approx(together.top1, abs=1 / 400)


def test_on_random_features_it_is_the_papers_baseline() -> None:
    pytest.importorskip("scipy")
    train, test = made(300, 1), made(400, 2)
    drawn = []
    for seed in range(3):
        fitted = RandomFeatures(seed).fit(train)
        drawn.append(quiet(fitted.apply(train), fitted.apply(test)))
    # All columns are as good in any order, but which two come first matters.
    for one in drawn:
        assert one.top1[-1] == pytest.approx(quiet(train, test).top1[-1], abs=2 / 400)
    assert len({one.top1[0] for one in drawn}) > 1


def test_unknown_classes_are_left_out() -> None:
    pytest.importorskip("scipy")
    train, test = made(300, 1), made(400, 2)
    known, asked = np.array(train.labels), np.array(test.labels)
    known[:50], asked[:20], asked[20:30] = -1, -1, 77
    mixed = [EmbeddingSet.of(one.vectors, labels=labels) for one, labels in ((train, known), (test, asked))]
    clean = train.select(np.arange(50, 300)), test.select(np.arange(30, 400))
    assert quiet(*mixed, dims=[6]).top1 == quiet(*clean, dims=[6]).top1
    # Labels are names: any integers will do.
    renamed = [EmbeddingSet.of(one.vectors, labels=1000 - 10 * np.asarray(one.labels)) for one in clean]
    assert quiet(*renamed, dims=[6]).top1 == pytest.approx(quiet(*clean, dims=[6]).top1, abs=1 / 370)


def test_vectors_that_do_not_vary_are_no_trouble() -> None:
    pytest.importorskip("scipy")
    flat = EmbeddingSet.of(np.ones((40, 3)), labels=np.repeat([0, 1], 20))
    assert quiet(flat, flat, dims=[3]).top1 == (0.5,)


def test_the_result_is_plain_json_and_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    train, test = made(60, 1), made(40, 2, model={"name": "m"}, dataset="toy", split="test")
    found = linear_probe(train, test)
    assert (found.model, found.dataset, found.split) == ("m", "toy", "test")
    assert Probe.from_figures(json.loads(json.dumps(found.to_figures()))) == found
    assert capsys.readouterr().err.strip() == ""   # done within two seconds, so no bar was shown


def test_what_cannot_be_probed() -> None:
    pytest.importorskip("scipy")
    train, test = made(60, 1), made(40, 2)
    x = np.array(test.vectors)
    with pytest.raises(EmbeddingsError, match="the queries must have labels"):
        quiet(train, EmbeddingSet.of(x))
    with pytest.raises(EmbeddingsError, match="same number of columns"):
        quiet(train, EmbeddingSet.of(x[:, :5], labels=test.labels))
    with pytest.raises(NestingError, match="must not exceed the 12"):
        quiet(train, test, dims=[16])
    with pytest.raises(EmbeddingsError, match=r"at least two classes \(got 1\): label more"):
        quiet(EmbeddingSet.of(x, labels=np.zeros(40, int)), test)
    with pytest.raises(EmbeddingsError, match=r"queries must be of a known class \(got 40 vectors of unknown"):
        quiet(train, EmbeddingSet.of(x, labels=np.full(40, 50)))
    for options in ({"l2": 0}, {"tolerance": -1}, {"iterations": 0}, {"l2": float("nan")}):
        with pytest.raises(InputError, match="l2 must be positive, tolerance not negative"):
            quiet(train, test, **options)   # type: ignore[arg-type]
    broken = EmbeddingSet.of(x, labels=test.labels)
    broken.vectors[7, 0] = np.nan
    with pytest.raises(EmbeddingsError, match=r"every vector of the queries must be finite.* row 7\)"):
        quiet(train, broken)


def test_without_scipy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingExtra, match=r"this needs scipy: pip install 'matryo\[evaluate\]'"):
        quiet(made(60, 1), made(40, 2))
