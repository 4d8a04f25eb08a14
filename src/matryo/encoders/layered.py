"""Encoders of layers, which embed after any number of them: transformers.

The first layers of an encoder are an encoder by themselves, as the first columns of an embedding are an embedding.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from matryo.arguments import as_integer
from matryo.errors import InputError

_M = TypeVar("_M", bound=nn.Module)


class Layered(nn.Module):
    """The base class: an encoder that can be cut after any of its layers."""

    dim: int

    @property
    def depth(self) -> int:
        """The number of layers."""
        raise NotImplementedError

    def cut(self, layers: int) -> Layered:
        """This encoder with only its first ``layers``, which share their weights with it."""
        raise NotImplementedError

    def forward(self, inputs: Any, layers: Sequence[int] = ()) -> Tensor:
        """Inputs → [batch, dim]; after several numbers of ``layers``, in increasing order: [number, batch, dim]."""
        raise NotImplementedError


def depth_of(encoder: nn.Module) -> int:
    """The number of layers after which ``encoder`` can be cut; 0 if it cannot."""
    return encoder.depth if isinstance(encoder, Layered) else 0


def cut(encoder: nn.Module, layers: int) -> nn.Module:
    """``encoder`` with only its first ``layers``; it shares their weights.

    >>> from matryo.encoders import vit
    >>> len(cut(vit("vit-ti8", size=32), 3).blocks)
    3
    """
    if not (depth := depth_of(encoder)):
        cure = "use a BERT (bert-mini, …, bert:FOLDER) or a ViT (vit-s4, …)"
        raise InputError("this encoder has no layers to cut", got=_name(encoder), cure=cure)
    layers = as_integer(layers, "layers", 1)
    if layers > depth:
        raise InputError(f"layers must be at most the encoder's {depth}", got=layers, cure=f"use 1 to {depth}")
    return cast("Layered", encoder).cut(layers)


def mflops_per_token(encoder: nn.Module) -> float:
    """Millions of multiply-adds per token or patch in the linear layers, which are nearly all of a short input's."""
    return sum(module.weight.numel() for module in encoder.modules() if isinstance(module, nn.Linear)) / 1e6


def sharing(module: _M, **children: nn.Module) -> _M:
    """A copy of ``module`` with other ``children``; all else is shared, the weights included."""
    other = copy.copy(module)
    other.__dict__ = {**module.__dict__, "_modules": {**module._modules, **children}, "_compiled_call_impl": None}
    return other


def _name(encoder: nn.Module) -> str:
    inner = getattr(encoder, "encoder", encoder)
    return type(inner if isinstance(inner, nn.Module) else encoder).__name__
