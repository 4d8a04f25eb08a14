"""Measure a subject, or a baseline made from it, with a protocol by name.

Where the embeddings lack something that a protocol needs (a head, superclasses, two examples of a class), it raises an
InputError. The caller decides whether to skip the protocol.
"""

from __future__ import annotations

import dataclasses
from difflib import get_close_matches
from statistics import fmean
from typing import TYPE_CHECKING, Any

from matryo.arguments import checked
from matryo.baselines import DRAWN, baseline
from matryo.errors import InputError
from matryo.evaluation.protocols import BASELINED, PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matryo.evaluation.subject import Subject

_TITLES = {
    "truncate": "truncated",
    "random": "random features",
    "pca": "PCA",
    "svd": "SVD",
    "svd-classifier": "SVD of the classifier",
    "jl": "random projection",
    "retrofit": "retrofit",
    "blocks": "rotated blocks",
    "classes": "rotation for classes",
    "learned": "learned rotation",
    "adaptor": "adaptor",
}


@checked
def measure(subject: Subject, protocol: str) -> list[Any]:
    """Return the results of one of :data:`PROTOCOLS`, each under the subject's name."""
    check_known("protocol", protocol, PROTOCOLS)
    results: Iterable[Any] = PROTOCOLS[protocol].run(subject)
    return [dataclasses.replace(result, model=subject.name) for result in results]


@checked
def measure_baseline(subject: Subject, name: str, protocol: str | None = None, *, draws: int = 5) -> list[Any]:
    """Return the results of the subject's vectors mapped by a baseline that was fitted on its database.

    Random baselines give the mean of ``draws``. The ``protocol`` is one of :data:`BASELINED`; None means `pairs`
    where the subject has relevance judgements, else `evaluate`.
    """
    protocol = protocol or ("evaluate" if subject.relevance is None else "pairs")
    if protocol not in BASELINED:
        raise InputError(
            "baselines cannot be measured with this protocol",
            got=repr(protocol),
            cure=f"choose from {', '.join(BASELINED)}",
        )
    drawn = []
    for seed in range(draws if name in DRAWN else 1):
        fitted = baseline(name, seed).fit(subject.database)
        queries = {split: fitted.apply(one) for split, one in subject.queries.items()}
        mapped = dataclasses.replace(subject, database=fitted.apply(subject.database), queries=queries)
        drawn.append(list(PROTOCOLS[protocol].run(mapped)))
    title = f"{subject.name} + {_TITLES[name]}"
    return [dataclasses.replace(_mean(results), model=title) for results in zip(*drawn, strict=True)]


def check_known(what: str, name: str, names: Iterable[str]) -> None:
    """Raise unless ``name`` is one of ``names``; suggest the nearest."""
    if name not in (known := list(names)):
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        suggestion = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"no such {what}", got=repr(name), cure=f"{suggestion}choose from {', '.join(known)}")


def _mean(results: Sequence[Any]) -> Any:
    """Return the result whose every float is the mean of those of ``results``."""
    return type(results[0]).from_figures(_mean_of([result.to_figures() for result in results]))


def _mean_of(values: Sequence[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _mean_of([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(map(_mean_of, zip(*values, strict=True)))
    return fmean(values) if isinstance(values[0], float) else values[0]
