"""Text inputs: token ids are kept on the device without padding; a batch is padded to a multiple of 8 tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from matryo.data.dataset import TextSplit
from matryo.data.texts.tokenizer import BUNDLE, Tokenizer
from matryo.encoders import Tokens
from matryo.errors import DataError, RecipeError
from matryo.training.batches.reading import Waiting, prepare_ahead
from matryo.training.recipe.against_data import sides_of
from matryo.training.run.paths import TOKENIZER, RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from matryo.arrays import Integers
    from matryo.training.distributed import Group
    from matryo.training.recipe.fields import Recipe

_MULTIPLE = 8   # as Tokenizer.encode rounds lengths up


class ResidentTexts:
    """The token ids of all texts on the device, concatenated."""

    def __init__(self, split: TextSplit, tokenizer: Tokenizer, length: int, device: torch.device) -> None:
        flat, offsets = tokenizer.flat(_all(split), length)
        if not len(flat):
            cure = "check its text column"
            raise DataError("at least one text must have a token", got="none in the whole split", cure=cure)
        self.length, self.pad, self.device = length, tokenizer.pad, device
        self.ids = torch.from_numpy(flat).to(device)
        self.starts = torch.from_numpy(offsets[:-1]).to(device)
        self.counts = np.diff(offsets)

    def stream(self, epoch: int, rows: Integers) -> Iterator[Tokens]:   # noqa: ARG002 - texts do not vary by epoch
        """One batch per step: the texts at ``rows`` [steps, batch]."""
        chosen, counts = torch.from_numpy(rows).to(self.device), self.counts[rows]
        on_device = torch.from_numpy(counts).to(self.device)
        for step, lengths in enumerate(counts):   # shapes are computed without waiting for the device
            longest = int(lengths.max())
            width = max(longest, min(-(-longest // _MULTIPLE) * _MULTIPLE, self.length))
            places = torch.arange(width, device=self.device)
            kept = places < on_device[step][:, None]
            index = (self.starts[chosen[step]][:, None] + places).clamp(max=len(self.ids) - 1)
            ids = self.ids[index].long().where(kept, self.pad)
            yield Tokens(ids, None if int(lengths.min()) == width else kept)


class StreamedTexts:
    """Texts that are tokenized by a thread ahead of the step, for splits of many millions."""

    def __init__(self, split: TextSplit, tokenizer: Tokenizer, length: int, waiting: Waiting) -> None:
        self.split, self.tokenizer, self.length, self.waiting = split, tokenizer, length, waiting

    def stream(self, epoch: int, rows: Integers) -> Iterator[Tokens]:   # noqa: ARG002 - texts do not vary by epoch
        """One batch per step: the texts at ``rows`` [steps, batch]."""
        return tokens_ahead(self.split, rows, self.tokenizer, self.length, self.waiting)


def tokens_ahead(
    split: TextSplit, rows: Iterable[Any], tokenizer: Tokenizer, length: int, waiting: Waiting
) -> Iterator[Tokens]:
    """One batch per element of ``rows``, the texts at these indices, tokenized by a thread ahead of their use."""

    def tokenized(indices: Any) -> Tokens:
        tokens = to_tokens([split.text(int(i)) for i in indices], tokenizer, length, torch.device("cpu"))
        if waiting.device.type == "cuda":
            return Tokens(tokens.ids.pin_memory(), None if tokens.mask is None else tokens.mask.pin_memory())
        return tokens

    for tokens in prepare_ahead(tokenized, rows, waiting):
        yield tokens.to(waiting.device, non_blocking=True)


def sorted_rows(split: TextSplit, start: int, span: int, batch: int) -> Iterator[Integers]:
    """The rows from ``start``, ``batch`` at a time; within each ``span`` of rows sorted by the length of the texts."""
    for low in range(start, len(split), span):
        rows = np.arange(low, min(low + span, len(split)))
        lengths = np.array([len(split.text(int(row))) for row in rows])
        in_order = rows[np.argsort(lengths, kind="stable")]
        yield from (in_order[first : first + batch] for first in range(0, len(rows), batch))


def to_tokens(texts: Sequence[str], tokenizer: Tokenizer, length: int, device: torch.device) -> Tokens:
    """Tokenize a batch of texts and move it to the device."""
    ids, mask = tokenizer.encode(texts, length)
    kept = None if mask.all() else torch.from_numpy(mask)
    return Tokens(torch.from_numpy(ids).long(), kept).to(device)


def open_tokenizer(recipe: Recipe, split: Any, folder: Path, group: Group, *, resumed: bool) -> Tokenizer | None:
    """Open the tokenizer in a run's folder; a new run writes it first. None if the split has no texts.

    A new run overwrites a tokenizer that is already there: a failed start with another recipe may have left it.
    """
    texts = [side for side in {id(side): side for side in sides_of(split)}.values() if isinstance(side, TextSplit)]
    if not texts:
        return None
    run = RunFolder(folder)
    stored = run.files.keys() & {TOKENIZER, BUNDLE} | {TOKENIZER} if resumed else set()
    if group.first and not (resumed and all((folder / name).exists() for name in stored)):
        _make_tokenizer(recipe, texts).store(folder)
    group.wait()
    run.check_files(stored)   # the only files that resuming takes over as they are
    return Tokenizer.open(folder / TOKENIZER)


def _make_tokenizer(recipe: Recipe, texts: list[TextSplit]) -> Tokenizer:
    """text.tokenizer, or that of the pretrained encoder or the teacher, or else one trained on the texts."""
    if recipe.text.tokenizer:
        return Tokenizer.open(recipe.text.tokenizer)
    name = recipe.text.encoder or recipe.encoder.name
    for folder in (name.partition(":")[2], recipe.finetune.start, recipe.objective.teacher.rpartition(":")[2]):
        if folder and Path(folder).is_dir():
            return Tokenizer.open(folder)
    if ":" in name:
        raise RecipeError(
            "a pretrained text encoder needs its own tokenizer",
            got=f"{name}, which is not a folder",
            cure="download the model and give its folder, or set a tokenizer.json: --text.tokenizer PATH",
        )
    return Tokenizer.train(
        (text for split in texts for text in _all(split)), recipe.text.vocabulary, recipe.text.lowercase
    )


def _all(split: TextSplit) -> Iterator[str]:
    return (split.text(i) for i in range(len(split)))
