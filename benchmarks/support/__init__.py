"""What several benchmarks share: engines under comparison, series of trainings, timing, and tasks."""
