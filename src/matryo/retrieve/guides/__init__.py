"""Guides: structures beside the vectors that speed up a first stage: sketch, partition (IVF), graph (HNSW)."""
