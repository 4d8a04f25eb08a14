"""Encoders: networks that map an input to an embedding z ∈ R^d, and say their ``dim``."""

from matryo.encoders.build import build_encoder, encoder_names
from matryo.encoders.convnet import ConvNet
from matryo.encoders.from_timm import from_timm
from matryo.encoders.resnet import ResNet, resnet18, resnet34, resnet50

__all__ = [
    "ConvNet",
    "ResNet",
    "build_encoder",
    "encoder_names",
    "from_timm",
    "resnet18",
    "resnet34",
    "resnet50",
]
