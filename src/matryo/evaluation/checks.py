"""What the protocols ask of their embeddings: labels, dims that fit, one model on both sides, finite numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError
from matryo.evaluation.evaluate import default_dims
from matryo.nesting import Nesting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.embeddings import EmbeddingSet

    Array = np.ndarray[Any, np.dtype[Any]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["check_finite", "check_pair", "chosen_dims", "labels_of"]


def labels_of(embeddings: EmbeddingSet, role: str) -> Integers:
    """The labels, in memory; ``role`` ("queries", …) is what the error calls embeddings without."""
    if embeddings.labels is None:
        raise EmbeddingsError(
            f"the {role} must have labels to be evaluated",
            got=embeddings.path,
            cure="write them again with labels=…, one class index a vector",
        )
    return np.asarray(embeddings.labels)


def chosen_dims(embeddings: EmbeddingSet, dims: Sequence[int] | None) -> Nesting:
    """The dims asked for; by default those of the nesting, or the halves where it has one dim alone."""
    chosen = Nesting(sorted({*dims}) if dims is not None else default_dims(embeddings.nesting, interpolated=False))
    chosen.check_fits(embeddings.dim)
    return chosen


def check_pair(one: EmbeddingSet, other: EmbeddingSet, roles: tuple[str, str]) -> None:
    """Raise unless the vectors and the labels of both mean the same."""
    both = " and ".join(roles)
    if one.dim != other.dim:
        raise EmbeddingsError(
            f"{both} must have the same number of columns",
            got=f"{one.dim} and {other.dim}",
            cure="encode both with one model",
        )
    if one.classes and other.classes and one.classes != other.classes:
        raise EmbeddingsError(
            f"{both} must have the same list of classes, or their labels mean different things",
            got=f"{len(one.classes)} and {len(other.classes)} classes, not the same",
            cure="encode both from one dataset",
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
