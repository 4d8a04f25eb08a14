"""The Triton engine: nested losses on a GPU without keeping the scores."""
