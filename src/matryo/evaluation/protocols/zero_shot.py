"""Zero-shot: classify by the nearest class, given by embeddings of texts about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from matryo.arguments import checked
from matryo.embeddings import UNKNOWN
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation.checks import check_finite, check_pair, chosen_dims, labels_of
from matryo.evaluation.protocol import Protocol
from matryo.metrics import label_ranks
from matryo.nesting import truncate
from matryo.results import SplitResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.arrays import Floats, Integers
    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.subject import Subject
    from matryo.nesting import Nesting


@dataclass(frozen=True)
class ZeroShot(SplitResult):
    """Zero-shot accuracy by dim."""

    kind: ClassVar[str] = "zero-shot"
    titles: ClassVar[dict[str, str]] = {"top1": "top-1", "top5": "top-5"}
    prompts: int
    """The number of texts; those of one class are averaged."""
    dims: tuple[int, ...]
    top1: tuple[float, ...]
    top5: tuple[float, ...]

    @property
    def about(self) -> str:
        """The number of texts."""
        return f"zero-shot with {self.prompts:,} texts"


@checked
def zero_shot(texts: EmbeddingSet, queries: EmbeddingSet, *, dims: Sequence[int] | None = None) -> ZeroShot:
    """Classify ``queries`` by cosine with ``texts``, whose labels say which class each text describes.

    At each dim the prompts of a class are truncated, normalised, averaged and normalised again. The dims are those of
    the queries' nesting (halved if there is only one), unless ``dims`` lists others. Texts and queries of unknown
    class (−1) are excluded; with five classes or fewer, top-5 is 1. If the classes of the texts are the superclasses
    of the queries, superclasses are predicted.

    >>> from matryo.embeddings import EmbeddingSet
    >>> texts = EmbeddingSet.of([[1, 0], [2, 1], [0, 1]], labels=[0, 0, 1])
    >>> zero_shot(texts, EmbeddingSet.of([[3, 1], [1, 9], [1, 2]], labels=[0, 1, 0]), dims=[2]).top1
    (0.6666666666666666,)
    """
    queries = _as_superclasses(queries) if _about_superclasses(texts, queries) else queries
    described, asked = labels_of(texts, "texts"), labels_of(queries, "queries")
    check_pair(texts, queries, ("texts", "queries"))
    nesting = chosen_dims(queries, dims)
    prompts, rows = np.flatnonzero(described != UNKNOWN), np.flatnonzero(asked != UNKNOWN)
    classes = np.unique(described[prompts])
    _check_classes(classes, asked[rows])
    means = _class_means(texts, prompts[np.argsort(described[prompts], kind="stable")], nesting)
    places, ranks = np.searchsorted(classes, asked), np.empty((len(nesting), len(rows)), np.int64)
    for span, here, vectors in queries.batches_of(rows, len(classes)):
        for mean, rank in zip(means, ranks, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):   # reported by check_finite, with the row
                # The query's own norm does not change the order of the classes.
                scores = truncate(vectors, mean.shape[1], normalize=False) @ mean.T
            check_finite(scores, here, "queries")
            rank[span] = label_ranks(scores, places[here])
    top1, top5 = (tuple((ranks < k).mean(axis=1).tolist()) for k in (1, 5))
    return ZeroShot(*queries.manifest.origin, len(prompts), nesting.dims, top1, top5)


def _measure(subject: Subject) -> Iterator[ZeroShot]:
    if subject.texts is None:
        raise InputError("zero-shot needs embeddings of texts about the classes", got="none", cure="give --texts DIR")
    for queries in subject.queries.values():
        yield zero_shot(subject.texts, queries, dims=subject.dims)


PROTOCOL = Protocol("zero-shot", _measure, searches=False)


def _about_superclasses(texts: EmbeddingSet, queries: EmbeddingSet) -> bool:
    names = texts.classes
    return bool(names) and names == queries.manifest.superclasses and names != queries.classes


def _as_superclasses(queries: EmbeddingSet) -> EmbeddingSet:
    """Return ``queries`` labelled by superclass."""
    of = np.array([*queries.manifest.superclass_of, UNKNOWN])   # the last entry is for an unknown class (−1)
    labels = of[labels_of(queries, "queries")]
    about = replace(queries.manifest, classes=queries.manifest.superclasses, superclasses=(), superclass_of=())
    return replace(queries, manifest=about, labels=labels)


def _class_means(texts: EmbeddingSet, prompts: Integers, nesting: Nesting) -> list[Floats]:
    """Return the unit mean of each class, [classes, dim] per dim; ``prompts`` are sorted by class."""
    vectors = np.asarray(texts.vectors[prompts], np.float64)
    check_finite(vectors, prompts, "texts")
    firsts = np.unique(labels_of(texts, "texts")[prompts], return_index=True)[1]
    # The mean and the sum have the same direction.
    sums = (np.add.reduceat(truncate(vectors, dim), firsts) for dim in nesting.dims)
    return [truncate(total, total.shape[1]).astype(np.float32) for total in sums]


def _check_classes(classes: Integers, asked: Integers) -> None:
    if len(classes) < 2:
        raise EmbeddingsError(
            "the texts must describe at least two classes",
            got=len(classes),
            cure="give a text with its label for each class",
        )
    missing = np.setdiff1d(asked, classes)
    if len(asked) == 0 or len(missing):
        raise EmbeddingsError(
            "there must be queries of known class, and a text for each of their classes",
            got=f"{len(asked)} queries of known class, {len(missing)} classes without a text",
            cure="describe every class, or label the other queries −1",
        )
