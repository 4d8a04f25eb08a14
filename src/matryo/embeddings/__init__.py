"""The seam: embeddings on disk, written by torch or by anyone, read with numpy alone."""

from matryo.embeddings.head import Head
from matryo.embeddings.manifest import Description, FileRecord, Manifest
from matryo.embeddings.rows import UNKNOWN
from matryo.embeddings.set import EmbeddingSet
from matryo.embeddings.writer import EmbeddingWriter

__all__ = ["UNKNOWN", "Description", "EmbeddingSet", "EmbeddingWriter", "FileRecord", "Head", "Manifest"]
