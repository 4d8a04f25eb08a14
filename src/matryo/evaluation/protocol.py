"""The record by which a protocol registers: its name, the function that measures a subject, and what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from matryo.evaluation.subject import Subject
    from matryo.results import Result


@dataclass(frozen=True)
class Protocol:
    """One protocol: a module of ``evaluation/protocols`` has one of these as ``PROTOCOL``."""

    name: str
    """As in ``--protocols``, and the kind of its rows; its module has "_" for "-"."""
    run: Callable[[Subject], Iterable[Result]]
    """Measure a subject. Where the embeddings lack something, raise an InputError that says what."""
    searches: bool = True
    """Whether a database is needed."""
    baselined: bool = False
    """Whether baselines can be measured with it."""
