"""Objectives: the models that a recipe can train, each an encoder with a nested loss."""
