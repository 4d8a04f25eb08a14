"""Rotated vectors: the orthogonal map of an index, its change, and a look at vectors that it does not suit."""
