"""An encoder by its name, as recipes spell it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from torch import Tensor, nn

from matryo.encoders.convnet import ConvNet
from matryo.encoders.from_timm import from_timm
from matryo.encoders.layers import Layers
from matryo.encoders.resnet import SHAPES, ResNet
from matryo.encoders.slimmable import SlimmableResNet
from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["build_encoder", "encoder_names"]


class Projected(nn.Module):
    """An encoder followed by a linear map to another number of dimensions."""

    def __init__(self, encoder: nn.Module, dim: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = nn.Linear(encoder.dim, dim)   # type: ignore[arg-type]
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """[batch, …] → [batch, dim]."""
        projected: Tensor = self.projection(self.encoder(x))
        return projected


def encoder_names() -> tuple[str, ...]:
    """The names :func:`build_encoder` knows, besides ``timm:MODEL``."""
    return ("convnet", *SHAPES)


def build_encoder(
    name: str,
    *,
    dim: int = 0,
    stem: str = "imagenet",
    blurpool: bool = False,
    norm: str = "batch",
    pretrained: bool = False,
    widths: Sequence[float] = (),
) -> nn.Module:
    """The encoder called ``name``; ``timm:MODEL`` is any model of timm.

    ``dim=0`` keeps the width the network has by itself (512 for ResNet18, 2048 for ResNet50); another value
    adds a linear projection, except for ``convnet``, which is built for any. ``widths`` make a ResNet slimmable.
    """
    if pretrained and not name.startswith("timm:"):
        raise InputError("published weights come with timm models only", got=repr(name), cure=f"use timm:{name}")
    if widths and (name not in SHAPES or dim):
        raise InputError(
            "only a ResNet is slimmable, at the dim it has by itself",
            got=f"{name!r}, dim {dim}",
            cure=f"choose {', '.join(SHAPES)} and dim 0",
        )
    if name == "convnet":
        return ConvNet(dim or 256, norm=norm)
    encoder: nn.Module
    if name.startswith("timm:"):
        encoder = from_timm(name.removeprefix("timm:"), pretrained=pretrained)
    elif name in SHAPES and widths:
        encoder = SlimmableResNet(*SHAPES[name], widths=widths, stem=stem, layers=Layers(blurpool, norm))
    elif name in SHAPES:
        encoder = ResNet(*SHAPES[name], stem=stem, layers=Layers(blurpool, norm))
    else:
        near = get_close_matches(name, encoder_names(), n=1)
        raise InputError(
            "unknown encoder",
            got=repr(name),
            cure=f"did you mean {near[0]}?" if near else f"choose {', '.join(encoder_names())} or timm:MODEL",
        )
    return Projected(encoder, dim) if dim and dim != encoder.dim else encoder
