"""Batches: the inputs of each step, as a pure function of the seed, the epoch and the item."""
