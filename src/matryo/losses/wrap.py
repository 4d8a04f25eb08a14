"""Lift any embedding loss over the dims of a nesting: Σ_m c_m · loss(z[:, :m])."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from matryo.errors import InputError
from matryo.losses.vectors import check_dims
from matryo.nesting import truncate

if TYPE_CHECKING:
    from matryo.nesting import Nesting

__all__ = ["nested"]


class _Nested(nn.Module):
    def __init__(self, loss: Callable[..., Tensor], nesting: Nesting, embeddings: int, normalize: bool) -> None:
        super().__init__()
        check_dims(nesting)
        if embeddings < 1:
            raise InputError(
                "the first positional arguments must be embeddings, one or more",
                got=f"embeddings={embeddings}",
                cure="say how many the loss takes",
            )
        self.loss = loss   # a module registers itself here, so its parameters train and move with this one
        self.nesting = nesting
        self.embeddings = embeddings
        self.normalize = normalize

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if len(args) < self.embeddings:
            raise InputError(
                f"the first {self.embeddings} positional arguments must be embeddings",
                got=f"{len(args)} arguments",
                cure="pass the embeddings by position, in the order of the loss",
            )
        vectors, rest = args[: self.embeddings], args[self.embeddings :]
        check_dims(self.nesting, *vectors)
        losses = [
            weight * self.loss(*(truncate(z, dim, self.normalize) for z in vectors), *rest, **kwargs)
            for dim, weight in zip(self.nesting.dims, self.nesting.weights, strict=True)
        ]
        return sum(losses[1:], start=losses[0])


def nested(
    loss: Callable[..., Tensor], nesting: Nesting, *, normalize: bool, embeddings: int = 1
) -> Callable[..., Tensor]:
    """``loss`` at every dim, weighted and summed; an ``nn.Module`` that holds ``loss`` if that is one.

    Args:
        loss: any function or module of embeddings (a triplet loss, one of pytorch-metric-learning, …).
        nesting: the dims and their weights c_m.
        normalize: put each prefix back on the unit sphere. Say True when the loss expects unit vectors (a
            prefix of a unit vector is none), False when it reads lengths or normalises by itself.
        embeddings: how many leading positional arguments are embeddings; the rest is passed on as it is.

    >>> import torch
    >>> from matryo import Nesting
    >>> anchor, positive, negative = torch.randn(3, 4, 16).unbind()
    >>> triplet = nested(nn.TripletMarginLoss(), Nesting([8, 16]), normalize=True, embeddings=3)
    >>> triplet(anchor, positive, negative).shape
    torch.Size([])
    """
    return _Nested(loss, nesting, embeddings, normalize)
