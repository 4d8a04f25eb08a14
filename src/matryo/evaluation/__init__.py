"""Evaluation: every dim × every protocol → one results table."""

from matryo.evaluation.checks import default_dims
from matryo.evaluation.dim_tables import sts_table, zero_shot_table
from matryo.evaluation.disagreement import Disagreement, disagreement
from matryo.evaluation.few_shot import FewShot, few_shot
from matryo.evaluation.grade import evaluate
from matryo.evaluation.pairs import PAIR_METRICS, Pairs, pairs
from matryo.evaluation.pairs_table import pairs_table
from matryo.evaluation.predictions import Predictions, predict
from matryo.evaluation.probe import Probe, linear_probe
from matryo.evaluation.protocols import BASELINED, PROTOCOLS, Subject, measure, measure_baseline
from matryo.evaluation.relevance import Relevance
from matryo.evaluation.result import Comparison, DimRow, Evaluation, beside
from matryo.evaluation.robustness import Robustness, robustness
from matryo.evaluation.search import search
from matryo.evaluation.similarity import Similarity, similarity_span
from matryo.evaluation.stream import Stream, stream
from matryo.evaluation.sts import Sts, sts
from matryo.evaluation.superclass import Superclasses, superclass_accuracy
from matryo.evaluation.table import table
from matryo.evaluation.trends import Trends, trends
from matryo.evaluation.zero_shot import ZeroShot, zero_shot

__all__ = [
    "BASELINED",
    "PAIR_METRICS",
    "PROTOCOLS",
    "Comparison",
    "DimRow",
    "Disagreement",
    "Evaluation",
    "FewShot",
    "Pairs",
    "Predictions",
    "Probe",
    "Relevance",
    "Robustness",
    "Similarity",
    "Stream",
    "Sts",
    "Subject",
    "Superclasses",
    "Trends",
    "ZeroShot",
    "beside",
    "default_dims",
    "disagreement",
    "evaluate",
    "few_shot",
    "linear_probe",
    "measure",
    "measure_baseline",
    "pairs",
    "pairs_table",
    "predict",
    "robustness",
    "search",
    "similarity_span",
    "stream",
    "sts",
    "sts_table",
    "superclass_accuracy",
    "table",
    "trends",
    "zero_shot",
    "zero_shot_table",
]
