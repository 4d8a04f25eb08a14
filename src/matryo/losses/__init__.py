"""Nested losses: every dim at once. They take tensors, not models.

:class:`NestedRankingLoss` is the exception: the sentence-transformers trainer passes texts to its losses, so it holds
the model that embeds them.
"""

from matryo.losses.contrastive import contrastive_by_dim, nested_contrastive
from matryo.losses.cross_entropy import cross_entropy_by_dim, nested_cross_entropy, prefix_logits
from matryo.losses.distil import distil_by_dim, nested_distil
from matryo.losses.self_distil import SelfDistil
from matryo.losses.sentence_transformers.ranking import NestedRankingLoss
from matryo.losses.wrap import nested

__all__ = [
    "NestedRankingLoss", "SelfDistil", "contrastive_by_dim", "cross_entropy_by_dim", "distil_by_dim", "nested",
    "nested_contrastive", "nested_cross_entropy", "nested_distil", "prefix_logits",
]  # fmt: skip
