"""Splits of pairs: queries, candidates, and the relevant pairs of them."""
