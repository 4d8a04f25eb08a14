"""Encoders: networks that map an input to an embedding z ∈ R^d, and say their ``dim``.

Images are [batch, 3, height, width]; texts are :class:`Tokens`; a :class:`Dual` has pairs of either.
"""

from matryo.encoders.bert import Bert, BertConfig
from matryo.encoders.build import build_encoder, encoder_names, save_shape
from matryo.encoders.convnet import ConvNet
from matryo.encoders.dual import Dual, DualEncoder
from matryo.encoders.from_open_clip import OpenClip, from_open_clip
from matryo.encoders.from_sentence_transformers import SentenceEncoder, from_sentence_transformers
from matryo.encoders.from_timm import TimmEncoder, from_timm
from matryo.encoders.from_transformers import TransformersEncoder, from_transformers
from matryo.encoders.projected import Projected
from matryo.encoders.resnet import ResNet, resnet18, resnet34, resnet50
from matryo.encoders.slimmable import SlimmableLinear, SlimmableResNet, widths_dims
from matryo.encoders.tokens import Tokens, pool
from matryo.encoders.truncation import Truncation, truncation_of
from matryo.encoders.vit import ViT, vit

__all__ = [
    "Bert",
    "BertConfig",
    "ConvNet",
    "Dual",
    "DualEncoder",
    "OpenClip",
    "Projected",
    "ResNet",
    "SentenceEncoder",
    "SlimmableLinear",
    "SlimmableResNet",
    "TimmEncoder",
    "Tokens",
    "TransformersEncoder",
    "Truncation",
    "ViT",
    "build_encoder",
    "encoder_names",
    "from_open_clip",
    "from_sentence_transformers",
    "from_timm",
    "from_transformers",
    "pool",
    "resnet18",
    "resnet34",
    "resnet50",
    "save_shape",
    "truncation_of",
    "vit",
    "widths_dims",
]
