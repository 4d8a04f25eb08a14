"""Evaluation: every protocol at every dim, and tables of the results."""

from matryo.evaluation.checks import default_dims
from matryo.evaluation.knn.search import search
from matryo.evaluation.measure import measure, measure_baseline
from matryo.evaluation.predictions import Predictions, predict
from matryo.evaluation.protocol import Protocol
from matryo.evaluation.protocols import BASELINED, PROTOCOLS
from matryo.evaluation.protocols.disagreement import Disagreement, disagreement
from matryo.evaluation.protocols.evaluate import DimRow, Evaluation, evaluate
from matryo.evaluation.protocols.few_shot import FewShot, few_shot
from matryo.evaluation.protocols.pairs import PAIR_METRICS, Pairs, pairs
from matryo.evaluation.protocols.probe import Probe, linear_probe
from matryo.evaluation.protocols.robustness import Robustness, robustness
from matryo.evaluation.protocols.similarity import Similarity, similarity_span
from matryo.evaluation.protocols.stream import Stream, stream
from matryo.evaluation.protocols.sts import Sts, sts
from matryo.evaluation.protocols.superclass import Superclasses, superclass_accuracy
from matryo.evaluation.protocols.trends import Trends, trends
from matryo.evaluation.protocols.zero_shot import ZeroShot, zero_shot
from matryo.evaluation.relevance import Relevance
from matryo.evaluation.subject import Subject
from matryo.results import table

__all__ = [
    "BASELINED", "PAIR_METRICS", "PROTOCOLS", "DimRow", "Disagreement", "Evaluation", "FewShot", "Pairs",
    "Predictions", "Probe", "Protocol", "Relevance", "Robustness", "Similarity", "Stream", "Sts", "Subject",
    "Superclasses", "Trends", "ZeroShot", "default_dims", "disagreement", "evaluate", "few_shot", "linear_probe",
    "measure", "measure_baseline", "pairs", "predict", "robustness", "search", "similarity_span", "stream", "sts",
    "superclass_accuracy", "table", "trends", "zero_shot",
]  # fmt: skip
