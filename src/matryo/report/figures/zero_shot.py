"""Zero-shot: accuracy from class texts by dim."""

from functools import partial

from matryo.evaluation.protocols.zero_shot import ZeroShot
from matryo.report.lines import by_split

sections = partial(
    by_split, result=ZeroShot, key="zero-shot", title="Zero-shot", method="class texts alone",
    meaning="Each example is assigned the class whose text embedding is nearest. No labelled example is used.",
    same=lambda one: (one.dims, one.prompts),
)  # fmt: skip
