"""Embeddings on disk, the seam between training and search: written by any model, read with numpy only."""

from matryo.embeddings.head import Head
from matryo.embeddings.manifest import Description, FileRecord, Manifest
from matryo.embeddings.rows import UNKNOWN
from matryo.embeddings.set import EmbeddingSet
from matryo.embeddings.writer import EmbeddingWriter

__all__ = ["UNKNOWN", "Description", "EmbeddingSet", "EmbeddingWriter", "FileRecord", "Head", "Manifest"]
