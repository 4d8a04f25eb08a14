"""Protocols: one file per way to measure embeddings at every dim."""
