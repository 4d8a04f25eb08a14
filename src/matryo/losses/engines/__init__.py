"""Engines that compute nested losses, and the choice between them.

``plain`` is the definition: torch keeps all scores and finds the gradients by itself, which is quickest while the
scores are few. ``triton`` (a GPU) and ``chunked`` (any device) keep none.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

import torch

from matryo.errors import InputError

if TYPE_CHECKING:
    from matryo.losses.engines.contract import Scores

__all__ = ["ENGINES", "HAS_TRITON", "choose", "wide"]

ENGINES = ("auto", "plain", "chunked", "triton")

# Scores × dims that are kept rather than computed twice. A GPU has much memory, and launches cost it more than scores.
_FEW = {"cuda": 5 << 24, "cpu": 1 << 22}
HAS_TRITON = importlib.util.find_spec("triton") is not None


def wide(dtype: torch.dtype) -> torch.dtype:
    """What scores of vectors in ``dtype`` are computed in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def choose(scores: Scores, engine: str = "auto") -> str:
    """The engine for these scores; one that is asked for by name is checked."""
    if engine not in ENGINES:
        raise InputError(f"engine must be one of {', '.join(ENGINES)}", got=repr(engine), cure="use auto")
    if engine == "triton":
        _check_triton(scores)
    if engine != "auto":
        return engine
    if scores.rows * scores.columns * len(scores.nesting) <= _FEW.get(scores.x.device.type, _FEW["cpu"]):
        return "plain"
    fits = scores.x.is_cuda and scores.x.dtype != torch.float64 and not torch.are_deterministic_algorithms_enabled()
    return "triton" if HAS_TRITON and fits else "chunked"


def _check_triton(scores: Scores) -> None:
    if not HAS_TRITON:
        raise InputError(
            "engine triton needs the package triton", got="none installed", cure="pip install triton, or use auto"
        )
    if not scores.x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise InputError(
            "engine triton computes on a GPU",
            got=f"vectors on {scores.x.device}",
            cure="move them to cuda, or use auto",
        )
    if scores.x.dtype == torch.float64:
        raise InputError(
            "engine triton computes in float32 at most", got=scores.x.dtype, cure="pass float32, or use auto"
        )
