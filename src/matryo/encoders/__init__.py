"""Encoders: networks that map an input to an embedding z ∈ R^d, and say their ``dim``."""

from matryo.encoders.build import build_encoder, encoder_names
from matryo.encoders.convnet import ConvNet
from matryo.encoders.from_timm import from_timm
from matryo.encoders.resnet import ResNet, resnet18, resnet34, resnet50
from matryo.encoders.slimmable import SlimmableLinear, SlimmableResNet, widths_dims

__all__ = [
    "ConvNet",
    "ResNet",
    "SlimmableLinear",
    "SlimmableResNet",
    "build_encoder",
    "encoder_names",
    "from_timm",
    "resnet18",
    "resnet34",
    "resnet50",
    "widths_dims",
]
