"""FLUID-style stream: predict each example, then learn it; classes are known or novel, frequent or rare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from matryo.results import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.embeddings import EmbeddingSet

__all__ = ["Stream", "stream"]


@dataclass(frozen=True)
class Stream(Result):
    """Accuracy over a long-tailed stream, by dim, averaged over draws of the stream."""

    kind: ClassVar[str] = "stream"
    model: str
    dataset: str
    split: str
    draws: int
    length: int
    """Examples in a stream."""
    tail_below: int
    """A class with fewer examples in the stream than this is tail."""
    dims: tuple[int, ...]
    groups: tuple[str, ...]
    """("pretrain-head", "novel-head", "pretrain-tail", "novel-tail", "mean per class", "overall")."""
    accuracy: tuple[tuple[float | None, ...], ...]
    """[groups][dims]; None for a group without examples."""
    sd: tuple[tuple[float | None, ...], ...]
    """[groups][dims], over the draws."""


def stream(
    database: EmbeddingSet,
    queries: EmbeddingSet,
    *,
    novel: Sequence[int],
    draws: int = 5,
    tail_below: int | None = None,
    dims: Sequence[int] | None = None,
    seed: int = 0,
) -> Stream:
    raise NotImplementedError
