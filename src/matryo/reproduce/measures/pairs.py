"""Tables of image and text pairs: accuracy by dim and between, cosines, zero-shot classification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.evaluation.knn.search import search
from matryo.nesting import truncate
from matryo.reproduce import models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Array
    from matryo.reproduce.measures.found import Found
    from matryo.reproduce.runs import Workshop
    from matryo.reproduce.table import Label

_NAMES = ("ALIGN", "ALIGN-MRL")
_SPLIT = "style"   # drawings by another vendor, of emoji in training
_NEW = "test"      # emoji that are not in training


def web_scale(shop: Workshop, seed: int) -> Found:
    """How often the name found first belongs to the drawing, for both models."""
    return {name: _hits(shop, name, seed, _SPLIT, shop.scale.dims) for name in _NAMES}


def between(shop: Workshop, seed: int) -> Found:
    """The nested model at dims that were not trained."""
    return {
        "ALIGN-MRL": _hits(shop, "ALIGN-MRL", seed, _SPLIT, shop.scale.between),
        "_trained": _hits(shop, "ALIGN-MRL", seed, _SPLIT, shop.scale.dims),
    }


def zero_shot(shop: Workshop, seed: int) -> Found:
    """Drawings that are not in training, each among the names of all drawings of that split."""
    return {"V1": _hits(shop, "ALIGN-MRL", seed, _NEW, shop.scale.dims)}


def cosines(shop: Workshop, seed: int) -> Found:
    """Mean cosines of positive and of all pairs, at full dim."""
    found: Found = {}
    for name in _NAMES:
        images, texts, pairs = _vectors(shop, name, seed, _SPLIT)
        found[name] = {
            "positive text to image": float((images[pairs[:, 0]] * texts[pairs[:, 1]]).sum(1).mean()),
            "random text to image": float(images.mean(0) @ texts.mean(0)),
            "random image to image": _among(images),
            "random text to text": _among(texts),
        }
    return found


def _among(vectors: Array) -> float:
    """The mean cosine of two different rows: that of all pairs of rows, less each row with itself."""
    count = len(vectors)
    return (float((vectors.sum(0) ** 2).sum()) - count) / (count * (count - 1))


def _hits(shop: Workshop, name: str, seed: int, split: str, dims: Sequence[int]) -> dict[Label, Array]:
    """Whether the nearest text of each image is one of its own, by dim."""
    images, texts, pairs = _vectors(shop, name, seed, split)
    own = np.zeros((len(images), len(texts)), bool)
    own[pairs[:, 0], pairs[:, 1]] = True
    found = search(texts, images, dims, k=1)
    asked = own.any(1)
    return {dim: own[np.arange(len(images)), rows[:, 0]][asked].astype(np.float32) for dim, rows in found.items()}


def _vectors(shop: Workshop, name: str, seed: int, split: str) -> tuple[Any, Any, Any]:
    """The unit vectors of both sides, and the rows of the relevant pairs."""
    from matryo.evaluation import Relevance

    queries, candidates, relevance = shop.sides(models.of_pairs(shop, name), seed, split)
    related = Relevance.open(relevance, queries, candidates)
    images, texts = (truncate(np.asarray(side.vectors, np.float32), side.dim) for side in (queries, candidates))
    return images, texts, related.pairs
