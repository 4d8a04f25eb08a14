"""One model, every protocol asked for, and the baselines beside it: result after result.

A protocol takes a model's embeddings and yields what it found. Where the embeddings lack what it needs (a head,
superclasses, two examples of a class) it raises an InputError that says so, and the caller decides whether that
matters: one command measures whatever a folder allows.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.baselines import DRAWN, baseline
from matryo.classify import cascade_curve
from matryo.classify.thresholds.risk import fewest_rows
from matryo.embeddings import UNKNOWN
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation.checks import default_dims
from matryo.evaluation.predictions import predict
from matryo.evaluation.protocols.disagreement import disagreement
from matryo.evaluation.protocols.evaluate import evaluate
from matryo.evaluation.protocols.few_shot import few_shot
from matryo.evaluation.protocols.pairs import Pairs, pairs
from matryo.evaluation.protocols.probe import fit_probe
from matryo.evaluation.protocols.robustness import robustness
from matryo.evaluation.protocols.similarity import similarity_span
from matryo.evaluation.protocols.stream import stream
from matryo.evaluation.protocols.sts import Sts, sts
from matryo.evaluation.protocols.superclass import superclass_accuracy
from matryo.evaluation.protocols.trends import trends
from matryo.evaluation.protocols.zero_shot import zero_shot
from matryo.evaluation.result import Evaluation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.predictions import Predictions
    from matryo.evaluation.relevance import Relevance
    from matryo.results import Result

    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["BASELINED", "BASELINE_TITLES", "PROTOCOLS", "Subject", "measure", "measure_baseline"]

BASELINE_TITLES = {
    "truncate": "truncated",
    "random": "random features",
    "pca": "PCA",
    "svd": "SVD",
    "svd-classifier": "SVD of the classifier",
    "jl": "random projection",
}
_SHOTS = (1, 3, 5, 7, 9)
_DRAWS = 30   # of few-shot: all classes take part in each, so that the mean settles soon


@dataclass(frozen=True, eq=False)
class Subject:
    """One model's embeddings: a split that is searched, and splits that ask."""

    name: str
    seed: int | None
    database: EmbeddingSet
    queries: Mapping[str, EmbeddingSet]
    texts: EmbeddingSet | None = None
    """Embeddings of texts about the classes, for zero-shot."""
    relevance: Relevance | None = None
    """Which rows of the database, the candidates, belong to which of the queries, where pairs are evaluated."""
    sides: tuple[str, str] = ("queries", "candidates")
    """What both sides of such pairs are."""
    asked_dims: tuple[int, ...] = ()
    """Where to evaluate; none means the nesting and the dims between. Other protocols keep to the nesting."""
    progress: bool = True
    """Whether what takes long shows how far it is."""

    @property
    def dims(self) -> list[int]:
        """The nesting, or the halves of vectors trained at one dim alone."""
        return default_dims(self.database.nesting, interpolated=False)

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """Every split, evaluated: once, for all protocols that read it."""
        found = []
        for asked in self.queries.values():
            dims = self.asked_dims or default_dims(self.database.nesting)
            found.append(evaluate(self.database, asked, dims=dims, progress=self.progress))
        return found

    @property
    def related(self) -> Relevance:
        """The relevance, by which pairs are known."""
        if self.relevance is None:
            raise InputError("pairs need to know what belongs together", got="nothing", cure="give --relevance FILE")
        return self.relevance

    @cached_property
    def predictions(self) -> dict[str, Predictions]:
        """What is said of every split: by the head where it knows several dims, else by the nearest neighbour."""
        found = {}
        for split, asked in self.queries.items():
            by_head = asked.head is not None and len(asked.head.dims) > 1
            known = asked if by_head else asked.transformed(asked.vectors)
            found[split] = predict(known, self.database, dims=self.dims, progress=self.progress)
        return found


def measure(subject: Subject, protocol: str) -> list[Any]:
    """The results of one of :data:`PROTOCOLS`, each under the subject's name."""
    if protocol not in PROTOCOLS:
        raise InputError("there is no such protocol", got=repr(protocol), cure=f"choose from {', '.join(PROTOCOLS)}")
    return [dataclasses.replace(one, model=subject.name) for one in PROTOCOLS[protocol](subject)]


