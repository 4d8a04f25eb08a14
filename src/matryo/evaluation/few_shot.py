"""Few-shot: n examples a class, the nearest class mean decides, over repeated draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from matryo.results import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.embeddings import EmbeddingSet

__all__ = ["FewShot", "few_shot"]


@dataclass(frozen=True)
class FewShot(Result):
    """Accuracy of nearest class means after n shots, by number of shots and dim."""

    kind: ClassVar[str] = "few-shot"
    model: str
    dataset: str
    split: str
    classes: str
    """Which classes the ways were drawn from: "all", or a phrase such as "never trained"."""
    ways: int
    draws: int
    dims: tuple[int, ...]
    shots: tuple[int, ...]
    accuracy: tuple[tuple[float, ...], ...]
    """[shots][dims]: the mean over the draws."""
    margin: tuple[tuple[float, ...], ...]
    """[shots][dims]: half the width of the 95 % confidence interval of that mean."""


def few_shot(
    embeddings: EmbeddingSet,
    *,
    shots: Sequence[int] = (1, 3, 5, 7, 9),
    ways: int | None = None,
    draws: int = 100,
    dims: Sequence[int] | None = None,
    classes: Sequence[int] | None = None,
    about: str = "all",
    seed: int = 0,
) -> FewShot:
    raise NotImplementedError
