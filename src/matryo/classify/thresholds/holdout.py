"""A reproducible hold-out: the rows that chose the thresholds, so that they are not used to test them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from matryo.embeddings import UNKNOWN
from matryo.errors import InputError
from matryo.files import parse_json

if TYPE_CHECKING:
    from matryo.arrays import Bools
    from matryo.embeddings import EmbeddingSet


@dataclass(frozen=True)
class Holdout:
    """A random share of the labelled rows of a split, as embedded by a model; made by :meth:`of`.

    >>> from matryo import EmbeddingSet
    >>> mine = EmbeddingSet.of(np.eye(4), labels=[0, 1, 0, -1], split="val")
    >>> Holdout.of(mine, share=1, seed=0).rows(mine)
    array([ True,  True,  True, False])
    """

    model: str | Mapping[str, Any]
    dataset: str
    split: str
    labels: str
    """The SHA-256 of the split's labels, because a seed chooses other rows if the labels differ."""
    share: float
    seed: int

    @classmethod
    def of(cls, embeddings: EmbeddingSet, share: float, seed: int) -> Self:
        """Return the hold-out that ``seed`` chooses."""
        about = embeddings.manifest
        return cls(about.model, about.dataset, _split(embeddings), _digest(embeddings), share, seed)

    @classmethod
    def load(cls, path: str | Path) -> Self | None:
        """Return the hold-out that a saved cascade was fitted on; None if it was not recorded."""
        try:
            saved = parse_json(Path(path).read_text(encoding="utf-8")).get("fitted_on")
            if saved is None:
                return None
            share, seed = float(saved.pop("share")), int(saved.pop("seed"))
            if not 0 < share <= 1 or seed < 0:
                raise ValueError(f"share {share:g}, seed {seed}")
            return cls(**saved, share=share, seed=seed)
        except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
            cure = "save it again, or check the path"
            raise InputError(f"{path} must be a saved cascade", got=error, cure=cure) from error

    def is_of(self, embeddings: EmbeddingSet) -> bool:
        """Whether the hold-out was taken from this split of this dataset, as embedded by this model."""
        about = embeddings.manifest
        return (self.model, self.dataset, self.split) == (about.model, about.dataset, _split(embeddings))

    def can_tell(self, embeddings: EmbeddingSet) -> bool:
        """Whether these are the rows it was taken from, so that :meth:`rows` gives the same hold-out."""
        return self.is_of(embeddings) and self.labels == _digest(embeddings)

    def rows(self, embeddings: EmbeddingSet) -> Bools:
        """Return [n]: whether each row is in the hold-out."""
        held = np.zeros(len(embeddings), bool)
        if embeddings.labels is not None:
            labelled = np.flatnonzero(embeddings.labels != UNKNOWN)
            held[np.random.default_rng(self.seed).permutation(labelled)[: round(self.share * len(labelled))]] = True
        return held


def _split(embeddings: EmbeddingSet) -> str:
    return embeddings.manifest.split or embeddings.path.name


def _digest(embeddings: EmbeddingSet) -> str:
    labels = np.empty(0) if embeddings.labels is None else embeddings.labels
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()
