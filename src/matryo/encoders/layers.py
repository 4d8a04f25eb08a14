"""Layers shared by several encoders: norms, convolutions and anti-aliased strided convolutions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from matryo.errors import InputError

NORMS = ("batch", "group")


@dataclass(frozen=True)
class Layers:
    """The kinds of layers that a network is built from."""

    blurpool: bool = False
    norm: str = "batch"

    def make_conv(self, before: int, after: int, kernel: int, stride: int) -> nn.Conv2d:
        """A padded convolution from ``before`` to ``after`` channels: only the stride changes the size."""
        if self.blurpool and stride > 1:
            return BlurConv2d(before, after, kernel, stride, kernel // 2)
        return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)

    def make_norm(self, channels: int) -> nn.Module:
        """A batch norm, or a group norm, whose results do not depend on the other images of the batch."""
        if self.norm == "batch":
            return nn.BatchNorm2d(channels)
        if self.norm == "group":
            return nn.GroupNorm(math.gcd(32, channels), channels)
        raise InputError("unknown norm", got=repr(self.norm), cure=f"choose one of {', '.join(NORMS)}")


PUBLISHED = Layers()
"""The layers of the published networks."""


class BlurConv2d(nn.Conv2d):
    """A strided convolution after a low-pass filter (blurpool), less sensitive to small shifts."""

    blur: Tensor

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int, padding: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, bias=False)
        tap = torch.tensor([1.0, 2.0, 1.0])
        kernel = torch.outer(tap, tap) / 16
        self.register_buffer("blur", kernel.expand(in_channels, 1, 3, 3).contiguous(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Blur, then convolve."""
        channels = x.shape[1]
        smooth = F.conv2d(x, self.blur[:channels].to(x.dtype), padding=1, groups=channels)
        return super().forward(smooth)
