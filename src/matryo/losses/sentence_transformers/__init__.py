"""A nested ranking loss for the sentence-transformers trainer."""

from matryo.losses.sentence_transformers.ranking import NestedRankingLoss

__all__ = ["NestedRankingLoss"]
