"""Thresholds: the ways to choose when a dim is confident enough."""
