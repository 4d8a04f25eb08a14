"""Compression: for a number of bytes per vector, the rotation, dims and bits that keep the most neighbours."""

from matryo.compress.choosing import Candidate
from matryo.compress.compression import Compression

__all__ = ["Candidate", "Compression"]
