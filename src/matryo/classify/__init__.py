"""Adaptive classification: each row is answered at the smallest dim that is confident enough."""

from matryo.classify.cascade import Cascade
from matryo.classify.confidence import average_views
from matryo.classify.curve import CascadeCurve, cascade_curve
from matryo.classify.outcomes import CascadeResult
from matryo.classify.walk import Answers

__all__ = ["Answers", "Cascade", "CascadeCurve", "CascadeResult", "average_views", "cascade_curve"]
