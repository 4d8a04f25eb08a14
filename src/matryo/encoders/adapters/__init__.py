"""Adapters that make models of timm, transformers, sentence-transformers and open_clip encoders."""
