"""Batches: what a model is shown at each step, as a pure function of the seed, the epoch and the item."""
