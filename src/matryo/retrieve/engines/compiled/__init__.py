"""The compiled engine: loops for one query at a time."""
