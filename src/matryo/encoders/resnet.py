"""ResNet 18, 34 and 50 without a classifier. Parameter names are those of torchvision, so public weights load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from matryo.encoders.layers import PUBLISHED, Layers
from matryo.errors import InputError

STEMS = ("imagenet", "small")


class ResNet(nn.Module):
    """The residual network of He et al., from image to pooled features.

    Args:
        block: :class:`Basic` (18, 34) or :class:`Bottleneck` (50).
        depths: the number of blocks of each of the four stages.
        stem: ``imagenet`` is a 7×7 convolution of stride 2 and a max-pool; ``small`` is one 3×3 convolution, for images
            of about 32 px.
        layers: the kind of norm, and whether strided convolutions (except the first) are anti-aliased.
        channels: the channels of the first stage; 64 in the published networks.
    """

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        depths: Sequence[int],
        *,
        stem: str = "imagenet",
        layers: Layers = PUBLISHED,
        channels: int = 64,
    ) -> None:
        super().__init__()
        if stem not in STEMS:
            raise InputError("unknown stem", got=repr(stem), cure=f"choose one of {', '.join(STEMS)}")
        self.dim = 8 * channels * block.expansion
        large = stem == "imagenet"
        sharp = replace(layers, blurpool=False)   # the first convolution is never blurred
        self.conv1 = sharp.make_conv(3, channels, 7 if large else 3, 2 if large else 1)
        self.bn1 = layers.make_norm(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        before, stages = channels, []
        for stage, depth in enumerate(depths):
            after, blocks = channels * 2**stage, []
            for i in range(depth):
                blocks.append(block(before, after, 2 if stage > 0 and i == 0 else 1, layers))
                before = after * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 3, height, width] → [batch, dim]."""
        return self.from_stem(self.conv1(x))

    def from_stem(self, x: Tensor) -> Tensor:
        """Continue from the output of the first convolution to [batch, dim]."""
        x = self.maxpool(self.relu(self.bn1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.avgpool(x).flatten(1)


class Basic(nn.Module):
    """Two 3×3 convolutions with a shortcut."""

    expansion = 1

    def __init__(self, before: int, after: int, stride: int, layers: Layers) -> None:
        super().__init__()
        self.conv1 = layers.make_conv(before, after, 3, stride)
        self.bn1 = layers.make_norm(after)
        self.conv2 = layers.make_conv(after, after, 3, 1)
        self.bn2 = layers.make_norm(after)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(before, after, stride, layers)

    def forward(self, x: Tensor) -> Tensor:
        """Add the convolutions to the shortcut."""
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Bottleneck(nn.Module):
    """1×1 down, 3×3 (with the stride), 1×1 up, with a shortcut."""

    expansion = 4

    def __init__(self, before: int, after: int, stride: int, layers: Layers) -> None:
        super().__init__()
        self.conv1 = layers.make_conv(before, after, 1, 1)
        self.bn1 = layers.make_norm(after)
        self.conv2 = layers.make_conv(after, after, 3, stride)
        self.bn2 = layers.make_norm(after)
        self.conv3 = layers.make_conv(after, 4 * after, 1, 1)
        self.bn3 = layers.make_norm(4 * after)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(before, 4 * after, stride, layers)

    def forward(self, x: Tensor) -> Tensor:
        """Add the convolutions to the shortcut."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.downsample(x))


SHAPES: dict[str, tuple[type[Basic] | type[Bottleneck], tuple[int, ...]]] = {
    "resnet18": (Basic, (2, 2, 2, 2)),
    "resnet34": (Basic, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}
"""The published networks by name: the kind of block, and the number of blocks per stage."""


def _shortcut(before: int, after: int, stride: int, layers: Layers) -> nn.Module:
    if stride == 1 and before == after:
        return nn.Identity()
    return nn.Sequential(layers.make_conv(before, after, 1, stride), layers.make_norm(after))
