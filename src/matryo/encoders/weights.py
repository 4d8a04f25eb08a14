"""Write weights as safetensors files that other libraries load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from matryo.files import replacing


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write ``weights`` to a safetensors file, atomically."""
    # Contiguous copies: safetensors refuses shared memory, and other layouts (channels_last) are not widely supported.
    layout = torch.contiguous_format
    plain = {name: value.detach().cpu().clone(memory_format=layout) for name, value in weights.items()}
    with replacing(path) as file:
        file.write(save(plain, metadata={"format": "pt"}))
