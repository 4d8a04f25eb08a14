"""The report's figures, one file a protocol, in the order of the page."""

from matryo.report.figures.accuracy import accuracy
from matryo.report.figures.cascade import cascade
from matryo.report.figures.classes import classes
from matryo.report.figures.few_shot import few_shot
from matryo.report.figures.gallery import disagreement, gradcam
from matryo.report.figures.pairs import pairs
from matryo.report.figures.per_model import probe, sts, zero_shot
from matryo.report.figures.retrieval import retrieval
from matryo.report.figures.robustness import robustness
from matryo.report.figures.similarity import similarity
from matryo.report.figures.stream import stream
from matryo.report.figures.superclass import superclass
from matryo.report.figures.training import training

__all__ = ["FIGURES"]

FIGURES = (
    accuracy,
    retrieval,
    pairs,
    cascade,
    few_shot,
    robustness,
    superclass,
    classes,
    similarity,
    disagreement,
    gradcam,
    probe,
    zero_shot,
    sts,
    stream,
    training,
)
"""Each takes the material and gives its section, or None where no row is of its kind."""
