"""An encoder by its name, as recipes spell it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from torch import nn

from matryo.encoders.adapters.open_clip import OpenClip, from_open_clip
from matryo.encoders.adapters.sentence_transformers import SentenceEncoder, from_sentence_transformers
from matryo.encoders.adapters.timm import TimmEncoder, from_timm
from matryo.encoders.adapters.transformers import TransformersEncoder, from_transformers
from matryo.encoders.adapters.truncation import truncation_of
from matryo.encoders.bert.model import BERTS, Bert, BertConfig
from matryo.encoders.convnet import ConvNet
from matryo.encoders.dual import DualEncoder
from matryo.encoders.layers import Layers
from matryo.encoders.projected import Projected
from matryo.encoders.resnet import SHAPES, ResNet
from matryo.encoders.slimmable import SlimmableResNet
from matryo.encoders.vit import VITS, vit
from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["build_encoder", "encoder_names", "save_shape"]

_ELSEWHERE = ("timm:MODEL", "transformers:NAME", "sentence-transformers:NAME", "open_clip:NAME", "bert:FOLDER")
_CLIP_TOKENS = 49408   # of the tokenizer that open_clip uses unless a model names another


def encoder_names() -> tuple[str, ...]:
    """The names :func:`build_encoder` knows, besides those that begin with the library they come from."""
    return ("convnet", *SHAPES, *VITS, *BERTS)


def build_encoder(
    name: str,
    *,
    dim: int = 0,
    stem: str = "imagenet",
    blurpool: bool = False,
    norm: str = "batch",
    pretrained: bool = False,
    widths: Sequence[float] = (),
    size: int = 224,
    pooling: str = "",
    dropout: float | None = None,
    drop_path: float = 0.0,
    vocabulary: int = 0,
    length: int = 0,
    shape: Path | None = None,
) -> nn.Module:
    """The encoder called ``name``; ``timm:MODEL``, ``transformers:NAME``, … is any model of that library.

    Args:
        name: one of :func:`encoder_names`, or a library, a colon and a name (or folder) there. ``bert:FOLDER`` reads a
            BERT from a Hugging Face or sentence-transformers folder without either library.
        dim: 0 keeps the width the network has by itself (512 for ResNet18, 2048 for ResNet50); another value adds a
            linear projection, except for ``convnet``, which is built for any.
        stem: how a ResNet begins: ``imagenet`` or ``small``.
        blurpool: low-pass before the strided convolutions of a ResNet.
        norm: ``batch`` or ``group``, for ``convnet`` and the ResNets.
        pretrained: start a timm model from its published weights. Other libraries' names mean their weights.
        widths: make a ResNet slimmable.
        size: pixels a side of the images, for vision transformers, ours and timm's.
        pooling: ``mean``, ``cls`` or ``last``, for transformers; empty is the network's own.
        dropout: share of the features left out in training, for transformers; None is the network's own.
        drop_path: share of branches left out in training, for the vision transformers.
        vocabulary: how many tokens a BERT knows; 0 is 30522.
        length: how many tokens the longest text of a BERT has; 0 is 512.
        shape: a folder of :func:`save_shape`: the encoder is built from there, and where it once came from is not read.
    """
    _check_options(name, pretrained, widths, dim)
    if name == "convnet":
        return ConvNet(dim or 256, norm=norm)
    encoder: nn.Module
    library, _, inside = name.partition(":")
    if library == "timm":
        source = f"local-dir:{shape}" if shape is not None and ":" in inside else inside
        encoder = from_timm(source, pretrained=pretrained, size=size)
    elif inside:
        encoder = _from_library(library, inside, pooling, dropout, shape)
        _check_vocabulary(encoder, vocabulary)
    elif name in SHAPES and widths:
        encoder = SlimmableResNet(*SHAPES[name], widths=widths, stem=stem, layers=Layers(blurpool, norm))
    elif name in SHAPES:
        encoder = ResNet(*SHAPES[name], stem=stem, layers=Layers(blurpool, norm))
    elif name in VITS:
        encoder = vit(name, size=size, pooling=pooling or "cls", dropout=dropout or 0.0, drop_path=drop_path)
    elif name in BERTS:
        config = BertConfig.named(name, vocab_size=vocabulary or 30522, max_position_embeddings=length or 512)
        encoder = Bert(config if dropout is None else config.with_dropout(dropout), pooling=pooling or "mean")
    else:
        raise _unknown(name)
    if not dim or dim == encoder.dim:
        return encoder
    if isinstance(encoder, DualEncoder):
        raise InputError("a dual encoder has the dim it has", got=f"{dim}, not {encoder.dim}", cure="use dim 0")
    return Projected(encoder, dim)


def save_shape(encoder: nn.Module, folder: Path) -> None:
    """Write to ``folder`` what :func:`build_encoder` needs to build ``encoder`` again when its source is gone.

    An encoder that is built from its name alone writes nothing.
    """
    inner = encoder.encoder if isinstance(encoder, Projected) else encoder
    if isinstance(inner, Bert | TransformersEncoder | SentenceEncoder | OpenClip | TimmEncoder):
        inner.save_shape(folder)


def _from_library(library: str, name: str, pooling: str, dropout: float | None, shape: Path | None) -> nn.Module:
    place = shape or name
    encoder: nn.Module
    if library == "bert":
        return Bert.open(place, pooling=pooling, dropout=dropout, weights=shape is None)
    if library == "transformers":
        encoder = from_transformers(place, pooling=pooling or "mean", pretrained=shape is None)
    elif library == "sentence-transformers":
        encoder = from_sentence_transformers(place, truncation=truncation_of(name))
    elif library == "open_clip":
        encoder = _from_open_clip(name, shape)
    else:
        raise _unknown(f"{library}:{name}")
    for module in encoder.modules():
        if isinstance(module, nn.Dropout) and dropout is not None:
            module.p = dropout
    return encoder


def _from_open_clip(name: str, shape: Path | None) -> OpenClip:
    if shape is not None:
        return from_open_clip(f"local-dir:{shape}", pretrained_text=False)
    model, _, weights = (name, "", "") if ":" in name else name.partition("/")   # a folder, or owner/name
    return from_open_clip(model, weights or None)


def _check_vocabulary(encoder: nn.Module, vocabulary: int) -> None:
    """A number that the model does not know would stop it with an error of the device, in the middle of training."""
    known = _known_tokens(encoder)
    if known is not None and vocabulary > known:
        raise InputError(
            f"a tokenizer must not have more than the {known:,} tokens that the model knows",
            got=f"{vocabulary:,}",
            cure="use the tokenizer of the model",
        )
    # CLIP's vector of a text stands at its highest number: with other numbers that is some word, and not the end.
    reads_as_clip = isinstance(encoder, OpenClip) and "hf_tokenizer_name" not in _text_settings(encoder)
    if reads_as_clip and vocabulary not in (0, known, _CLIP_TOKENS):
        raise InputError(
            "a model of open_clip reads with its own tokenizer",
            got=f"one of {vocabulary:,} tokens instead of {known:,}",
            cure="name its tokenizer.json: --text.tokenizer PATH",
        )


def _known_tokens(encoder: nn.Module) -> int | None:
    """How many tokens it has an embedding of; None where nothing tells."""
    if isinstance(encoder, OpenClip) and "hf_model_name" not in _text_settings(encoder):
        return int(_text_settings(encoder).get("vocab_size", _CLIP_TOKENS))
    for module in encoder.modules():   # a BERT of ours, or the transformers model that an adapter holds
        known = getattr(getattr(module, "config", None), "vocab_size", None)
        if known is not None:
            return int(known)
    return None


def _text_settings(encoder: OpenClip) -> dict[str, Any]:
    settings: dict[str, Any] = encoder.settings["model_cfg"]["text_cfg"]
    return settings


def _check_options(name: str, pretrained: bool, widths: Sequence[float], dim: int) -> None:
    if pretrained and not name.startswith("timm:"):
        raise InputError("published weights come with timm models only", got=repr(name), cure=f"use timm:{name}")
    if widths and (name not in SHAPES or dim):
        raise InputError(
            "only a ResNet is slimmable, at the dim it has by itself",
            got=f"{name!r}, dim {dim}",
            cure=f"choose {', '.join(SHAPES)} and dim 0",
        )


def _unknown(name: str) -> InputError:
    near = get_close_matches(name, encoder_names(), n=1)
    families = f"convnet, {', '.join(SHAPES)}, {VITS[0]} … {VITS[-1]}, {', '.join(BERTS)}, {' or '.join(_ELSEWHERE)}"
    cure = f"did you mean {near[0]}?" if near else f"choose {families}"
    return InputError("unknown encoder", got=repr(name), cure=cure)
