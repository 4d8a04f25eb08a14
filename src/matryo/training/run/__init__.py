"""The run folder: checkpoints, logs, and what a finished training leaves behind."""
