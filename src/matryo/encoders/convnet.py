"""A small residual network for small images; the demo trains it on a laptop CPU in two minutes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from matryo.encoders.layers import make_norm

__all__ = ["ConvNet"]


class ConvNet(nn.Module):
    """A stride-2 stem, one residual block per stage, a 4 × 4 feature map, a projection to ``dim``.

    The feature map is flattened, not averaged, because positions matter in small drawings. A batch norm without scale
    and shift follows the projection: every dimension has the same variance, so every prefix starts with its share of
    the signal.
    """

    def __init__(self, dim: int = 256, *, width: int = 32, stages: int = 3, norm: str = "batch") -> None:
        super().__init__()
        self.dim = dim
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), make_norm(norm, width), nn.ReLU())
        widths = [width * 2**stage for stage in range(stages)]
        self.blocks = nn.Sequential(
            *(
                Block(before, after, stride=1 if stage == 0 else 2, norm=norm)
                for stage, (before, after) in enumerate(zip([width, *widths[:-1]], widths, strict=True))
            )
        )
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.projection = nn.Linear(16 * widths[-1], dim, bias=False)
        self.spread = nn.BatchNorm1d(dim, affine=False) if norm == "batch" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 3, height, width] → [batch, dim]."""
        x = self.blocks(self.stem(x))
        if x.shape[-2:] != (4, 4):   # no pooling needed for 32 px
            x = self.pool(x)
        z: Tensor = self.spread(self.projection(x.flatten(1)).float())
        return z


class Block(nn.Module):
    """Two 3×3 convolutions with a shortcut; initialised so that only the shortcut contributes."""

    def __init__(self, before: int, after: int, *, stride: int, norm: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            make_norm(norm, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            make_norm(norm, after),
        )
        nn.init.zeros_(self.body[-1].weight)   # type: ignore[arg-type]
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.AvgPool2d(stride) if stride > 1 else nn.Identity(),
                nn.Conv2d(before, after, 1, bias=False),
                make_norm(norm, after),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Add the convolutions to the shortcut."""
        return torch.relu(self.body(x) + self.shortcut(x))
