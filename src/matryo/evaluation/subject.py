"""One model's embeddings as the protocols see them: a database split and query splits."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from matryo.arguments import checked
from matryo.embeddings import UNKNOWN, EmbeddingSet
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation.checks import class_counts, default_dims
from matryo.evaluation.predictions import predict
from matryo.evaluation.protocols.evaluate import Evaluation, evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matryo.evaluation.predictions import Predictions
    from matryo.evaluation.relevance import Relevance


@checked
@dataclass(frozen=True, eq=False)
class Subject:
    """One model's embeddings of a database split and of query splits."""

    name: str
    seed: int | None
    database: EmbeddingSet
    queries: Mapping[str, EmbeddingSet]
    texts: EmbeddingSet | None = None
    """Embeddings of texts about the classes, for zero-shot."""
    relevance: Relevance | None = None
    """Which rows of the database are relevant to which queries, where pairs are evaluated."""
    sides: tuple[str, str] = ("queries", "candidates")
    """The names of both sides of such pairs."""
    asked_dims: tuple[int, ...] = ()
    """The dims of `evaluate`, `pairs` and `sts`; empty means the nesting and, for `evaluate`, the dims between."""
    progress: bool = True
    """Whether to show progress bars."""

    @property
    def role(self) -> str:
        """The role of its rows: "nested", or "fixed" where the nesting has one dim."""
        return "nested" if len(self.database.nesting) > 1 else "fixed"

    @property
    def dims(self) -> list[int]:
        """The nesting; for vectors trained at one dim, that dim halved repeatedly."""
        return default_dims(self.database.nesting, interpolated=False)

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """The evaluation of every query split, computed once for all protocols that use it."""
        dims = self.asked_dims or default_dims(self.database.nesting)
        return [evaluate(self.database, one, dims=dims, progress=self.progress) for one in self.queries.values()]

    @cached_property
    def predictions(self) -> list[tuple[EmbeddingSet, Predictions]]:
        """Every query split with its predictions: by a head with several dims, else by the nearest neighbour."""
        predictions = []
        for queries in self.queries.values():
            by_head = queries.head is not None and len(queries.head.dims) > 1
            source = queries if by_head else queries.transformed(queries.vectors)
            predictions.append((queries, predict(source, self.database, dims=self.dims, progress=self.progress)))
        return predictions

    @property
    def related(self) -> Relevance:
        """The relevance, or an error where there is none."""
        if self.relevance is None:
            raise InputError("pairs need relevance judgements", got="none", cure="give --relevance FILE")
        return self.relevance

    def with_repeated_classes(self) -> list[EmbeddingSet]:
        """Return the query splits with several examples of some class, or else all query splits pooled into one."""
        splits = list(self.queries.values())
        return [queries for queries in splits if class_counts(queries).max() > 1] or [pooled(splits)]

    def novel(self, queries: EmbeddingSet) -> list[int]:
        """Return the classes of ``queries`` that the database, and so the training data, lacks."""
        if queries.labels is None or self.database.labels is None:
            return []
        return [int(label) for label in np.setdiff1d(queries.labels, self.database.labels) if label != UNKNOWN]


def pooled(sets: Sequence[EmbeddingSet]) -> EmbeddingSet:
    """Return the rows of several splits of one model as one split, in memory."""
    if any(one.labels is None for one in sets):
        raise EmbeddingsError("the queries must have labels", got="none", cure="write them again with labels=…")
    whole = sets[0].select(np.zeros(sum(map(len, sets)), np.int64))   # right size and names; the rows follow
    return dataclasses.replace(
        whole,
        manifest=dataclasses.replace(whole.manifest, split=" + ".join(one.manifest.split for one in sets)),
        vectors=np.concatenate([np.asarray(one.vectors) for one in sets]),
        labels=np.concatenate([np.asarray(one.labels) for one in sets]),
        ids=np.concatenate([np.asarray(one.ids).astype(str) for one in sets]),
    )
