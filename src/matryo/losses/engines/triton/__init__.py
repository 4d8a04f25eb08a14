"""The Triton engine: nested losses on a GPU without storing the scores."""
