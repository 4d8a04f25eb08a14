"""Tokens, a batch of tokenised texts, and the pooling of token vectors into one vector per text."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from matryo.errors import InputError

POOLINGS = ("mean", "cls", "last")


class Tokens(NamedTuple):
    """A batch of texts.

    >>> ids = torch.tensor([[101, 7, 102], [101, 102, 0]])
    >>> texts = Tokens(ids, mask=ids != 0)
    >>> texts.to("cpu").ids.shape
    torch.Size([2, 3])
    """

    ids: Tensor
    """int64 [batch, length]."""
    mask: Tensor | None = None
    """bool [batch, length], False at padding. None means no padding, which makes attention faster."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Tokens:
        """Copy the tokens to ``device``."""
        mask = None if self.mask is None else self.mask.to(device, non_blocking=non_blocking)
        return Tokens(self.ids.to(device, non_blocking=non_blocking), mask)


def check_pooling(kind: str) -> None:
    """Raise unless ``kind`` is a pooling of :func:`pool`."""
    if kind not in POOLINGS:
        raise InputError("unknown pooling", got=repr(kind), cure=f"choose one of {', '.join(POOLINGS)}")


def pool(hidden: Tensor, mask: Tensor | None, kind: str) -> Tensor:
    """Pool [batch, length, d] to [batch, d]: the mean, the first or the last of the tokens that are not padding.

    >>> hidden = torch.tensor([[[2.0], [4.0], [9.0]]])
    >>> mask = torch.tensor([[True, True, False]])
    >>> [pool(hidden, mask, kind).item() for kind in POOLINGS]
    [3.0, 2.0, 4.0]
    """
    check_pooling(kind)
    if kind == "mean":
        if mask is None:
            return hidden.mean(1)
        kept = mask.unsqueeze(-1).to(hidden.dtype)
        # Batches may be filled up with empty texts: their vector is zero, without a division by zero.
        return (hidden * kept).sum(1) / kept.sum(1).clamp(min=1)
    if mask is None:
        return hidden[:, 0 if kind == "cls" else -1]
    first, last = mask.int().argmax(1), mask.shape[1] - 1 - mask.flip(1).int().argmax(1)   # padding may be on the left
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), first if kind == "cls" else last]
