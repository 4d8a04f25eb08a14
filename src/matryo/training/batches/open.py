"""Open the training batches of labelled items, pairs or masked texts, and iterate over a split in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from matryo.data.dataset import PairSplit, TextSplit
from matryo.data.pairs.pairs import pairs_by_label
from matryo.errors import DataError
from matryo.progress import tqdm
from matryo.training.batches.images import centred_images, open_images
from matryo.training.batches.masking import MaskedBatches
from matryo.training.batches.order import Slices
from matryo.training.batches.pairs import PairBatches
from matryo.training.batches.reading import Waiting
from matryo.training.batches.texts import ResidentTexts, StreamedTexts, tokens_ahead
from matryo.training.recipe.against_data import check_objective, noun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from matryo.arrays import Integers
    from matryo.data import ImageSplit
    from matryo.data.texts.tokenizer import Tokenizer
    from matryo.encoders import Tokens
    from matryo.training.distributed import Group
    from matryo.training.recipe.fields import Recipe

_RESIDENT_TEXTS = 4_000_000   # larger splits are tokenized during training
_PARTNERS = 16   # items of the same label that an item is paired with, one per epoch


class Batches(Protocol):
    """The training batches of this process."""

    steps: int
    """The number of batches per epoch."""
    waiting: Waiting
    """How long the device has waited for batches."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Tensor]]:
        """Iterate over the batches of an epoch from step ``start``: network input and target."""


class Inputs(Protocol):
    """The items of a split as network input: images or texts, resident or streamed."""

    def stream(self, epoch: int, rows: Integers) -> Iterator[Any]:
        """One batch per step: the items at ``rows`` [steps, batch], augmented as in ``epoch``."""


def open_batches(
    split: Any, recipe: Recipe, group: Group, *, progress: bool, tokenizer: Tokenizer | None = None
) -> Batches:
    """Open the training batches of this process."""
    check_objective(recipe, split)
    if recipe.objective.kind == "masked":
        assert tokenizer is not None
        return MaskedBatches(split, tokenizer, recipe, group)
    if recipe.objective.kind == "pairs" and not isinstance(split, PairSplit):
        split = pairs_by_label(split, recipe.loop.seed, per_item=_PARTNERS)
    if not isinstance(split, PairSplit):
        return _Labelled(split, recipe, group, tokenizer, progress)
    waiting = Waiting(group.device)
    queries = open_inputs(split.queries, recipe, waiting, tokenizer, progress=progress)
    candidates = queries
    if split.candidates is not split.queries:
        candidates = open_inputs(split.candidates, recipe, waiting, tokenizer, progress=progress)
    return PairBatches(split, queries, candidates, recipe, group, waiting)


def open_inputs(
    split: Any, recipe: Recipe, waiting: Waiting, tokenizer: Tokenizer | None, *, progress: bool
) -> Inputs:
    """Open a split of images or texts for training."""
    if isinstance(split, TextSplit):
        assert tokenizer is not None
        if len(split) <= _RESIDENT_TEXTS:
            return ResidentTexts(split, tokenizer, recipe.text.length, waiting.device)
        return StreamedTexts(split, tokenizer, recipe.text.length, waiting)
    return open_images(split, recipe, waiting, progress=progress)


class _Labelled:
    """Batches of items with labels."""

    def __init__(
        self, split: Any, recipe: Recipe, group: Group, tokenizer: Tokenizer | None, progress: bool
    ) -> None:
        self.slices = Slices(len(split), recipe.loop.seed, recipe.loop.batch, group)
        self.slices.check(noun(split))
        if recipe.objective.kind == "classify" and (split.labels < 0).any():
            item = noun(split).removesuffix("s")
            raise DataError(f"every training {item} needs a known class", got="labels below 0", cure="remove them")
        self.waiting = Waiting(group.device)
        self.inputs = open_inputs(split, recipe, self.waiting, tokenizer, progress=progress)
        self.labels = torch.from_numpy(split.labels).to(group.device)
        self.steps, self.device = self.slices.steps, group.device

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Tensor]]:
        rows = self.slices.epoch(epoch)[start:]
        targets = self.labels[torch.from_numpy(rows).to(self.device)]   # one copy per epoch: no step waits for it
        yield from zip(self.inputs.stream(epoch, rows), targets, strict=True)


def ordered_batches(
    split: ImageSplit | TextSplit,
    recipe: Recipe,
    device: torch.device,
    *,
    start: int = 0,
    batch: int = 512,
    tokenizer: Tokenizer | None = None,
    progress: str = "",
) -> Iterator[tuple[Any, Tensor]]:
    """Iterate over (inputs, labels) of a split in order from item ``start``, as when encoding (no augmentation).

    The labels stay on the CPU. ``progress`` is the label of a progress bar; empty shows none.
    """
    rows = [range(low, min(low + batch, len(split))) for low in range(start, len(split), batch)]
    batches: Iterator[Tensor | Tokens]
    if isinstance(split, TextSplit):
        assert tokenizer is not None
        batches = tokens_ahead(split, rows, tokenizer, recipe.text.length, Waiting(device))
    else:
        batches = centred_images(split, recipe, device, rows)
    unit = noun(split).removesuffix("s")
    with tqdm(total=len(split), initial=start, desc=progress, unit=unit, delay=2, disable=not progress) as bar:
        for indices, inputs in zip(rows, batches, strict=True):
            yield inputs, torch.from_numpy(split.labels[indices.start : indices.stop])
            bar.update(len(indices))
