"""A small residual network for small images; the demo trains it on a laptop CPU in two minutes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from matryo.arguments import as_integer, checked
from matryo.encoders.layers import Layers


class ConvNet(nn.Module):
    """A stride-2 stem, one residual block per stage, a 4 × 4 feature map, a projection to ``dim``.

    The feature map is flattened, not averaged, because positions matter in small drawings. A batch norm without scale
    and shift follows the projection: every dimension has the same variance, so every prefix starts with its share of
    the signal.
    """

    @checked
    def __init__(self, dim: int = 256, *, width: int = 32, stages: int = 3, norm: str = "batch") -> None:
        super().__init__()
        for name, value in (("dim", dim), ("width", width), ("stages", stages)):
            as_integer(value, name, 1)
        self.dim = dim
        layers = Layers(norm=norm)
        self.stem = nn.Sequential(layers.make_conv(3, width, 3, 2), layers.make_norm(width), nn.ReLU())
        widths = [width * 2**stage for stage in range(stages)]
        pairs = zip([width, *widths[:-1]], widths, strict=True)
        self.blocks = nn.Sequential(*(Block(*pair, 2 if stage else 1, layers) for stage, pair in enumerate(pairs)))
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.projection = nn.Linear(16 * widths[-1], dim, bias=False)
        self.spread = nn.BatchNorm1d(dim, affine=False) if norm == "batch" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 3, height, width] → [batch, dim]."""
        x = self.blocks(self.stem(x))
        if x.shape[-2:] != (4, 4):   # no pooling needed for 32 px
            x = self.pool(x)
        return self.spread(self.projection(x.flatten(1)).float())


class Block(nn.Module):
    """Two 3×3 convolutions with a shortcut; initialised so that only the shortcut contributes."""

    def __init__(self, before: int, after: int, stride: int, layers: Layers) -> None:
        super().__init__()
        self.body = nn.Sequential(
            layers.make_conv(before, after, 3, stride),
            layers.make_norm(after),
            nn.ReLU(),
            layers.make_conv(after, after, 3, 1),
            layers.make_norm(after),
        )
        nn.init.zeros_(self.body[-1].weight)   # type: ignore[arg-type]
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.AvgPool2d(stride) if stride > 1 else nn.Identity(),
                layers.make_conv(before, after, 1, 1),
                layers.make_norm(after),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Add the convolutions to the shortcut."""
        return torch.relu(self.body(x) + self.shortcut(x))
