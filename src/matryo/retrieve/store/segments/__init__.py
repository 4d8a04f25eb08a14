"""Segments: rows that never change, how they are written, and when they are merged."""
