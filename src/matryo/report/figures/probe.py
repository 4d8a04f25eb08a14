"""Linear probe: accuracy of a linear classifier by dim."""

from functools import partial

from matryo.evaluation.protocols.probe import Probe
from matryo.report.lines import by_split

sections = partial(
    by_split, result=Probe, key="probe", title="Linear probe", method="a linear probe",
    meaning="A linear classifier is fitted on the frozen vectors at each dim. It measures what the dim contains, "
    "independent of the model's own head.",
)  # fmt: skip
