"""Evaluation: every dim × every protocol → one results table."""

from matryo.evaluation.checks import default_dims
from matryo.evaluation.knn.search import search
from matryo.evaluation.predictions import Predictions, predict
from matryo.evaluation.protocols.dim_tables import sts_table, zero_shot_table
from matryo.evaluation.protocols.disagreement import Disagreement, disagreement
from matryo.evaluation.protocols.evaluate import evaluate
from matryo.evaluation.protocols.evaluate_table import table
from matryo.evaluation.protocols.few_shot import FewShot, few_shot
from matryo.evaluation.protocols.measure import BASELINED, PROTOCOLS, Subject, measure, measure_baseline
from matryo.evaluation.protocols.pairs import PAIR_METRICS, Pairs, pairs
from matryo.evaluation.protocols.pairs_table import pairs_table
from matryo.evaluation.protocols.probe import Probe, linear_probe
from matryo.evaluation.protocols.robustness import Robustness, robustness
from matryo.evaluation.protocols.similarity import Similarity, similarity_span
from matryo.evaluation.protocols.stream import Stream, stream
from matryo.evaluation.protocols.sts import Sts, sts
from matryo.evaluation.protocols.superclass import Superclasses, superclass_accuracy
from matryo.evaluation.protocols.trends import Trends, trends
from matryo.evaluation.protocols.zero_shot import ZeroShot, zero_shot
from matryo.evaluation.relevance import Relevance
from matryo.evaluation.result import Comparison, DimRow, Evaluation, beside

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
