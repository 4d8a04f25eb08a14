"""Segments: immutable folders of rows, how they are written, and when they are merged."""
