"""Masked texts: documents laid end to end and cut into windows, in each of which some tokens are hidden.

Which tokens are hidden, and behind what, is a hash of (seed, epoch, window, place), so that an interrupted run hides
the same ones again, on any device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from matryo.encoders import Tokens
from matryo.errors import DataError
from matryo.training.batches.order import GOLDEN, MIX, Slices, mix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from matryo.data import TextSplit
    from matryo.data.texts.tokenizer import Tokenizer
    from matryo.training.distributed import Group
    from matryo.training.recipe.fields import Recipe

__all__ = ["HELD_OUT", "IGNORED", "MaskedBatches", "MaskedText", "Masks", "check_windows", "to_windows"]

HELD_OUT = 2**32 - 1   # the epoch whose masks are for measuring: every model is asked for the same words
IGNORED = -100
_AS_MASK, _AS_RANDOM = 0.8, 0.1   # BERT's shares: [MASK], another word; the rest stays as it is
_COLUMNS, _PLACES = 4, 1 << 24   # draws a place, places a window at most


class MaskedText(NamedTuple):
    """What the network gets: texts with hidden tokens, and where those are."""

    tokens: Tokens
    places: Tensor
    """int64 [batch, hidden]: the positions to predict, the same number in each text."""


class MaskedBatches:
    """The windows of a split, hidden anew in each epoch."""

    def __init__(self, split: TextSplit, tokenizer: Tokenizer, recipe: Recipe, group: Group) -> None:
        windows = to_windows(split, tokenizer, recipe.text.length)
        self.slices = Slices(len(windows), recipe.loop.seed, recipe.loop.batch, group)
        self.slices.check(f"windows of {recipe.text.length} tokens")
        self.windows = torch.from_numpy(windows).to(group.device)
        self.masks = Masks(tokenizer, recipe.objective.mask, recipe.loop.seed, group.device)
        self.steps, self.device = self.slices.steps, group.device

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[MaskedText, Tensor]]:
        """Masked windows, and the words that were there."""
        for chosen in torch.from_numpy(self.slices.epoch(epoch)[start:]).to(self.device):
            yield self.masks(self.windows[chosen].long(), chosen, epoch)


def to_windows(split: TextSplit, tokenizer: Tokenizer, length: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """All texts end to end, [SEP] between them, cut into [windows, length]; each begins with [CLS], ends with [SEP].

    No window is padded; what does not fill the last one is left out.
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
    """Raise what :func:`to_windows` would raise, and read no further than to know."""
    found = 0
    for row in range(len(split)):
        ids, _ = tokenizer.flat([split.text(row)])
        found += int((ids != tokenizer.cls).sum())
        if found >= length - 2:
            return
    raise _too_short(found, length)


def _too_short(tokens: int, length: int) -> DataError:
    rule, got = "the texts must fill one window", f"{tokens} tokens, windows of {length}"
    return DataError(rule, got=got, cure="use a smaller --text.length")


class Masks:
    """Hides a share of the tokens of each text: 80 % behind [MASK], 10 % behind another word, 10 % stay as they are."""

    def __init__(self, tokenizer: Tokenizer, share: float, seed: int, device: torch.device) -> None:
        self.mask, self.share, self.seed = tokenizer.mask, share, seed
        special = torch.zeros(tokenizer.vocabulary, dtype=torch.bool)
        special[list(tokenizer.special)] = True
        self.special = special.to(device)
        self.words = torch.nonzero(~special).flatten().to(device)

    def __call__(self, ids: Tensor, items: Tensor, epoch: int) -> tuple[MaskedText, Tensor]:
        """Hide tokens of the texts ``ids`` [batch, length], which have the numbers ``items``.

        Returns the text, and as target [batch, hidden] the words that were there, or -100: a text with fewer ordinary
        tokens than the longest could have has fewer to predict. So the shapes are those of ``ids``, whatever it holds.
        """
        length = ids.shape[1]
        order, kind, word = (self._draw(items, length, epoch, column) for column in range(3))
        ordinary = ~self.special[ids]
        wanted = (ordinary.sum(1, keepdim=True) * self.share).round().clamp(min=1)
        order = order.where(ordinary, torch.iinfo(torch.int64).max)   # special tokens come last
        places = order.topk(max(1, round(length * self.share)), largest=False).indices
        asked = ordinary.gather(1, places) & (torch.arange(places.shape[1], device=ids.device) < wanted)
        there = ids.gather(1, places)
        # The highest 24 of 63 bits, as a number in [0, 1).
        u = (kind.gather(1, places) >> 39).float() / (1 << 24)
        other = self.words[word.gather(1, places) % len(self.words)]
        shown = torch.where(u < _AS_MASK, self.mask, torch.where(u < _AS_MASK + _AS_RANDOM, other, there))
        hidden = ids.scatter(1, places, shown.where(asked, there))
        return MaskedText(Tokens(hidden), places), there.where(asked, IGNORED)

    def _draw(self, items: Tensor, length: int, epoch: int, column: int) -> Tensor:
        """[batch, length] of 63 random bits: the hash of :func:`order.mix`, on the device."""
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
    """To the right, with zeros from the left: torch has no unsigned numbers to shift."""
    return (x >> by) & ((1 << (64 - by)) - 1)
