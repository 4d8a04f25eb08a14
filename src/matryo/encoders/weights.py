"""Weights as other libraries read them: safetensors that say they are PyTorch's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors.torch import save

from matryo.files import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

__all__ = ["write_weights"]


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write ``weights`` to a safetensors file, whole or absent."""
    # Copies, as tensors that share memory are refused, in the plain layout, as others are not read by everyone.
    plain = {name: _plain(value) for name, value in weights.items()}
    with replacing(path) as file:
        file.write(save(plain, metadata={"format": "pt"}))


def _plain(value: Tensor) -> Tensor:
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)
