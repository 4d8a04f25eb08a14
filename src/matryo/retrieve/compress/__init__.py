"""Compression: for a number of bytes per vector, the rotation, dims and bits that keep the most neighbours."""

from matryo.retrieve.compress.choosing import Candidate
from matryo.retrieve.compress.compression import Compression

__all__ = ["Candidate", "Compression"]
