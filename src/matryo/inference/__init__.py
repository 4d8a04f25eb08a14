"""Use a trained model: load it, encode, predict, and explain by Grad-CAM. Loads torch on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from matryo.errors import MissingExtra

if TYPE_CHECKING:
    from matryo.inference.encode import encode_pairs, encode_split
    from matryo.inference.model import Prediction, TrainedModel, load

__all__ = ["Prediction", "TrainedModel", "encode_pairs", "encode_split", "load"]

_HOMES = {
    "Prediction": "model", "TrainedModel": "model", "load": "model", "encode_pairs": "encode", "encode_split": "encode",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'matryo.inference' has no attribute {name!r}")
    with MissingExtra.unless_installed("PyTorch", "train", module="torch"):
        module = import_module(f"matryo.inference.{_HOMES[name]}")
    return getattr(module, name)
