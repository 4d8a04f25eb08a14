"""Reproduce the paper: its tables as data, the models they need, and a verdict on each of its claims."""

from matryo.reproduce.page import Evidence
from matryo.reproduce.paper import TABLES
from matryo.reproduce.run import chosen_tables, listing, reproduce
from matryo.reproduce.scales import SCALES, Scale, scale_of
from matryo.reproduce.table import Cell, Claim, Comparison, Table

__all__ = [
    "SCALES", "TABLES", "Cell", "Claim", "Comparison", "Evidence", "Scale", "Table", "chosen_tables", "listing",
    "reproduce", "scale_of",
]  # fmt: skip
