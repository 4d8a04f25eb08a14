"""A slimmable network (Yu et al. 2018): one ResNet and one head that run at several widths.

At width w (a fraction), every convolution uses the first w of its channels, and the embedding has w·d dimensions. The
widths share all weights except those of the norms. Layers infer the width from the number of input channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from matryo.arguments import checked
from matryo.encoders.layers import PUBLISHED, BlurConv2d, Layers
from matryo.encoders.resnet import Basic, Bottleneck, ResNet
from matryo.errors import InputError
from matryo.heads import NestedLinear
from matryo.losses.cross_entropy import cross_entropy_by_dim
from matryo.nesting import Nesting


@checked
def widths_dims(count: int, widths: Sequence[float]) -> tuple[int, ...]:
    """The number of channels (or dimensions) of each width, out of ``count``.

    >>> widths_dims(512, (0.25, 0.5, 0.75, 1.0))
    (128, 256, 384, 512)
    """
    dims = tuple(round(width * count) if 0 < width <= 1 else 0 for width in widths)
    whole = all(abs(width * count - dim) < 1e-6 for width, dim in zip(widths, dims, strict=True))
    if not dims or not whole or list(dims) != sorted(set(dims)) or dims[0] < 1 or dims[-1] != count:
        rule = f"widths must be increasing fractions of {count} that give integers, the last one 1"
        raise InputError(rule, got=tuple(widths), cure="use 0.25, 0.5, 0.75, 1")
    return dims


class SlimmableResNet(ResNet):
    """A ResNet that runs at each of ``widths``, fractions of its channels. Other arguments as for :class:`ResNet`.

    >>> from matryo.encoders.resnet import SHAPES
    >>> net = SlimmableResNet(*SHAPES["resnet18"], widths=(0.5, 1.0), stem="small").eval()
    >>> tuple(net(torch.zeros(4, 3, 32, 32)).shape)
    (2, 4, 512)
    """

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        depths: Sequence[int],
        *,
        widths: Sequence[float],
        stem: str = "imagenet",
        layers: Layers = PUBLISHED,
        channels: int = 64,
    ) -> None:
        counts = widths_dims(channels, widths)
        slim = _SlimLayers(**asdict(layers), widths=tuple(widths))
        super().__init__(block, depths, stem=stem, layers=slim, channels=channels)
        self.channels = dict(zip(widths, counts, strict=True))
        self.plain = partial(ResNet, block, depths, stem=stem, layers=layers)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 3, height, width] → [widths, batch, dim]; narrow embeddings are padded with zeros."""
        stem = self.conv1(x)   # shared by all widths: its input is the image
        embeddings = [self.from_stem(stem[:, :channels]) for channels in self.channels.values()]
        return torch.stack([F.pad(z, (0, self.dim - z.shape[1])) for z in embeddings])

    def narrow(self, width: float) -> ResNet:
        """Copy the network at one width to a plain ResNet."""
        if width not in self.channels:
            cure = f"use one of {', '.join(f'{trained:g}' for trained in self.channels)}"
            raise InputError("width must be one the network was trained at", got=width, cure=cure)
        net = self.plain(channels=self.channels[width]).to(self.conv1.weight)
        with torch.no_grad():
            for name, part in net.named_modules():
                whole = self.get_submodule(name)
                if isinstance(whole, _SwitchableNorm):
                    part.load_state_dict(whole[str(len(part.weight))].state_dict())
                elif isinstance(part, nn.Conv2d) and isinstance(whole, nn.Conv2d):
                    part.weight.copy_(whole.weight[: part.out_channels, : part.in_channels])
        return net.train(self.training)


class SlimmableLinear(NestedLinear):
    """The head of a slimmable network: a narrow embedding uses the first columns of the shared weight.

    ``logits`` takes the output of :class:`SlimmableResNet`, [widths, batch, d]. The zero padding of narrow embeddings
    cancels the other columns, so one matrix product serves all widths.
    """

    @checked
    def __init__(self, nesting: Nesting | Iterable[int], classes: int, *, bias: bool = True) -> None:
        super().__init__(nesting, classes, tied=True, bias=bias)

    def logits(self, z: Tensor) -> Tensor:
        """The logits at every width, [widths, batch, classes]."""
        logits = F.linear(z, self.weight)
        return logits if self.bias is None else logits + self.bias

    def losses(self, z: Tensor, target: Tensor, *, engine: str = "auto", **options: Any) -> Tensor:   # noqa: ARG002
        """The unweighted cross-entropy at each width, [widths]. The engine is ignored: all logits are stored."""
        return cross_entropy_by_dim(self.logits(z), target, **options)

    def narrow(self, dim: int) -> NestedLinear:
        """Copy the head for the network whose embedding has ``dim`` dimensions."""
        head = NestedLinear(Nesting([dim]), self.classes, tied=True, bias=self.bias is not None).to(self.weight)
        head.load_state_dict({**self.state_dict(), "weight": self.weight_at(dim)})
        return head


@dataclass(frozen=True)
class _SlimLayers(Layers):
    widths: tuple[float, ...] = (1.0,)

    def make_conv(self, before: int, after: int, kernel: int, stride: int) -> nn.Conv2d:
        if self.blurpool and stride > 1:
            return _SlimBlurConv2d(before, after, kernel, stride, kernel // 2)
        return _SlimConv2d(before, after, kernel, stride, kernel // 2, bias=False)

    def make_norm(self, channels: int) -> nn.Module:
        return _SwitchableNorm(Layers(norm=self.norm), channels, self.widths)


class _SlimConv2d(nn.Conv2d):
    """A convolution that computes the same fraction of its output channels as its input has of the input channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve with the first channels of the weight."""
        before = x.shape[1]
        after = before * self.out_channels // self.in_channels
        return F.conv2d(x, self.weight[:after, :before], None, self.stride, self.padding)


class _SlimBlurConv2d(BlurConv2d, _SlimConv2d):
    """A low-pass filter, then the slim convolution."""


class _SwitchableNorm(nn.ModuleDict):
    """One norm per width, keyed by its number of channels."""

    def __init__(self, layers: Layers, channels: int, widths: Sequence[float]) -> None:
        super().__init__({str(count): layers.make_norm(count) for count in widths_dims(channels, widths)})

    def forward(self, x: Tensor) -> Tensor:
        """Apply the norm for the width of ``x``."""
        return self[str(x.shape[1])](x)
