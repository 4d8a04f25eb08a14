"""Apply any embedding loss at every dim of a nesting: Σ_m c_m · loss(z[:, :m])."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from matryo.arguments import checked
from matryo.errors import InputError
from matryo.losses.vectors import check_dims
from matryo.nesting import Nesting, as_nesting, truncate


class _Nested(nn.Module):
    def __init__(
        self, loss: Callable[..., Tensor], nesting: Nesting | Iterable[int], embeddings: int, normalize: bool
    ) -> None:
        super().__init__()
        if embeddings < 1:
            cure = "pass the number of leading arguments of the loss that are embeddings"
            raise InputError("embeddings must be at least 1", got=embeddings, cure=cure)
        self.loss = loss   # if it is a module, this registers its parameters
        self.nesting, self.embeddings, self.normalize = as_nesting(nesting), embeddings, normalize

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if len(args) < self.embeddings:
            rule = f"the first {self.embeddings} positional arguments must be embeddings"
            cure = "pass the embeddings by position, in the order the loss takes them"
            raise InputError(rule, got=f"{len(args)} arguments", cure=cure)
        vectors, rest = args[: self.embeddings], args[self.embeddings :]
        check_dims(self.nesting, *vectors)
        losses = [
            weight * self.loss(*(truncate(z, dim, self.normalize) for z in vectors), *rest, **kwargs)
            for dim, weight in zip(self.nesting.dims, self.nesting.weights, strict=True)
        ]
        return sum(losses[1:], start=losses[0])


@checked
def nested(
    loss: Callable[..., Tensor], nesting: Nesting | Iterable[int], *, normalize: bool, embeddings: int = 1
) -> Callable[..., Tensor]:
    """Return a module that computes ``loss`` at every dim, weighted and summed.

    Args:
        loss: any function or module of embeddings (a triplet loss, a loss of pytorch-metric-learning, …).
        nesting: the dims and their weights c_m, or a list of dims.
        normalize: normalise each prefix. True if the loss expects unit vectors (a prefix of a unit vector is not one);
            False if the loss uses vector lengths or normalises by itself.
        embeddings: the number of leading positional arguments that are embeddings; others are passed unchanged.

    >>> import torch
    >>> from matryo import Nesting
    >>> anchor, positive, negative = torch.randn(3, 4, 16).unbind()
    >>> triplet = nested(nn.TripletMarginLoss(), Nesting([8, 16]), normalize=True, embeddings=3)
    >>> triplet(anchor, positive, negative).shape
    torch.Size([])
    """
    return _Nested(loss, nesting, embeddings, normalize)
