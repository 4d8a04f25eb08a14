"""Adaptive classification: each row is answered at the smallest dim that is confident enough."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from matryo.arguments import checked
from matryo.classify.estimator import Classifier
from matryo.classify.labels import check_holdout, check_known, class_names, to_columns
from matryo.classify.outcomes import NEVER, CascadeResult
from matryo.classify.rows import Rows, read_rows
from matryo.classify.thresholds.strategy import check_choice, choose_thresholds
from matryo.classify.walk import Answers, ask_all, ask_until_sure
from matryo.embeddings import UNKNOWN
from matryo.errors import InputError
from matryo.files import parse_json, write_json
from matryo.nesting import Nesting, as_nesting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Array, Integers
    from matryo.classify.thresholds.holdout import Holdout
    from matryo.embeddings import Head

_FORMAT = "matryo cascade 1"
_CHOICE = ("strategy", "expected_dim", "max_loss", "confidence", "seed")


class Cascade(Classifier):
    """Answers each row at the first dim whose softmax probability reaches that dim's threshold.

    It follows the scikit-learn estimator API. ``X`` is logits by dim (an array [dims, n, classes], a list, or a
    mapping from dim), vectors [n, d] for a ``head``, or an :class:`EmbeddingSet` that holds its head and labels. Fit on
    rows that trained neither the encoder nor the head, because confidence on training rows is too high.

    ``strategy`` sets how ``fit`` chooses the thresholds. "greedy": dim by dim, as in the paper. "budget": all together,
    for the best accuracy at an ``expected_dim``. "risk": for the smallest expected dim that loses at most ``max_loss``
    of the last dim's accuracy on new rows, with the given ``confidence``. If no cascade can be certified,
    ``certified_`` is False and the last dim answers every row.

    ``y`` holds column numbers of the logits, or names from ``classes``, which lists the names of the columns.

    >>> logits = {8: [[0, 4], [0, 1], [1, 0], [5, 0]], 16: [[0, 9], [9, 0], [9, 0], [9, 0]]}   # the second errs at 8
    >>> cascade = Cascade().fit(logits, [1, 0, 0, 0])
    >>> cascade.predict(logits), cascade.exit_dim(logits), cascade.thresholds_.round(2)
    (array([1, 0, 0, 0]), array([ 8, 16, 16,  8]), array([0.74]))
    >>> cascade.holdout_.accuracy, cascade.holdout_.expected_dim
    (1.0, 12.0)
    """

    dims_: tuple[int, ...]
    """The dims, smallest first."""
    thresholds_: Array
    """[dims − 1]: the confidence required at each dim but the last; ∞ where no row is answered."""
    classes_: Array
    """The class of each column of the logits, as ``predict`` returns it."""
    holdout_: CascadeResult
    """Accuracy and cost on the rows it was fitted on; optimistic, except for a certified loss."""
    certified_: bool
    """For "risk": whether a cascade was certified."""
    n_features_in_: int
    """For vectors: the number of columns."""

    def __init__(
        self,
        nesting: Nesting | Sequence[int] | None = None,
        *,
        head: Head | None = None,
        classes: Sequence[Any] | None = None,
        strategy: str = "greedy",
        expected_dim: float | None = None,
        max_loss: float = 0.005,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        self.nesting = nesting
        self.head = head
        self.classes = classes
        self.strategy = strategy
        self.expected_dim = expected_dim
        self.max_loss = max_loss
        self.confidence = confidence
        self.seed = seed

    def fit(self, X: Any, y: Any = None) -> Self:
        """Choose the thresholds on the hold-out ``X`` and its labels ``y`` (by default those of the embeddings)."""
        _check_parameters(**{name: getattr(self, name) for name in ("nesting", "head", "classes", *_CHOICE)})
        rows = read_rows(X, self.nesting, self.head)
        choice = {name: getattr(self, name) for name in _CHOICE}
        choice = {name: value.item() if hasattr(value, "item") else value for name, value in choice.items()}
        seed = choice.pop("seed")
        check_choice(rows.dims, **choice)
        classes = class_names(self.classes, rows.classes)
        columns = to_columns(X, y, classes, rows.count)
        check_holdout(columns)
        outcomes = ask_all(rows, columns)
        thresholds = choose_thresholds(outcomes, **choice, seed=seed)
        self._forget()
        if thresholds is None:
            thresholds = np.full(len(rows.dims) - 1, NEVER)
            self.certified_ = False
        elif self.strategy == "risk":
            self.certified_ = True
        if rows.features is not None:
            self.n_features_in_ = rows.features
        self.dims_, self.thresholds_, self.classes_ = rows.dims, thresholds, classes
        self.holdout_ = outcomes.measure(thresholds)
        return self

    def answers(self, X: Any) -> Answers:
        """Return class, confidence and dim of each row; larger dims are not computed for rows already answered."""
        return ask_until_sure(self._rows(X), self.thresholds_)

    def predict(self, X: Any) -> Array:
        """Return the class of each row."""
        columns = self.answers(X).columns
        return np.asarray(self.classes_[columns])

    def predict_proba(self, X: Any) -> Array:
        """Return [n, classes]: the softmax of each row at the dim that answers it."""
        probabilities = ask_until_sure(self._rows(X), self.thresholds_, probabilities=True).probabilities
        assert probabilities is not None   # because of probabilities=True
        return probabilities

    def exit_dim(self, X: Any) -> Integers:
        """Return [n]: the dim that answers each row."""
        return self.answers(X).dims

    def score(self, X: Any, y: Any = None) -> float:
        """Return the accuracy over the rows of known class."""
        rows = self._rows(X)
        columns = check_known(to_columns(X, y, self.classes_, rows.count))
        return float((ask_until_sure(rows, self.thresholds_).columns == columns)[columns != UNKNOWN].mean())

    def measure(self, X: Any, y: Any = None) -> CascadeResult:
        """Return accuracy and cost on new rows, and the accuracy of the last dim alone. Every dim is computed."""
        rows = self._rows(X)
        return ask_all(rows, check_known(to_columns(X, y, self.classes_, rows.count))).measure(self.thresholds_)

    @checked
    def save(self, path: str | Path, fitted_on: Holdout | None = None) -> None:
        """Write the fitted cascade as JSON, atomically. The head is not included: embeddings hold their own.

        ``fitted_on`` records which rows chose the thresholds; :meth:`load` ignores it.
        """
        self._check_fitted()
        saved = {"format": _FORMAT, **{name: getattr(self, name) for name in _CHOICE}}
        saved |= {"certified": getattr(self, "certified_", None), "classes": self.classes_.tolist()}
        saved |= {"holdout": self.holdout_.to_figures()}   # with the dims and the thresholds
        write_json(Path(path), saved if fitted_on is None else saved | {"fitted_on": asdict(fitted_on)})

    @classmethod
    @checked
    def load(cls, path: str | Path, head: Head | None = None) -> Self:
        """Return the cascade that :meth:`save` wrote. To classify vectors, give their ``head`` again."""
        try:
            saved = parse_json(Path(path).read_text(encoding="utf-8"))
            if saved["format"] != _FORMAT:
                raise ValueError(f"format {saved['format']!r}")
            holdout = CascadeResult.from_figures(saved["holdout"])
            cascade = cls(holdout.dims, head=head, classes=saved["classes"], **{k: saved[k] for k in _CHOICE})
            cascade.dims_, cascade.holdout_ = Nesting(holdout.dims).dims, holdout
            cascade.classes_ = class_names(saved["classes"], len(saved["classes"]))
            cascade.thresholds_ = np.array([NEVER if t is None else t for t in holdout.thresholds], np.float64)
            if len(cascade.thresholds_) != len(holdout.dims) - 1:
                raise ValueError(f"{len(cascade.thresholds_)} thresholds for {len(holdout.dims)} dims")
            if saved["certified"] is not None:
                cascade.certified_ = saved["certified"]
        except (OSError, KeyError, TypeError, ValueError) as error:
            cure = "save it again, or check the path"
            raise InputError(f"{path} must be a saved cascade", got=error, cure=cure) from error
        return cascade

    def _rows(self, X: Any) -> Rows:
        self._check_fitted()
        rows = read_rows(X, self.dims_, self.head)
        if rows.classes != len(self.classes_):
            raise InputError(
                f"there must be logits for the {len(self.classes_)} classes the cascade was fitted to",
                got=rows.classes,
                cure="use the head it was fitted with",
            )
        if rows.features is not None and rows.features != getattr(self, "n_features_in_", rows.features):
            raise InputError(
                f"vectors must have {self.n_features_in_} columns, as those that the cascade was fitted on",
                got=rows.features,
                cure="encode them with the same model",
            )
        return rows

    def _check_fitted(self) -> None:
        if not hasattr(self, "thresholds_"):
            raise InputError("a cascade must be fitted before it answers", got=self, cure="call fit(X, y) first")


@checked
def _check_parameters(
    nesting: Nesting | Sequence[int] | None, head: Head | None, classes: Sequence[Any] | None, strategy: str,
    expected_dim: float | None, max_loss: float, confidence: float, seed: int,
) -> None:  # fmt: skip
    """Check the types of what ``__init__`` stored, as scikit-learn's estimators do in ``fit``."""
    del head, classes, strategy, expected_dim, max_loss, confidence, seed   # checked by their annotations
    if nesting is not None:
        as_nesting(nesting)
