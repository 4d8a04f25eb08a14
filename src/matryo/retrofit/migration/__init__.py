"""Migration: maps from the vectors of one model into the space of another, for an index that survives an upgrade."""

from matryo.retrofit.migration.migration import Migration
from matryo.retrofit.migration.table import Measured

__all__ = ["Measured", "Migration"]
