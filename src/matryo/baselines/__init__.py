"""Baselines that reduce the dim of embeddings without nested training, each a map fitted on training embeddings."""

from matryo.baselines.axes import PCA, SVD, ClassifierSVD
from matryo.baselines.columns import RandomFeatures, Truncation
from matryo.baselines.map import Baseline, Map
from matryo.baselines.named import DRAWN, NAMES, RUNGS, baseline
from matryo.baselines.projection import RandomProjection
from matryo.baselines.rungs import LadderRung

__all__ = [
    "DRAWN", "NAMES", "PCA", "RUNGS", "SVD", "Baseline", "ClassifierSVD", "LadderRung", "Map", "RandomFeatures",
    "RandomProjection", "Truncation", "baseline",
]  # fmt: skip
