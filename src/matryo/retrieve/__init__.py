"""Retrieval: few dims first, more for those that are left."""

from matryo.retrieve.blocks import Blocks, Int8Block
from matryo.retrieve.execute import NUMPY, Engine, Hits, execute
from matryo.retrieve.index import Index
from matryo.retrieve.metric import METRICS, Metric
from matryo.retrieve.plan import Plan, Precision, Stage
from matryo.retrieve.scan import first_stage
from matryo.retrieve.shortlist import Shortlist, rerank

__all__ = [
    "METRICS",
    "NUMPY",
    "Blocks",
    "Engine",
    "Hits",
    "Index",
    "Int8Block",
    "Metric",
    "Plan",
    "Precision",
    "Shortlist",
    "Stage",
    "execute",
    "first_stage",
    "rerank",
]