def measure_baseline(
    subject: Subject, name: str, protocol: str | None = None, *, draws: int = 5
) -> list[Evaluation | Pairs | Sts]:
    """The subject's vectors through a baseline fitted on its database; random ones are the mean of ``draws``.

    The ``protocol`` is one of :data:`BASELINED`; none is `pairs` where there are some, else `evaluate`.
    """
    protocol = protocol or ("evaluate" if subject.relevance is None else "pairs")
    if protocol not in BASELINED:
        raise InputError("no baseline has this protocol", got=repr(protocol), cure=f"choose {', '.join(BASELINED)}")
    drawn: list[list[Evaluation | Pairs | Sts]] = []
    for seed in range(draws if name in DRAWN else 1):
        fitted = baseline(name, seed).fit(subject.database)
        queries = {split: fitted.apply(asked) for split, asked in subject.queries.items()}
        mapped = dataclasses.replace(subject, database=fitted.apply(subject.database), queries=queries)
        drawn.append(list(PROTOCOLS[protocol](mapped)))
    title = f"{subject.name} + {BASELINE_TITLES[name]}"
    return [dataclasses.replace(_mean(many), model=title) for many in zip(*drawn, strict=True)]


def _evaluate(subject: Subject) -> Iterator[Evaluation]:
    yield from subject.evaluations


def _pairs(subject: Subject) -> Iterator[Pairs]:
    dims = subject.asked_dims or subject.dims
    for asked in subject.queries.values():
        yield pairs(asked, subject.database, subject.related, dims=dims, sides=subject.sides, progress=subject.progress)


def _sts(subject: Subject) -> Iterator[Sts]:
    for asked in subject.queries.values():
        yield sts(asked, subject.database, subject.related, dims=subject.asked_dims or subject.dims)


def _probe(subject: Subject) -> Iterator[Result]:
    fitted = fit_probe(subject.database, dims=subject.dims, progress=subject.progress)
    for asked in subject.queries.values():
        yield fitted.read(asked)


def _few_shot(subject: Subject) -> Iterator[Result]:
    for asked in _repeating(subject):
        shots = _fitting_shots(_class_counts(asked))
        yield few_shot(asked, shots=shots, draws=_DRAWS, dims=subject.dims, progress=subject.progress)
        counts = _class_counts(asked)
        novel = [label for label in _novel(subject, asked) if counts[label] > 1]
        if len(novel) > 1:
            shots = tuple(n for n in _SHOTS if n < counts[novel].min())
            yield few_shot(
                asked, shots=shots, draws=_DRAWS, dims=subject.dims, progress=subject.progress,
                classes=novel, about="never trained",
            )  # fmt: skip


def _stream(subject: Subject) -> Iterator[Result]:
    for asked in _repeating(subject):
        yield stream(
            subject.database, asked, novel=_novel(subject, asked), dims=subject.dims, progress=subject.progress
        )


def _superclass(subject: Subject) -> Iterator[Result]:
    for split, asked in subject.queries.items():
        yield superclass_accuracy(asked, subject.predictions[split])


def _trends(subject: Subject) -> Iterator[Result]:
    for split, asked in subject.queries.items():
        yield trends(asked, subject.predictions[split])


def _disagreement(subject: Subject) -> Iterator[Result]:
    for split, asked in subject.queries.items():
        made = subject.predictions[split]
        yield disagreement(asked, made, low=made.dims[0], high=made.dims[-1])


def _robustness(subject: Subject) -> Iterator[Result]:
    if len(subject.queries) < 2:
        raise InputError("robustness compares several splits", got=len(subject.queries), cure="encode another one")
    oracles = [trends(asked, subject.predictions[split]) for split, asked in subject.queries.items()]
    yield robustness(subject.evaluations, oracles)


def _similarity(subject: Subject) -> Iterator[Result]:
    if subject.relevance is not None:
        for asked in subject.queries.values():
            yield similarity_span(asked, subject.database, relevance=subject.relevance, dims=subject.dims)
        return
    for asked in _repeating(subject):
        yield similarity_span(asked, dims=subject.dims)


