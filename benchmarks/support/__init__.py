"""Shared parts of several benchmarks: engines under comparison, series of trainings, timing, and tasks."""
