"""Codes: rows of numbers as a few bytes each, how they are fitted, decoded and searched."""
