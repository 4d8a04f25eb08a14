"""The table of adaptive classification: accuracy and expected dims of the paper's greedy cascade, by its last dim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.classify import cascade_curve
from matryo.reproduce import models
from matryo.reproduce.measures.heads import fixed_heads

if TYPE_CHECKING:
    from matryo.reproduce.measures.found import Found
    from matryo.reproduce.runs import Workshop

_HOLDOUTS, _FRACTION = 30, 0.2   # the paper's: 30 subsets, 10,000 of 50,000 images each


def cascade(shop: Workshop, seed: int) -> Found:
    """The cascade on the query split, beside the fixed model of each dim."""
    queries = shop.embeddings(models.nested(shop), seed, shop.scale.query)
    curve = cascade_curve(queries, strategy="greedy", holdouts=_HOLDOUTS, fraction=_FRACTION, progress=shop.progress)
    stops = [int(stop) for stop in curve.stop]
    fixed = fixed_heads(shop, seed, shop.scale.query)
    return {
        "Expected dims": dict(zip(stops, curve.expected_dim, strict=True)),
        "Accuracy": {stop: 100 * share for stop, share in zip(stops, curve.accuracy, strict=True)},
        "_FF": {dim: 100 * float(hits.mean()) for dim, hits in fixed.items()},
    }
