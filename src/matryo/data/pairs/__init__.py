"""Pair splits: queries, candidates, and which of them belong together."""
