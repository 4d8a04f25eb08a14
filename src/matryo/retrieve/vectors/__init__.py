"""Vectors for searching: prefix blocks, metrics, and checked queries."""
