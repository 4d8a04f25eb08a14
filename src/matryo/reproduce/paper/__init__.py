"""Every table of the paper as data, in its order; the figures belong to the table whose numbers they draw."""

from __future__ import annotations

from matryo.reproduce.paper.ablations import TABLES as ABLATIONS
from matryo.reproduce.paper.analysis import TABLES as ANALYSIS
from matryo.reproduce.paper.classification import TABLES as CLASSIFICATION
from matryo.reproduce.paper.retrieval import TABLES as RETRIEVAL

TABLES = {table.name: table for table in (*CLASSIFICATION, *RETRIEVAL, *ANALYSIS, *ABLATIONS)}
"""The tables by name."""
PICTURES = {
    "teaser": "a drawing of the idea; it has no numbers",
    "r50-gradcam": "where the network looks, on four photographs: `matryo.inference.gradcam` draws it for any image",
}
"""The figures that show no table's numbers, and what there is instead."""
