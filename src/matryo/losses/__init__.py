"""Losses at every dim at once. They take tensors, never models."""

from matryo.losses.contrastive import nested_contrastive
from matryo.losses.cross_entropy import cross_entropy_by_dim, nested_cross_entropy, prefix_logits
from matryo.losses.lift import nested

__all__ = ["cross_entropy_by_dim", "nested", "nested_contrastive", "nested_cross_entropy", "prefix_logits"]
