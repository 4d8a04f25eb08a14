"""Linear probe: a softmax classifier fitted on the frozen vectors, one per dim.

It minimises the mean cross-entropy plus ``l2 / 2`` times the squared weights (not the biases), which is
scikit-learn's LogisticRegression with ``C = 1 / (n · l2)``. Its input is the raw prefix, centred and divided by
the root mean square of all its columns: one common scale, so that ``l2`` means the same for every model and dim.
Standardising each column would discard what training learned: a column that hardly varies would weigh as much as any
other.

L-BFGS works in the prefix's principal axes, scaled so that the curvature of the loss is about equal along all of them.
It then takes about 20 steps instead of over 100. The minimum is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from matryo.arguments import checked
from matryo.embeddings import UNKNOWN
from matryo.errors import EmbeddingsError, InputError, MissingExtra
from matryo.evaluation.checks import check_finite, check_pair, chosen_dims, labels_of
from matryo.evaluation.protocol import Protocol
from matryo.metrics import label_ranks
from matryo.progress import tqdm
from matryo.results import SplitResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matryo.arrays import Doubles, Floats, Integers
    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.subject import Subject

_LOGITS = 2 << 20   # logits held at a time


@dataclass(frozen=True)
class Probe(SplitResult):
    """Accuracy on the queries of a linear classifier fitted on the database, at each dim."""

    kind: ClassVar[str] = "probe"
    titles: ClassVar[dict[str, str]] = {"top1": "top-1", "top5": "top-5"}
    dims: tuple[int, ...]
    top1: tuple[float, ...]
    top5: tuple[float, ...]


@checked
def linear_probe(
    database: EmbeddingSet,
    queries: EmbeddingSet,
    *,
    dims: Sequence[int] | None = None,
    l2: float = 1e-4,
    tolerance: float = 1e-5,
    iterations: int = 60,
    progress: bool = True,
) -> Probe:
    """Fit a classifier on ``database`` and measure it on ``queries``, at each dim.

    A fit ends when a step improves the loss by less than ``tolerance`` (relative to the loss, or to 1 if that is
    more), or after ``iterations`` steps. Vectors of unknown class (−1) are excluded, and so are queries of a class
    that the database lacks. The database is held in memory twice, as float32.

    With :class:`~matryo.baselines.RandomFeatures` this is the paper's linear probe on random features.
    """
    check_pair(database, queries, ("database", "queries"))
    dims = chosen_dims(queries, dims).dims
    fitted = fit_probe(database, dims=dims, l2=l2, tolerance=tolerance, iterations=iterations, progress=progress)
    return fitted.score(queries)


def fit_probe(
    database: EmbeddingSet,
    *,
    dims: Sequence[int] | None = None,
    l2: float = 1e-4,
    tolerance: float = 1e-5,
    iterations: int = 60,
    progress: bool = True,
) -> FittedProbe:
    """Fit one classifier per dim on ``database``, to be measured on several splits."""
    with MissingExtra.unless_installed("scipy", "evaluate"):
        from scipy.optimize import minimize
    if not (l2 > 0 and tolerance >= 0 and iterations >= 1):
        raise InputError(
            "l2 must be positive, tolerance not negative, and iterations at least 1",
            got=f"l2={l2}, tolerance={tolerance}, iterations={iterations}",
            cure="the defaults are 1e-4, 1e-5 and 60",
        )
    nesting = chosen_dims(database, dims)
    classes, train, labels = _examples(database, nesting.dim, "database")
    if len(classes) < 2:
        raise EmbeddingsError(
            "a classifier needs at least two classes", got=len(classes), cure="label more vectors of the database"
        )
    mean = train.mean(axis=0, dtype=np.float64).astype(np.float32)
    train -= mean
    options = {"maxiter": iterations, "ftol": tolerance, "gtol": 0.0}
    search = partial(minimize, jac=True, method="L-BFGS-B", options=options)
    covariance = (train.T @ train).astype(np.float64) / len(train)
    classifiers = []
    with tqdm(desc="probe", total=sum(nesting.dims), unit="column", delay=2, disable=not progress) as bar:
        for dim in nesting.dims:
            space = _Space.of(covariance[:dim, :dim], len(classes), l2)
            classifiers.append(_classifier(train[:, :dim], labels, space, search))
            bar.update(dim)
    return FittedProbe(database, classes, mean, tuple(classifiers))


@dataclass(frozen=True, eq=False)
class FittedProbe:
    """One linear classifier per dim, fitted on a database."""

    database: EmbeddingSet
    classes: Integers
    mean: Floats
    """[d]: subtracted from a vector before it is classified."""
    classifiers: tuple[tuple[Doubles, Doubles], ...]
    """A weight [classes, dim] and a bias [classes] per dim."""

    def score(self, queries: EmbeddingSet) -> Probe:
        """Return the accuracy on ``queries``."""
        check_pair(self.database, queries, ("database", "queries"))
        _, vectors, truth = _examples(queries, len(self.mean), "queries", self.classes)
        vectors -= self.mean
        ranks = [label_ranks(vectors[:, : w.shape[1]] @ w.T + bias, truth) for w, bias in self.classifiers]
        dims = tuple(weight.shape[1] for weight, _ in self.classifiers)
        top1, top5 = (tuple(float((rank < k).mean()) for rank in ranks) for k in (1, 5))
        return Probe(*queries.manifest.origin, dims, top1, top5)


def _classifier(train: Floats, labels: Integers, space: _Space, search: Callable[..., Any]) -> tuple[Doubles, Doubles]:
    """Return the weight [classes, dim] and the bias [classes] for centred prefixes."""
    # Start from zero: starting from the classifier of a smaller dim saved no steps when measured.
    start = np.zeros((space.classes, len(space.penalty)))
    loss = _Loss(space.into(train), labels, space.classes, space.penalty)
    return space.leave(search(loss, start.ravel()).x.reshape(start.shape))


@dataclass(frozen=True, eq=False)
class _Space:
    """The coordinates to fit in: principal axes of the prefix, scaled, and a constant column for the bias."""

    axes: Doubles
    """[dim, dim], orthogonal."""
    scale: Doubles
    """[dim], of each axis."""
    classes: int
    penalty: Doubles
    """[dim + 1]: ``l2`` on the weights of the standardised prefix, as these coordinates see it."""

    @property
    def constant(self) -> float:
        """The value of the constant column; the curvature of the loss along a bias is p (1 − p) too."""
        return float(np.sqrt(self.classes))

    @classmethod
    def of(cls, covariance: Doubles, classes: int, l2: float) -> _Space:
        spread = float(np.sqrt(np.trace(covariance) / len(covariance))) or 1.0   # the common scale
        values, axes = np.linalg.eigh(covariance / spread**2)
        # The curvature along an axis is its variance × p (1 − p), with p about 1 / classes, plus l2 from the penalty.
        rounded = 1 / np.sqrt(np.maximum(values, 0) / classes + l2)
        return cls(axes, rounded / spread, classes, np.append(l2 * rounded**2, 0.0))

    def into(self, prefixes: Floats) -> Floats:
        columns = np.full((len(prefixes), len(self.axes) + 1), self.constant, np.float32)
        np.matmul(prefixes, (self.axes * self.scale).astype(np.float32), out=columns[:, :-1])
        return columns

    def leave(self, weights: Doubles) -> tuple[Doubles, Doubles]:
        return (weights[:, :-1] * self.scale) @ self.axes.T, weights[:, -1] * self.constant


@dataclass(frozen=True, eq=False)
class _Loss:
    """Loss and gradient for L-BFGS: products in float32, sums over batches in float64."""

    columns: Floats
    labels: Integers
    classes: int
    penalty: Doubles

    def __call__(self, flat: Doubles) -> tuple[float, Doubles]:
        weights = flat.reshape(self.classes, -1)
        penalty, narrow = self.penalty * weights, weights.astype(np.float32)
        loss, gradient = 0.0, np.zeros_like(weights)
        step = max(1, _LOGITS // self.classes)
        for start in range(0, len(self.labels), step):
            columns, labels = self.columns[start : start + step], self.labels[start : start + step]
            logits, true = columns @ narrow.T, (np.arange(len(labels)), labels)
            logits -= logits.max(axis=1, keepdims=True)
            loss -= float(logits[true].sum(dtype=np.float64))
            sums = np.exp(logits, out=logits).sum(axis=1, keepdims=True)
            loss += float(np.log(sums).sum(dtype=np.float64))
            logits /= sums
            logits[true] -= 1
            gradient += logits.T @ columns
        count = len(self.labels)
        return loss / count + float((penalty * weights).sum()) / 2, (gradient / count + penalty).ravel()


def _examples(
    embeddings: EmbeddingSet, dim: int, role: str, known: Integers | None = None
) -> tuple[Integers, Floats, Integers]:
    # The classes, the prefixes of the vectors of these classes, and the position of each in the list of classes.
    labels = labels_of(embeddings, role)
    classes = np.unique(labels[labels != UNKNOWN]) if known is None else known
    used = np.flatnonzero(np.isin(labels, classes))
    if len(used) == 0:
        raise EmbeddingsError(
            f"some of the {role} must be of a known class",
            got=f"{embeddings.count} vectors of unknown class",
            cure="check that both were labelled with the same list of classes",
        )
    prefixes = embeddings.at(dim, normalize=False)
    prefixes = prefixes if len(used) == len(prefixes) else prefixes[used]
    check_finite(prefixes, used, role)
    return classes, prefixes, np.searchsorted(classes, labels[used])


def _measure(subject: Subject) -> Iterator[Probe]:
    fitted = fit_probe(subject.database, dims=subject.dims, progress=subject.progress)
    for queries in subject.queries.values():
        yield fitted.score(queries)


PROTOCOL = Protocol("probe", _measure)
