"""Graded pairs: rank correlation of cosines with human grades by dim."""

from functools import partial

from matryo.evaluation.protocols.sts import Sts
from matryo.report.lines import by_split

sections = partial(
    by_split, result=Sts, key="sts", title="Graded pairs", method="cosines against human grades",
    meaning="Spearman's rank correlation between the cosines of pairs and their grades: 100 % is the same order, 0 % "
    "is no relation.",
    same=lambda one: (one.dims, one.pairs), metric="Spearman", figure=lambda one: one.spearman,
)  # fmt: skip
