"""An encoder followed by a linear projection."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from matryo.arguments import as_integer, checked


class Projected(nn.Module):
    """An encoder followed by a linear map to ``dim`` dimensions."""

    @checked
    def __init__(self, encoder: nn.Module, dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = nn.Linear(encoder.dim, as_integer(dim, "dim", 1), bias=bias)   # type: ignore[arg-type]
        self.dim = dim

    def forward(self, x: Any) -> Tensor:
        """[batch, …] → [batch, dim]."""
        return self.projection(self.encoder(x))
