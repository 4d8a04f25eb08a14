"""How the best nested recipe was chosen: accuracy of the heads, and cosines under maps that keep every logit."""

from __future__ import annotations

from matryo.results import Row
from pages.markdown import grid, latest

CHOICE = """**How the settings of tiny-imagenet-rn18-best were chosen**: on {held:g} % of the training images, held out,
with one seed per candidate unless its title says otherwise; differences of less than half a point may be noise. The
heads are as trained, and with half of each replaced by the mean of the heads at its dim and below (`head.blend = 0.5`).
1-NN and mAP@10 are those of the vectors as trained, and after maps that keep every logit: centred; divided by the
standard deviation of each column; whitened by the total covariance; and whitened by the covariance within classes
(`encoder.whiten = "within"`). Before whitening, the covariance is shrunk by the given share towards a multiple of the
identity. The recipe takes `head.weights = 0.5,0.25,0.25,0.25,0.25,0.5,1`, the map `within, 0.5` and the blended heads;
and `head.self_distil = 0.7`, because it was better than 0.5 at most dims where both were tried, here and with the neck
above."""
COLUMNS = (
    ("1-NN", "none", "1-NN as trained"), ("1-NN", "centre", "centred"), ("1-NN", "standardise", "divided"),
    ("1-NN", "total-equal 0.1", "total, 0.1"), ("1-NN", "total-equal 0.9", "total, 0.9"),
    ("1-NN", "within-equal 0.1", "within, 0.1"), ("1-NN", "within-equal 0.5", "within, 0.5"),
    ("1-NN", "within-equal 0.9", "within, 0.9"),
    ("map@10", "none", "mAP@10 as trained"), ("map@10", "within-equal 0.5", "within, 0.5"),
)  # fmt: skip
"""Metric, map and title."""


def map_tables(rows: list[Row]) -> list[str]:
    """For each candidate, a table: dims down; heads, 1-NN and mAP@10 across."""
    parts = [CHOICE.format(held=100 * rows[0].figures["validate"])]
    for row in latest(rows, lambda row: (str(row.figures["changed"]), row.seed)):
        figures = row.figures
        changed = ", ".join(f"{field} = {value}" for field, value in figures["changed"].items())
        parts += [f"{changed}, seed {row.seed}:"]
        columns = [figures["top1"], figures["averaged heads"]["half own"]]
        columns += [figures[metric][name] for metric, name, _ in COLUMNS]
        lines = [[dim, *(f"{100 * by_dim[dim]:.1f}" for by_dim in columns)] for dim in figures["top1"]]
        parts += [grid(["dim", "head", "blended", *(title for *_, title in COLUMNS)], lines)]
    return parts


MAKERS = {"maps": map_tables}
