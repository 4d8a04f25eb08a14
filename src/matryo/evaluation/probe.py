"""Linear probe: a softmax classifier fitted on the frozen vectors, one at each dim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from matryo.results import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.embeddings import EmbeddingSet

__all__ = ["Probe", "linear_probe"]


@dataclass(frozen=True)
class Probe(Result):
    """Accuracy of a linear classifier fitted on the database and read on the queries, at each dim."""

    kind: ClassVar[str] = "probe"
    model: str
    dataset: str
    split: str
    dims: tuple[int, ...]
    top1: tuple[float, ...]
    top5: tuple[float, ...]


def linear_probe(database: EmbeddingSet, queries: EmbeddingSet, *, dims: Sequence[int] | None = None) -> Probe:
    raise NotImplementedError