def _cascade(subject: Subject) -> Iterator[Result]:
    for asked in subject.queries.values():
        if asked.head is None or len(asked.head.dims) < 2:
            raise InputError(
                "a cascade needs a head at several dims",
                got="none" if asked.head is None else f"dim {asked.head.dim} only",
                cure="train one with --head.kind separate or tied",
            )
        # Half of the rows are fitted on; too few could not certify even a loss of five points.
        certain = _class_counts(asked).sum() // 2 >= fewest_rows(0.05, 0.95)
        for strategy in ("greedy", "budget", *(["risk"] if certain else [])):
            yield cascade_curve(asked, strategy=strategy, progress=subject.progress)


def _zero_shot(subject: Subject) -> Iterator[Result]:
    if subject.texts is None:
        raise InputError("zero-shot needs embeddings of texts about the classes", got="none", cure="give --texts DIR")
    for asked in subject.queries.values():
        yield zero_shot(subject.texts, asked, dims=subject.dims)


PROTOCOLS: dict[str, Callable[[Subject], Iterator[Any]]] = {
    "evaluate": _evaluate,
    "probe": _probe,
    "few-shot": _few_shot,
    "stream": _stream,
    "robustness": _robustness,
    "superclass": _superclass,
    "trends": _trends,
    "disagreement": _disagreement,
    "similarity": _similarity,
    "cascade": _cascade,
    "zero-shot": _zero_shot,
    "pairs": _pairs,
    "sts": _sts,
}
BASELINED = ("evaluate", "pairs", "sts")
"""The protocols that baselines stand beside."""


def _class_counts(embeddings: EmbeddingSet) -> Integers:
    """How many examples each class has."""
    labels = np.asarray([] if embeddings.labels is None else embeddings.labels, np.int64)
    return np.bincount(labels[labels >= 0], minlength=1)


def _fitting_shots(counts: Integers) -> tuple[int, ...]:
    """As many shots as half of the classes have examples for, and one more to ask about."""
    usual = float(np.median(counts[counts > 0])) if counts.any() else 0.0
    return tuple(n for n in _SHOTS if n < usual) or _SHOTS[:1]


def _repeating(subject: Subject) -> list[EmbeddingSet]:
    """The splits where classes have several examples; or all splits as one, so that styles of one class meet."""
    splits = list(subject.queries.values())
    return [asked for asked in splits if _class_counts(asked).max() > 1] or [_pooled(splits)]


def _novel(subject: Subject, asked: EmbeddingSet) -> list[int]:
    """The classes that ask but that the database, and so the training, lacks."""
    if asked.labels is None or subject.database.labels is None:
        return []
    return [int(label) for label in np.setdiff1d(asked.labels, subject.database.labels) if label != UNKNOWN]


def _pooled(sets: Sequence[EmbeddingSet]) -> EmbeddingSet:
    """Several splits as one."""
    first = sets[0]
    if any(one.labels is None for one in sets):
        raise EmbeddingsError("the queries must have labels", got="none", cure="write them again with labels=…")
    whole = first.select(np.zeros(sum(map(len, sets)), np.int64))   # the size and names; its rows come next
    about = dataclasses.replace(whole.manifest, split=" + ".join(one.manifest.split for one in sets))
    return dataclasses.replace(
        whole,
        manifest=about,
        vectors=np.concatenate([np.asarray(one.vectors) for one in sets]),
        labels=np.concatenate([np.asarray(one.labels) for one in sets]),
        ids=np.concatenate([np.asarray(one.ids).astype(str) for one in sets]),
    )


def _mean(drawn: Sequence[Evaluation | Pairs | Sts]) -> Evaluation | Pairs | Sts:
    """The result whose every figure is the mean of the draws'."""
    return type(drawn[0]).from_figures(_mean_of([one.to_figures() for one in drawn]))


def _mean_of(values: Sequence[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _mean_of([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(map(_mean_of, zip(*values, strict=True)))
    return fmean(values) if isinstance(values[0], float) else values[0]
