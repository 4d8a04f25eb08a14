"""What the protocols ask of their embeddings: labels, dims that fit, one model on both sides, finite numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError
from matryo.nesting import Nesting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.embeddings import EmbeddingSet

    Array = np.ndarray[Any, np.dtype[Any]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["check_columns", "check_finite", "check_pair", "check_several", "chosen_dims", "default_dims", "labels_of"]


def labels_of(embeddings: EmbeddingSet, role: str) -> Integers:
    """The labels, in memory; ``role`` ("queries", …) is what the error calls embeddings without."""
    if embeddings.labels is None:
        raise EmbeddingsError(
            f"the {role} must have labels to be evaluated",
            got=embeddings.path,
            cure="write them again with labels=…, one class index a vector",
        )
    return np.asarray(embeddings.labels)


def chosen_dims(embeddings: EmbeddingSet, dims: Sequence[int] | None, interpolated: bool = False) -> Nesting:
    """The dims asked for, or :func:`default_dims`."""
    chosen = Nesting(sorted({*dims}) if dims is not None else default_dims(embeddings.nesting, interpolated))
    chosen.check_fits(embeddings.dim)
    return chosen


def default_dims(nesting: Nesting, interpolated: bool = True) -> list[int]:
    """The dims to measure when none are named: the nesting's, and the ones midway between them.

    Vectors trained at one dim alone are measured at its halves: what plain truncation is worth.

    >>> default_dims(Nesting([8, 16, 64]))
    [8, 12, 16, 40, 64]
    >>> default_dims(Nesting([64]))
    [8, 12, 16, 24, 32, 48, 64]
    """
    if len(nesting) == 1:
        nesting = Nesting.halving(nesting.dim, min(8, nesting.dim))
    return sorted({*nesting.dims, *(nesting.between() if interpolated else ())})


def check_columns(one: EmbeddingSet, other: EmbeddingSet, roles: tuple[str, str]) -> None:
    """Raise unless the vectors of both can be compared."""
    if one.dim != other.dim:
        raise EmbeddingsError(
            f"{' and '.join(roles)} must have the same number of columns",
            got=f"{one.dim} and {other.dim}",
            cure="encode both with one model",
        )


def check_pair(one: EmbeddingSet, other: EmbeddingSet, roles: tuple[str, str]) -> None:
    """Raise unless the vectors and the labels of both mean the same."""
    check_columns(one, other, roles)
    if one.classes and other.classes and one.classes != other.classes:
        raise EmbeddingsError(
            f"{' and '.join(roles)} must have the same list of classes, or their labels mean different things",
            got=f"{len(one.classes)} and {len(other.classes)} classes, not the same",
            cure="encode both from one dataset",
        )


def check_several(known: Integers) -> None:
    """Raise unless a database holds several classes."""
    if (known == known[0]).all():
        raise EmbeddingsError(
            "the database must hold more than one class, or every answer is right by construction",
            got=f"only class {known[0]}",
            cure="add vectors of other classes; those of no class get the label −1",
        )


def check_finite(values: Array, rows: Integers, role: str) -> None:
    """Raise, naming the first of ``rows``, where ``values`` [n, …] that come from its vector are not finite."""
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        raise EmbeddingsError(
            f"every vector of the {role} must be finite, and give finite scores",
            got=f"NaN or infinity from row {rows[bad[0]]}",
            cure="check the folder with EmbeddingSet.verify(), and encode such rows again",
        )
