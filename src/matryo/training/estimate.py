"""How long a training on a CPU will take, estimated from one small batch before the first step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from matryo.training.recipe.fields import Recipe
    from matryo.training.step import Step

LONG = 30 * 60   # seconds of training on a CPU that are worth a warning
_ITEMS = 8   # timed; more predict no better


def estimated_step(step: Step, inputs: Any, target: Tensor) -> float:
    """Seconds per step on the batch (``inputs``, ``target``), from its first few items; leaves the model unchanged."""
    parts = max(1, len(target) // _ITEMS)
    buffers = [buffer.clone() for buffer in step.model.buffers()]   # norms update theirs in the forward pass
    try:
        began = time.monotonic()
        step.try_part(inputs, target, parts)
        return (time.monotonic() - began) * parts
    finally:
        step.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, kept in zip(step.model.buffers(), buffers, strict=True):
                buffer.copy_(kept)


def too_slow(seconds: float, steps: int, recipe: Recipe, *, reads_texts: bool) -> str:
    """A line with the time that ``steps`` of ``seconds`` take and what would shorten it; empty if they are few.

    >>> from matryo.training.recipe.fields import Recipe
    >>> too_slow(0.1, 1000, Recipe(), reads_texts=False)
    ''
    """
    total = seconds * steps
    if total <= LONG:
        return ""
    smaller, size = ("bert-tiny", "--text.length") if reads_texts else ("convnet", "--data.size")
    choices = [f"--encoder.name {smaller}"] if recipe.encoder.name != smaller else []
    choices += ["fewer --loop.steps" if recipe.loop.steps else "fewer --loop.epochs", f"a smaller {size}"]
    took = f"{total / 3600:.1f} hours" if total >= 5400 else f"{total / 60:.0f} minutes"
    return (
        f"this CPU needs about {took} for {steps:,} steps of {seconds:.2g} s; for a shorter training use "
        f"{', '.join(choices[:-1])} or {choices[-1]}, or train on a GPU"
    )
