"""Build an encoder from its name, as in recipes."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from matryo.arguments import checked
from matryo.encoders.adapters.open_clip import OpenClip, from_open_clip
from matryo.encoders.adapters.sentence_transformers import SentenceEncoder, from_sentence_transformers
from matryo.encoders.adapters.timm import TimmEncoder, from_timm
from matryo.encoders.adapters.transformers import TransformersEncoder, from_transformers
from matryo.encoders.adapters.truncation import truncation_of
from matryo.encoders.bert.model import BERTS, Bert, BertConfig
from matryo.encoders.convnet import ConvNet
from matryo.encoders.dual import DualEncoder
from matryo.encoders.layered import cut
from matryo.encoders.layers import Layers
from matryo.encoders.projected import Neck, Projected
from matryo.encoders.resnet import SHAPES, ResNet
from matryo.encoders.slimmable import SlimmableResNet
from matryo.encoders.vit import VITS, vit
from matryo.errors import InputError

_LIBRARIES = ("timm:MODEL", "transformers:NAME", "sentence-transformers:NAME", "open_clip:NAME", "bert:FOLDER")
_CLIP_TOKENS = 49408   # vocabulary of open_clip's default tokenizer


def encoder_names() -> tuple[str, ...]:
    """The names of built-in encoders; models of other libraries are written LIBRARY:NAME."""
    return ("convnet", *SHAPES, *VITS, *BERTS)


@checked
def build_encoder(
    name: str,
    *,
    dim: int = 0,
    depth: int = 0,
    neck: Neck = "none",
    stem: str = "imagenet",
    blurpool: bool = False,
    norm: str = "batch",
    pretrained: bool = False,
    widths: Sequence[float] = (),
    size: int = 0,
    pooling: str = "",
    dropout: float | None = None,
    drop_path: float = 0.0,
    vocabulary: int = 0,
    length: int = 0,
    shape: Path | None = None,
) -> nn.Module:
    """Build the encoder ``name``; ``timm:MODEL``, ``transformers:NAME``, … are models of other libraries.

    Args:
        name: one of :func:`encoder_names`, or LIBRARY:NAME with the name or folder of a model. ``bert:FOLDER`` loads a
            BERT from a Hugging Face or sentence-transformers folder without these libraries.
        dim: the embedding size. 0 keeps that of the network (512 for ResNet18, 2048 for ResNet50); other values add a
            linear projection, except for ``convnet``, which is built for any dim.
        depth: keep only so many of the layers of a BERT or ViT, the first ones; 0 keeps all.
        neck: a norm (``batch``, ``layer``), a matrix that starts orthogonal (``linear``), or both (``linear+batch``),
            between the network and the embedding; see :class:`Projected`.
        stem: the stem of a ResNet: ``imagenet`` or ``small``.
        blurpool: anti-alias the strided convolutions of a ResNet.
        norm: ``batch`` or ``group``, for ``convnet`` and the ResNets.
        pretrained: load the published weights of a timm model. Models of other libraries always load their weights.
        widths: make a ResNet slimmable, with these widths.
        size: the side of the images in pixels, for vision transformers. 0 means 224, and for ``transformers:NAME`` that
            of the model.
        pooling: ``mean``, ``cls`` or ``last``, for transformers; empty keeps the network's default.
        dropout: the dropout rate, for transformers; None keeps the network's default.
        drop_path: the stochastic-depth rate, for the built-in vision transformers.
        vocabulary: the vocabulary size of a BERT; 0 means 30522.
        length: the maximum text length of a BERT in tokens; 0 means 512.
        shape: a folder written by :func:`save_shape`. The encoder is built from it; its original source is not read.
    """
    _check_options(name, pretrained, widths, dim)
    encoder: nn.Module
    library, _, inside = name.partition(":")
    if name == "convnet":
        encoder = ConvNet(dim or 256, norm=norm)
    elif library == "timm":
        source = f"local-dir:{shape}" if shape is not None and ":" in inside else inside
        encoder = from_timm(source, pretrained=pretrained, size=size or 224)
    elif inside:
        encoder = _from_library(library, inside, pooling, dropout, size, shape)
        _check_vocabulary(encoder, vocabulary)
    elif name in SHAPES and widths:
        encoder = SlimmableResNet(*SHAPES[name], widths=widths, stem=stem, layers=Layers(blurpool, norm))
    elif name in SHAPES:
        encoder = ResNet(*SHAPES[name], stem=stem, layers=Layers(blurpool, norm))
    elif name in VITS:
        encoder = vit(name, size=size or 224, pooling=pooling or "cls", dropout=dropout or 0.0, drop_path=drop_path)
    elif name in BERTS:
        config = BertConfig.named(name, vocab_size=vocabulary or 30522, max_position_embeddings=length or 512)
        encoder = Bert(config if dropout is None else config.with_dropout(dropout), pooling=pooling or "mean")
    else:
        raise _unknown(name)
    encoder = cut(encoder, depth) if depth else encoder
    if neck == "none" and (not dim or dim == encoder.dim):
        return encoder
    if isinstance(encoder, DualEncoder):
        got, cure = f"dim {dim}, neck {neck}", "use dim 0 and neck none"
        raise InputError(f"this dual encoder has dim {encoder.dim}, and no neck", got=got, cure=cure)
    return Projected(encoder, dim or int(encoder.dim), neck=neck)   # type: ignore[arg-type]


def save_shape(encoder: nn.Module, folder: Path) -> None:
    """Write what :func:`build_encoder` needs to rebuild ``encoder`` without its original source.

    Built-in encoders write nothing: their name is enough.
    """
    inner = encoder.encoder if isinstance(encoder, Projected) else encoder
    if isinstance(inner, Bert | TransformersEncoder | SentenceEncoder | OpenClip | TimmEncoder):
        inner.save_shape(folder)


def _from_library(
    library: str, name: str, pooling: str, dropout: float | None, size: int, shape: Path | None
) -> nn.Module:
    source = shape or name
    encoder: nn.Module
    if library == "bert":
        return Bert.open(source, pooling=pooling, dropout=dropout, weights=shape is None)
    if library == "transformers":
        new = shape is None   # a stored run was checked before its training
        encoder = from_transformers(source, pooling=pooling or "mean", pretrained=new, size=size if new else 0)
    elif library == "sentence-transformers":
        encoder = from_sentence_transformers(source, truncation=truncation_of(name))
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
    # With a colon the name is local-dir:FOLDER or hf-hub:OWNER/NAME, whose "/" does not separate weights.
    model, _, weights = (name, "", "") if ":" in name else name.partition("/")
    return from_open_clip(model, weights or None)


def _check_vocabulary(encoder: nn.Module, vocabulary: int) -> None:
    """Raise if the tokenizer does not fit the model: an unknown id would crash on the device during training."""
    known = _known_tokens(encoder)
    if known is not None and vocabulary > known:
        rule = f"the tokenizer must not have more tokens than the model's {known:,}"
        raise InputError(rule, got=f"{vocabulary:,}", cure="use the tokenizer of the model")
    # CLIP pools a text at its highest token id, which is the end token only in CLIP's own vocabulary.
    reads_as_clip = isinstance(encoder, OpenClip) and "hf_tokenizer_name" not in _text_settings(encoder)
    if reads_as_clip and vocabulary not in (0, known, _CLIP_TOKENS):
        got = f"a tokenizer with {vocabulary:,} tokens instead of {known:,}"
        cure = "pass its tokenizer.json: --text.tokenizer PATH"
        raise InputError("an open_clip model needs its own tokenizer", got=got, cure=cure)


def _known_tokens(encoder: nn.Module) -> int | None:
    """The vocabulary size of the encoder; None if unknown."""
    if isinstance(encoder, OpenClip) and "hf_model_name" not in _text_settings(encoder):
        return int(_text_settings(encoder).get("vocab_size", _CLIP_TOKENS))
    # The config of a Bert, or of the transformers model in an adapter.
    sizes = (getattr(getattr(module, "config", None), "vocab_size", None) for module in encoder.modules())
    return next((int(size) for size in sizes if size is not None), None)


def _text_settings(encoder: OpenClip) -> dict[str, Any]:
    return encoder.settings["model_cfg"]["text_cfg"]


def _check_options(name: str, pretrained: bool, widths: Sequence[float], dim: int) -> None:
    if pretrained and not name.startswith("timm:"):
        raise InputError("pretrained needs a timm model", got=repr(name), cure=f"use timm:{name}")
    if widths and (name not in SHAPES or dim):
        cure = f"use {' or '.join(SHAPES)} and dim 0"
        raise InputError("only a ResNet with dim 0 can be slimmable", got=f"{name!r}, dim {dim}", cure=cure)


def _unknown(name: str) -> InputError:
    near = get_close_matches(name, encoder_names(), n=1)
    families = f"convnet, {', '.join(SHAPES)}, {VITS[0]} … {VITS[-1]}, {', '.join(BERTS)}, {' or '.join(_LIBRARIES)}"
    cure = f"did you mean {near[0]}?" if near else f"choose {families}"
    return InputError("unknown encoder", got=repr(name), cure=cure)
