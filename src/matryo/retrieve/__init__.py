"""Retrieval: search few dims first, then re-rank the shortlist with more."""

from matryo.retrieve.compaction import Compaction
from matryo.retrieve.engines.execute import NUMPY, Engine, execute
from matryo.retrieve.engines.numpy.scan import first_stage
from matryo.retrieve.engines.numpy.shortlist import Shortlist, rerank
from matryo.retrieve.engines.request import Request
from matryo.retrieve.hits import Hit, Hits
from matryo.retrieve.index import Index
from matryo.retrieve.plan.plan import Plan, Precision, Stage
from matryo.retrieve.plan.searcher import Searcher
from matryo.retrieve.vectors.blocks import Blocks, Int8Block
from matryo.retrieve.vectors.metric import METRICS, Metric

__all__ = ["METRICS", "NUMPY", "Blocks", "Compaction", "Engine", "Hit", "Hits", "Index", "Int8Block", "Metric", "Plan",
           "Precision", "Request", "Searcher", "Shortlist", "Stage", "execute", "first_stage", "rerank"]  # fmt: skip
