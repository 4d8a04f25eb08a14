"""Metrics: arrays in, numbers out. Fractions are in 0 … 1; tables print them in percent."""

from matryo.metrics.accuracy import label_ranks
from matryo.metrics.correlation import pearson, spearman
from matryo.metrics.cost import mflops, vector_bytes
from matryo.metrics.ranking import (
    average_precision,
    hit_rate,
    majority,
    mean_average_precision,
    mean_reciprocal_rank,
    ndcg,
    precision,
    recall,
    relevance,
)

__all__ = [
    "average_precision", "hit_rate", "label_ranks", "majority", "mean_average_precision", "mean_reciprocal_rank",
    "mflops", "ndcg", "pearson", "precision", "recall", "relevance", "spearman", "vector_bytes",
]  # fmt: skip
