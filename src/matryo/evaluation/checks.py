"""Checks shared by the protocols: labels, dims that fit, comparable vectors and labels, finite numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.arguments import checked
from matryo.errors import EmbeddingsError
from matryo.nesting import Nesting, as_nesting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matryo.arrays import Array, Integers
    from matryo.embeddings import EmbeddingSet


def labels_of(embeddings: EmbeddingSet, role: str) -> Integers:
    """Return the labels in memory; ``role`` ("queries", …) names the embeddings in the error if there are none."""
    if embeddings.labels is None:
        raise EmbeddingsError(
            f"the {role} must have labels to be evaluated",
            got=f"{embeddings.path} without labels",
            cure="write them again with labels=…, one per vector",
        )
    return np.asarray(embeddings.labels)


def chosen_dims(embeddings: EmbeddingSet, dims: Sequence[int] | None, interpolated: bool = False) -> Nesting:
    """Return ``dims`` in order, or :func:`default_dims`, as a nesting that fits the embeddings."""
    chosen = Nesting(sorted({*dims}) if dims is not None else default_dims(embeddings.nesting, interpolated))
    chosen.check_fits(embeddings.dim)
    return chosen


@checked
def default_dims(nesting: Nesting | Iterable[int], interpolated: bool = True) -> list[int]:
    """Return the dims to measure by default: those of the nesting and, if ``interpolated``, those midway between.

    Vectors trained at one dim are measured at its halves down to 8, which shows what plain truncation gives.

    >>> default_dims(Nesting([8, 16, 64]))
    [8, 12, 16, 40, 64]
    >>> default_dims(Nesting([64]))
    [8, 12, 16, 24, 32, 48, 64]
    """
    nesting = as_nesting(nesting)
    if len(nesting) == 1:
        nesting = Nesting.halving(nesting.dim, min(8, nesting.dim))
    return sorted({*nesting.dims, *(nesting.between() if interpolated else ())})


def class_counts(embeddings: EmbeddingSet) -> Integers:
    """Return the number of examples of each class, by label."""
    labels = np.asarray([] if embeddings.labels is None else embeddings.labels, np.int64)
    return np.bincount(labels[labels >= 0], minlength=1)


def check_columns(left: EmbeddingSet, right: EmbeddingSet, roles: tuple[str, str]) -> None:
    """Raise unless the vectors of both can be compared."""
    if left.dim != right.dim:
        raise EmbeddingsError(
            f"{' and '.join(roles)} must have the same number of columns",
            got=f"{left.dim} and {right.dim}",
            cure="encode both with one model",
        )


def check_pair(left: EmbeddingSet, right: EmbeddingSet, roles: tuple[str, str]) -> None:
    """Raise unless the vectors of both can be compared and their labels mean the same classes."""
    check_columns(left, right, roles)
    if left.classes and right.classes and left.classes != right.classes:
        raise EmbeddingsError(
            f"{' and '.join(roles)} must have the same list of classes",
            got=f"{len(left.classes)} and {len(right.classes)} classes, not the same",
            cure="encode both from one dataset",
        )


def check_different(database: EmbeddingSet, queries: EmbeddingSet) -> None:
    """Raise if both are the same embeddings, because the nearest neighbour of each query is then itself."""
    same_folder = database.path == queries.path and bool(database.manifest.files and queries.manifest.files)
    if database.vectors is queries.vectors or same_folder:
        raise same_vectors(str(queries.path))


def same_vectors(got: str) -> EmbeddingsError:
    """Return the error for a database that is searched for its own vectors."""
    return EmbeddingsError(
        "the queries must not be the database itself, or each query finds itself",
        got=got,
        cure="search another split, or divide this one: embeddings.select(rows)",
    )


def check_several(labels: Integers) -> None:
    """Raise unless a database holds several classes."""
    if (labels == labels[0]).all():
        raise EmbeddingsError(
            "the database must hold more than one class, or every neighbour is right",
            got=f"only class {labels[0]}",
            cure="add vectors of other classes; vectors of no class get the label −1",
        )


def check_finite(values: Array, rows: Integers, role: str) -> None:
    """Raise where ``values`` [n, …], computed from the vectors ``rows`` of the embeddings, are not finite."""
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        raise EmbeddingsError(
            f"every vector of the {role} must be finite, and give finite scores",
            got=f"NaN or infinity from row {rows[bad[0]]}",
            cure="check the folder with EmbeddingSet.verify(), and encode such rows again",
        )
