"""ResNet 18, 34 and 50 without their classifier; parameter names are torchvision's, so public weights load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from matryo.encoders.layers import BlurConv2d, make_norm
from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["STEMS", "ResNet", "resnet18", "resnet34", "resnet50"]

STEMS = ("imagenet", "small")


class ResNet(nn.Module):
    """The residual network of He et al., from image to pooled features.

    Args:
        block: :class:`Basic` (18, 34) or :class:`Bottleneck` (50).
        depths: blocks in each of the four stages.
        stem: ``imagenet`` is 7×7 stride 2 and a max-pool; ``small`` is one 3×3 convolution, for images of
            about 32 px.
        blurpool: low-pass before every strided convolution of 16 or more channels.
        norm: ``batch`` or ``group``.
    """

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        depths: Sequence[int],
        *,
        stem: str = "imagenet",
        blurpool: bool = False,
        norm: str = "batch",
    ) -> None:
        super().__init__()
        if stem not in STEMS:
            raise InputError("unknown stem", got=repr(stem), cure=f"choose one of {', '.join(STEMS)}")
        self.dim = 512 * block.expansion
        large = stem == "imagenet"
        self.conv1 = nn.Conv2d(3, 64, 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.bn1 = make_norm(norm, 64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        channels, stages = 64, []
        for stage, depth in enumerate(depths):
            width, blocks = 64 * 2**stage, []
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(block(channels, width, stride, blurpool=blurpool, norm=norm))
                channels = width * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 3, height, width] → [batch, dim]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        z: Tensor = self.avgpool(x).flatten(1)
        return z


class Basic(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, *, blurpool: bool, norm: str) -> None:
        super().__init__()
        self.conv1 = _conv(channels, width, 3, stride, blurpool)
        self.bn1 = make_norm(norm, width)
        self.conv2 = _conv(width, width, 3, 1, blurpool)
        self.bn2 = make_norm(norm, width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(channels, width, stride, blurpool, norm)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, added to its shortcut."""
        y: Tensor = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)) + self.downsample(x))
        return y


class Bottleneck(nn.Module):
    """1×1 down, 3×3 (which carries the stride), 1×1 up, around a shortcut."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int, *, blurpool: bool, norm: str) -> None:
        super().__init__()
        self.conv1 = _conv(channels, width, 1, 1, blurpool)
        self.bn1 = make_norm(norm, width)
        self.conv2 = _conv(width, width, 3, stride, blurpool)
        self.bn2 = make_norm(norm, width)
        self.conv3 = _conv(width, 4 * width, 1, 1, blurpool)
        self.bn3 = make_norm(norm, 4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(channels, 4 * width, stride, blurpool, norm)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, added to its shortcut."""
        y: Tensor = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.relu(self.bn3(self.conv3(y)) + self.downsample(x))
        return y


def resnet18(**options: Any) -> ResNet:
    """ResNet18: d = 512."""
    return ResNet(Basic, (2, 2, 2, 2), **options)


def resnet34(**options: Any) -> ResNet:
    """ResNet34: d = 512."""
    return ResNet(Basic, (3, 4, 6, 3), **options)


def resnet50(**options: Any) -> ResNet:
    """ResNet50, the paper's encoder: d = 2048."""
    return ResNet(Bottleneck, (3, 4, 6, 3), **options)


def _conv(channels: int, width: int, kernel: int, stride: int, blurpool: bool) -> nn.Conv2d:
    if blurpool and stride > 1 and channels >= 16:
        return BlurConv2d(channels, width, kernel, stride, kernel // 2)
    return nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False)


def _shortcut(channels: int, width: int, stride: int, blurpool: bool, norm: str) -> nn.Module:
    if stride == 1 and channels == width:
        return nn.Identity()
    return nn.Sequential(_conv(channels, width, 1, stride, blurpool), make_norm(norm, width))
