"""Dual encoders: two encoders with a common embedding space and a learned temperature."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from matryo.arguments import checked
from matryo.encoders.projected import Projected
from matryo.errors import InputError


class DualEncoder(nn.Module):
    """The base class: maps pairs of inputs to pairs of vectors, and has a temperature.

    The temperature is parametrised as in CLIP: the logarithm of its inverse is learned, and it is at least 0.01.
    """

    dim: int

    def embed_queries(self, inputs: Any) -> Tensor:
        """Embed the first inputs of pairs, [batch, dim]."""
        raise NotImplementedError

    def embed_candidates(self, inputs: Any) -> Tensor:
        """Embed the second inputs of pairs, [batch, dim]."""
        raise NotImplementedError

    @property
    def temperature(self) -> Tensor:
        """The divisor of the cosines."""
        raise NotImplementedError

    def forward(self, inputs: tuple[Any, Any]) -> tuple[Tensor, Tensor]:
        """(queries, candidates) → their vectors, [batch, dim] each."""
        return self.embed_queries(inputs[0]), self.embed_candidates(inputs[1])


class Dual(DualEncoder):
    """Two encoders, e.g. of images and of texts, each followed by a linear map to ``dim``.

    Args:
        queries: the encoder of the first input of a pair.
        candidates: the encoder of the second. Pass the same object for a siamese network, which shares all weights.
        dim: the dimensions of the common space. 0 adds no linear map; both encoders must then have the same dim.
        temperature: the initial temperature.

    >>> from matryo.encoders import Bert, BertConfig, ConvNet, Tokens
    >>> dual = Dual(ConvNet(dim=24), Bert(BertConfig.named("bert-tiny", vocab_size=100)), dim=16)
    >>> images, texts = torch.randn(2, 3, 32, 32), Tokens(torch.randint(100, (2, 7)))
    >>> [tuple(z.shape) for z in dual((images, texts))]
    [(2, 16), (2, 16)]
    >>> dual.temperature.item()   # doctest: +ELLIPSIS
    0.07...
    """

    @checked
    def __init__(
        self, queries: nn.Module, candidates: nn.Module, dim: int = 0, *, temperature: float = 0.07
    ) -> None:
        super().__init__()
        if not 0 < temperature < math.inf:
            raise InputError("temperature must be a positive number", got=temperature, cure="use 0.07")
        if not dim and queries.dim != candidates.dim:
            got, cure = f"{queries.dim} and {candidates.dim}", "set the dim of the embedding"
            raise InputError("two encoders of different dims need a common dim", got=got, cure=cure)
        self.dim = dim or int(queries.dim)   # type: ignore[arg-type]
        self.queries = Projected(queries, dim, bias=False) if dim else queries
        same = queries is candidates
        self.candidates = self.queries if same else Projected(candidates, dim, bias=False) if dim else candidates
        self.logit_scale = nn.Parameter(torch.tensor(-math.log(temperature)))

    def embed_queries(self, inputs: Any) -> Tensor:
        """Embed the first inputs of pairs, [batch, dim]."""
        return self.queries(inputs)

    def embed_candidates(self, inputs: Any) -> Tensor:
        """Embed the second inputs of pairs, [batch, dim]."""
        return self.candidates(inputs)

    @property
    def temperature(self) -> Tensor:
        """The divisor of the cosines."""
        return temperature_of(self.logit_scale)


def temperature_of(logit_scale: Tensor) -> Tensor:
    """exp(−logit_scale), but at least 0.01: smaller temperatures make training unstable."""
    return Floor.apply((-logit_scale).exp())   # type: ignore[no-untyped-call]


class Floor(torch.autograd.Function):
    """max(value, 0.01). Below, gradients that increase the value still pass; a clamp would block them all."""

    MINIMUM = 0.01

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.save_for_backward(value)
        return value.clamp(min=Floor.MINIMUM)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (value,) = ctx.saved_tensors
        return torch.where((value >= Floor.MINIMUM) | (grad < 0), grad, 0.0)
