"""The batches a run trains on: of labelled items, of pairs, of masked texts; all in an order that the seed decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from tqdm import tqdm

from matryo.data.dataset import PairSplit, TextSplit
from matryo.data.pairs.pairs import pairs_by_label
from matryo.errors import DataError
from matryo.training.batches.images import StreamedImages, centred_images, open_images
from matryo.training.batches.masking import MaskedBatches
from matryo.training.batches.order import Slices
from matryo.training.batches.pairs import PairBatches
from matryo.training.batches.texts import open_texts, to_tokens
from matryo.training.recipe.against_data import check_objective, noun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from matryo.data import ImageSplit
    from matryo.data.texts.tokenizer import Tokenizer
    from matryo.encoders import Tokens
    from matryo.training.batches.order import Rows
    from matryo.training.distributed import Group
    from matryo.training.recipe.fields import Recipe

__all__ = ["Batches", "Inputs", "open_batches", "open_inputs", "test_batches", "test_inputs"]

_PARTNERS = 16   # of its label that an item meets, one an epoch


class Batches(Protocol):
    """Where the loop gets its batches from."""

    steps: int
    """How many batches an epoch has."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Tensor]]:
        """The batches of an epoch from step ``start`` on: network input (a tensor, tokens, a tuple) and target."""


class Inputs(Protocol):
    """The items of a split as network input: resident or streamed, images or texts."""

    def stream(self, epoch: int, rows: Rows) -> Iterator[Any]:
        """The items at ``rows``, [steps, batch], varied as in ``epoch``, a batch a step."""


def open_batches(
    split: Any, recipe: Recipe, group: Group, *, progress: bool, tokenizer: Tokenizer | None = None
) -> Batches:
    """The training batches this process sees."""
    check_objective(recipe, split)
    if recipe.objective.kind == "masked":
        assert tokenizer is not None
        return MaskedBatches(split, tokenizer, recipe, group)
    if recipe.objective.kind == "pairs" and not isinstance(split, PairSplit):
        split = pairs_by_label(split, recipe.loop.seed, per_item=_PARTNERS)
    if not isinstance(split, PairSplit):
        return _Labelled(split, recipe, group, tokenizer, progress)
    queries = open_inputs(split.queries, recipe, group.device, tokenizer, progress=progress)
    if split.candidates is split.queries and not isinstance(queries, StreamedImages):   # whose workers serve one reader
        return PairBatches(split, queries, queries, recipe, group)
    candidates = open_inputs(split.candidates, recipe, group.device, tokenizer, progress=progress)
    return PairBatches(split, queries, candidates, recipe, group)


def open_inputs(
    split: Any, recipe: Recipe, device: torch.device, tokenizer: Tokenizer | None, *, progress: bool
) -> Inputs:
    """The items of a split of images or of texts, for training."""
    if isinstance(split, TextSplit):
        assert tokenizer is not None
        return open_texts(split, tokenizer, recipe, device)
    return open_images(split, recipe, device, progress=progress)


class _Labelled:
    """Items with a label each."""

    def __init__(
        self, split: Any, recipe: Recipe, group: Group, tokenizer: Tokenizer | None, progress: bool
    ) -> None:
        self.slices = Slices(len(split), recipe.loop.seed, recipe.loop.batch, group)
        self.slices.check(noun(split))
        if recipe.objective.kind == "classify" and (split.labels < 0).any():
            item = noun(split).removesuffix("s")
            raise DataError(f"every training {item} needs a known class", got="labels below 0", cure="leave those out")
        self.inputs = open_inputs(split, recipe, group.device, tokenizer, progress=progress)
        self.labels = torch.from_numpy(split.labels).to(group.device)
        self.steps, self.device = self.slices.steps, group.device

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Tensor]]:
        rows = self.slices.epoch(epoch)[start:]
        targets = self.labels[torch.from_numpy(rows).to(self.device)]   # in one copy, so a step waits for none
        yield from zip(self.inputs.stream(epoch, rows), targets, strict=True)


def test_inputs(
    split: ImageSplit | TextSplit,
    recipe: Recipe,
    device: torch.device,
    *,
    start: int = 0,
    batch: int = 512,
    workers: int | None = None,
    tokenizer: Tokenizer | None = None,
    progress: str = "",
) -> Iterator[Tensor | Tokens]:
    """The split in order from item ``start`` on, as the network sees it when encoding (no augmentation).

    ``progress`` is what stands before a bar; without it, there is none.
    """
    rows = [list(range(low, min(low + batch, len(split)))) for low in range(start, len(split), batch)]
    found: Iterator[Tensor | Tokens]
    if isinstance(split, TextSplit):
        assert tokenizer is not None
        texts = ([split.text(i) for i in some] for some in rows)
        found = (to_tokens(some, tokenizer, recipe.text.length, device) for some in texts)
    else:
        found = centred_images(split, recipe, device, rows, workers)
    unit = "text" if isinstance(split, TextSplit) else "image"
    with tqdm(total=len(split), initial=start, desc=progress, unit=unit, delay=2, disable=not progress) as bar:
        for some, inputs in zip(rows, found, strict=True):
            yield inputs
            bar.update(len(some))


def test_batches(
    split: ImageSplit | TextSplit, recipe: Recipe, device: torch.device, *, start: int = 0, **options: Any
) -> Iterator[tuple[Any, Tensor]]:
    """The same with the labels, which stay on the CPU; ``options`` are those of :func:`test_inputs`."""
    done = start
    for inputs in test_inputs(split, recipe, device, start=start, **options):
        count = len(inputs) if isinstance(inputs, torch.Tensor) else len(inputs.ids)
        yield inputs, torch.from_numpy(split.labels[done : done + count])
        done += count
