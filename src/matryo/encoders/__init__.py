"""Encoders: networks with an attribute ``dim`` that map a batch of inputs to embeddings [batch, dim].

Images are [batch, 3, height, width]; texts are :class:`Tokens`; a :class:`Dual` takes pairs of inputs.
"""

from matryo.encoders.adapters.open_clip import OpenClip, from_open_clip
from matryo.encoders.adapters.sentence_transformers import SentenceEncoder, from_sentence_transformers
from matryo.encoders.adapters.timm import TimmEncoder, from_timm
from matryo.encoders.adapters.transformers import TransformersEncoder, from_transformers
from matryo.encoders.adapters.truncation import Truncation, truncation_of
from matryo.encoders.bert.model import Bert, BertConfig
from matryo.encoders.convnet import ConvNet
from matryo.encoders.dual import Dual, DualEncoder
from matryo.encoders.layered import Layered, cut, depth_of, mflops_per_token, sharing
from matryo.encoders.projected import Projected
from matryo.encoders.registry import build_encoder, encoder_names, save_shape
from matryo.encoders.resnet import ResNet
from matryo.encoders.slimmable import SlimmableLinear, SlimmableResNet, widths_dims
from matryo.encoders.tokens import Tokens, pool
from matryo.encoders.vit import ViT, vit

__all__ = [
    "Bert", "BertConfig", "ConvNet", "Dual", "DualEncoder", "Layered", "OpenClip", "Projected", "ResNet",
    "SentenceEncoder", "SlimmableLinear", "SlimmableResNet", "TimmEncoder", "Tokens", "TransformersEncoder",
    "Truncation", "ViT", "build_encoder", "cut", "depth_of", "encoder_names", "from_open_clip",
    "from_sentence_transformers", "from_timm", "from_transformers", "mflops_per_token", "pool", "save_shape", "sharing",
    "truncation_of", "vit", "widths_dims",
]  # fmt: skip
