"""Evaluation: every dim × every protocol → one results table."""

from matryo.evaluation.evaluate import default_dims, evaluate
from matryo.evaluation.result import Comparison, DimRow, Evaluation, beside
from matryo.evaluation.search import search
from matryo.evaluation.table import table

__all__ = ["Comparison", "DimRow", "Evaluation", "beside", "default_dims", "evaluate", "search", "table"]
