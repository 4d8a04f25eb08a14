"""Vectors as searches read them: prefix blocks, metrics, and checked queries."""
