"""scikit-learn's own checks of estimators, and Cascade among its tools."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from matryo.classify import Cascade
from matryo.embeddings import Head

pytest.importorskip("sklearn")

from sklearn.base import clone, is_classifier
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.utils.estimator_checks import parametrize_with_checks


class CascadeOfOwnHead(Cascade):
    """A cascade needs a head, which the checks have none of: this one solves for it first, by ridge regression."""

    nesting = None

    def __init__(self, *, strategy: str = "greedy", expected_dim: float | None = None) -> None:
        self.strategy = strategy
        self.expected_dim = expected_dim

    @property
    def head(self) -> Head | None:
        return getattr(self, "_head", None)

    @property
    def classes(self) -> Any:
        return getattr(self, "_names", None)

    max_loss, confidence, seed = 0.005, 0.95, 0

    def fit(self, X: Any, y: Any = None) -> CascadeOfOwnHead:
        self._head, self._names = Head.tied(np.eye(2, 1), dims=[1]), None
        try:
            x = np.asarray(X, np.float64)
            x = np.where(np.isfinite(x), x, 0)
            names = np.unique(np.asarray(y))
            wanted = np.equal(np.asarray(y)[:, None], names).astype(float)
            heads = {m: ridge(x[:, :m], wanted) for m in sorted({*range(1, x.shape[1], 3), x.shape[1]})}
            self._head = Head.separate({m: w for m, (w, _) in heads.items()}, {m: b for m, (_, b) in heads.items()})
            self._names = names
        except (ValueError, TypeError, IndexError):
            pass   # what is wrong with X and y is for Cascade to say
        return super().fit(X, y)


def ridge(x: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    padded = np.column_stack([x, np.ones(len(x))])
    weights = 8 * np.linalg.solve(padded.T @ padded + 1e-3 * np.eye(padded.shape[1]), padded.T @ wanted).T
    return weights[:, :-1], weights[:, -1]


WORDING = "it is refused with a ValueError, in matryo's words instead of scikit-learn's"
EXPECTED = {
    "check_estimators_unfitted": "the error is an InputError (a ValueError): scikit-learn is no dependency",
    "check_complex_data": WORDING,
    "check_estimators_empty_data_messages": WORDING,
    "check_n_features_in_after_fitting": WORDING,
    "check_dtype_object": "arrays of objects are refused",
    "check_supervised_y_2d": "y of shape (n, 1) is refused instead of flattened",
    "check_classifiers_regression_target": "labels may be any numbers, if they name the classes",
}


with warnings.catch_warnings():   # that it does not inherit from BaseEstimator is the point
    warnings.filterwarnings("ignore", "Estimator CascadeOfOwnHead does not inherit", UserWarning)
    every_check = parametrize_with_checks(
        [CascadeOfOwnHead(), CascadeOfOwnHead(strategy="budget", expected_dim=1e9)],
        expected_failed_checks=lambda _: EXPECTED,
        xfail_strict=True,
    )


@every_check
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, Head]:
    """Real digits, their principal axes first, and a head a dim that was trained on other rows."""
    x, y = load_digits(return_X_y=True)
    x = x - x.mean(axis=0)
    x = (x @ np.linalg.svd(x, full_matrices=False)[2].T / 10).astype(np.float32)
    train, rest, y_train, y_rest = train_test_split(x, y, train_size=600, random_state=0, stratify=y)
    heads = {m: LogisticRegression(max_iter=300).fit(train[:, :m], y_train) for m in (4, 8, 16, 32)}
    head = Head.separate({m: h.coef_ for m, h in heads.items()}, {m: h.intercept_ for m, h in heads.items()})
    return rest, y_rest, head


def test_on_real_digits(digits: tuple[np.ndarray, np.ndarray, Head]) -> None:
    x, y, head = digits
    cascade = Cascade(head=head).fit(x[:600], y[:600])
    found = cascade.measure(x[600:], y[600:])
    assert found.accuracy == accuracy_score(y[600:], cascade.predict(x[600:]))
    assert found.full_accuracy == accuracy_score(y[600:], head.logits(x[600:], 32).argmax(axis=1))
    assert found.accuracy >= found.full_accuracy - 0.02
    assert found.expected_dim < 20


def test_it_works_with_scikit_learns_tools(digits: tuple[np.ndarray, np.ndarray, Head]) -> None:
    x, y, head = digits
    cascade = Cascade(head=head)
    assert is_classifier(cascade)
    twin = clone(cascade.fit(x, y))
    assert not hasattr(twin, "thresholds_")
    assert twin.get_params().keys() == cascade.get_params().keys()
    assert (twin.fit(x, y).predict(x) == cascade.predict(x)).all()
    scores = cross_val_score(cascade, x, y, cv=3)
    assert scores.min() > 0.85
    search = GridSearchCV(Cascade(head=head, strategy="budget", expected_dim=8), {"expected_dim": [4, 12]}, cv=3)
    assert search.fit(x, y).best_params_ == {"expected_dim": 12}
