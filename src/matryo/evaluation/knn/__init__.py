"""Exact nearest neighbours at every dim in one pass."""
