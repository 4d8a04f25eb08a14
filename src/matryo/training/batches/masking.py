"""Masked texts: documents are concatenated and cut into windows, and some tokens of each window are masked.

Which tokens are masked, and how, is a hash of (seed, epoch, window, position). A resumed run therefore masks the same
tokens, on any device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from matryo.encoders import Tokens
from matryo.errors import DataError
from matryo.training.batches.order import GOLDEN, MIX, Slices, mix
from matryo.training.batches.reading import Waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from matryo.data import TextSplit
    from matryo.data.texts.tokenizer import Tokenizer
    from matryo.training.distributed import Group
    from matryo.training.recipe.fields import Recipe

HELD_OUT = 2**32 - 1   # the epoch number of the masks for measuring, so that every model predicts the same words
IGNORED = -100
_AS_MASK, _AS_RANDOM = 0.8, 0.1   # BERT's shares: [MASK], a random word; the rest is unchanged
_COLUMNS, _PLACES = 4, 1 << 24   # draws per position, and the largest number of positions per window


class MaskedText(NamedTuple):
    """Texts with masked tokens, and the positions of those."""

    tokens: Tokens
    places: Tensor
    """int64 [batch, masked]: the positions to predict, equally many in each text."""


class MaskedBatches:
    """The windows of a split, with other tokens masked in each epoch."""

    def __init__(self, split: TextSplit, tokenizer: Tokenizer, recipe: Recipe, group: Group) -> None:
        windows = to_windows(split, tokenizer, recipe.text.length)
        self.slices = Slices(len(windows), recipe.loop.seed, recipe.loop.batch, group)
        self.slices.check(f"windows of {recipe.text.length} tokens")
        self.windows = torch.from_numpy(windows).to(group.device)
        self.masks = Masks(tokenizer, recipe.objective.mask, recipe.loop.seed, group.device)
        self.steps, self.device, self.waiting = self.slices.steps, group.device, Waiting(group.device)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[MaskedText, Tensor]]:
        """Masked windows, and the words that were masked."""
        for chosen in torch.from_numpy(self.slices.epoch(epoch)[start:]).to(self.device):
            yield self.masks(self.windows[chosen].long(), chosen, epoch)


def to_windows(split: TextSplit, tokenizer: Tokenizer, length: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """All texts joined by [SEP] and cut into [windows, length]; each window starts with [CLS] and ends with [SEP].

    No window is padded; an incomplete last one is dropped.
    """
    flat, _ = tokenizer.flat(split.text(i) for i in range(len(split)))
    stream = flat[flat != tokenizer.cls]
    inside = length - 2
    body = stream[: len(stream) // inside * inside].reshape(-1, inside)
    if not len(body):
        raise _too_short(len(stream), length)
    ends = [np.full((len(body), 1), token, np.int32) for token in (tokenizer.cls, tokenizer.sep)]
    return np.concatenate([ends[0], body, ends[1]], 1)


def check_windows(split: TextSplit, tokenizer: Tokenizer, length: int) -> None:
    """Raise the errors of :func:`to_windows`, reading only as many texts as one window needs."""
    count = 0
    for row in range(len(split)):
        ids, _ = tokenizer.flat([split.text(row)])
        count += int((ids != tokenizer.cls).sum())
        if count >= length - 2:
            return
    raise _too_short(count, length)


def _too_short(tokens: int, length: int) -> DataError:
    rule, got = "the texts must fill one window", f"{tokens} tokens, windows of {length}"
    return DataError(rule, got=got, cure="use a smaller --text.length")


class Masks:
    """Masks a share of the tokens of each text: 80 % become [MASK], 10 % a random word, 10 % are unchanged."""

    def __init__(self, tokenizer: Tokenizer, share: float, seed: int, device: torch.device) -> None:
        self.mask, self.share, self.seed = tokenizer.mask, share, seed
        special = torch.zeros(tokenizer.vocabulary, dtype=torch.bool)
        special[list(tokenizer.special)] = True
        self.special = special.to(device)
        self.words = torch.nonzero(~special).flatten().to(device)

    def __call__(self, ids: Tensor, items: Tensor, epoch: int) -> tuple[MaskedText, Tensor]:
        """Mask tokens of the texts ``ids`` [batch, length], whose row numbers are ``items``.

        Returns the masked text, and as target [batch, masked] the original words, or -100 where a text has fewer
        ordinary tokens to predict than a full window. The shapes depend only on the shape of ``ids``.
        """
        length = ids.shape[1]
        order, kind, word = (self._draw(items, length, epoch, column) for column in range(3))
        ordinary = ~self.special[ids]
        wanted = (ordinary.sum(1, keepdim=True) * self.share).round().clamp(min=1)
        order = order.where(ordinary, torch.iinfo(torch.int64).max)   # special tokens come last
        places = order.topk(max(1, round(length * self.share)), largest=False).indices
        predicted = ordinary.gather(1, places) & (torch.arange(places.shape[1], device=ids.device) < wanted)
        original = ids.gather(1, places)
        # The highest 24 of 63 bits as a number in [0, 1).
        u = (kind.gather(1, places) >> 39).float() / (1 << 24)
        other = self.words[word.gather(1, places) % len(self.words)]
        shown = torch.where(u < _AS_MASK, self.mask, torch.where(u < _AS_MASK + _AS_RANDOM, other, original))
        masked = ids.scatter(1, places, shown.where(predicted, original))
        return MaskedText(Tokens(masked), places), original.where(predicted, IGNORED)

    def _draw(self, items: Tensor, length: int, epoch: int, column: int) -> Tensor:
        """63 random bits per token, [batch, length]: the hash of :func:`order.mix`, on the device."""
        key = int(mix(np.array([(self.seed << 32) ^ epoch], np.uint64))[0])
        places = torch.arange(length, device=items.device) * _COLUMNS + column
        x = (items[:, None] * (_PLACES * _COLUMNS) + places) ^ _signed(key)
        x = x + _signed(GOLDEN)
        x = (x ^ _shift(x, 30)) * _signed(MIX[0])
        x = (x ^ _shift(x, 27)) * _signed(MIX[1])
        return (x ^ _shift(x, 31)) & (2**63 - 1)


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right: torch shifts signed integers arithmetically."""
    return (x >> by) & ((1 << (64 - by)) - 1)
