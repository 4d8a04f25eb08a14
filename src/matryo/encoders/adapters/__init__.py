"""Adapters: models of timm, transformers, sentence-transformers and open_clip as encoders."""
