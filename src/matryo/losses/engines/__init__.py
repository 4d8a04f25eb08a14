"""Engines that compute nested losses, and the choice between them.

``plain`` is the reference: torch stores all scores and differentiates them, which is fastest while they are few.
``triton`` (GPU) and ``chunked`` (any device) recompute the scores in the backward pass instead of storing them.
"""

from __future__ import annotations

import importlib.util
import os

import torch

from matryo.errors import InputError
from matryo.losses.engines.contract import Scores

__all__ = ["ENGINES", "HAS_TRITON", "choose", "wide"]

ENGINES = ("auto", "plain", "chunked", "triton")

# Up to this many scores (rows × columns × dims) auto stores them. On a GPU, extra launches cost more than the memory.
_MAX_STORED = {"cuda": 5 << 24, "cpu": 1 << 22}
HAS_TRITON = importlib.util.find_spec("triton") is not None


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which scores of ``dtype`` vectors are computed: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def choose(scores: Scores, engine: str = "auto", *, teaching: bool = False) -> str:
    """Resolve ``auto`` to an engine for these scores, or check that the named engine can run.

    With ``teaching``, smaller dims learn from larger ones, which the engine triton cannot compute.
    """
    if engine not in ENGINES:
        raise InputError(f"engine must be one of {', '.join(ENGINES)}", got=repr(engine), cure='use engine="auto"')
    if engine == "triton":
        _check_triton(scores)
        if teaching:
            cure = 'use engine="auto"'
            raise InputError("engine triton cannot distil from larger dims", got="self_distil", cure=cure)
    if engine != "auto":
        return engine
    if scores.rows * scores.columns * len(scores.nesting) <= _MAX_STORED.get(scores.x.device.type, _MAX_STORED["cpu"]):
        return "plain"
    fits = scores.x.is_cuda and scores.x.dtype != torch.float64 and not torch.are_deterministic_algorithms_enabled()
    return "triton" if HAS_TRITON and fits and not teaching else "chunked"


def _check_triton(scores: Scores) -> None:
    x, auto = scores.x, 'use engine="auto"'
    runs = x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    checks = (
        (HAS_TRITON, "engine triton needs the triton package", "not installed", f"pip install triton, or {auto}"),
        (runs, "engine triton runs on a GPU only", f"vectors on {x.device}", f"move them to cuda, or {auto}"),
        (x.dtype != torch.float64, "engine triton computes in float32 at most", x.dtype, f"pass float32, or {auto}"),
    )
    for fulfilled, rule, got, cure in checks:
        if not fulfilled:
            raise InputError(rule, got=got, cure=cure)
