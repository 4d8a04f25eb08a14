"""Split and join tokenised texts, as sentence-transformers passes them to a loss: one dict of tensors per column."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from matryo.errors import InputError
from matryo.losses.engines.contract import slices

Texts = dict[str, Any]
_WHOLE = {"prompt_length"}   # describes the whole batch, even if it is a tensor


def split(texts: Texts, size: int) -> list[Texts]:
    """Split ``texts`` into mini-batches of ``size`` rows, each padded to its own longest text only."""
    if "cu_seq_lens_q" in texts:
        return _split_unpadded(texts, size)
    rows = _rows(texts)
    for key, value in texts.items():
        if key not in _WHOLE and isinstance(value, Tensor) and (value.ndim == 0 or len(value) != rows):
            got = f"{key} of shape {tuple(value.shape)} for {rows} texts"
            raise InputError("mini-batches need inputs with one row per text", got=got, cure="use mini_batch_size=None")
    width, ends = _ends(texts, rows)
    return [_cut(texts, part, width, max(ends[part])) for part in slices(rows, size)]


def join(columns: list[Texts]) -> Texts | None:
    """Join the rows of all columns into one batch, padded to one length, for a single forward pass.

    Return None if they cannot be joined: different keys or shapes, unpadded inputs, or padding other than of tokens.
    """
    first = columns[0]
    if "cu_seq_lens_q" in first or any(texts.keys() != first.keys() for texts in columns):
        return None
    if not any(isinstance(first.get(key), Tensor) and first[key].ndim >= 2 for key in ("input_ids", "attention_mask")):
        return None
    rows, joined = _rows(first), {}
    for key, value in first.items():
        values = [texts[key] for texts in columns]
        if isinstance(value, Tensor) and key not in _WHOLE:
            stacked = _stack(values, rows)
            if stacked is None:
                return None
            joined[key] = stacked
        elif all(_same(value, other) for other in values):
            joined[key] = value
        else:
            return None
    return joined


def _rows(texts: Texts) -> int:
    tokens = [texts[key] for key in ("input_ids", "attention_mask") if isinstance(texts.get(key), Tensor)]
    tensors = tokens or [value for value in texts.values() if isinstance(value, Tensor) and value.ndim]
    if not tensors:
        raise InputError("a batch of texts must contain tensors", got=sorted(texts), cure="pass tokenised texts")
    return len(tensors[0])


def _ends(texts: Texts, rows: int) -> tuple[int, list[int]]:
    """The number of token columns, and for each row the end of its last token; 0 if unknown."""
    mask = texts.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return 0, [0] * rows
    positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return mask.shape[1], (mask.bool() * positions).amax(1).tolist()


def _cut(texts: Texts, rows: slice, width: int, end: int) -> Texts:
    """The given rows, without the token columns from ``end`` on, which are padding; all columns if it is 0."""
    cut = dict(texts)
    for key, value in texts.items():
        if isinstance(value, Tensor) and key not in _WHOLE:
            padded = end and value.ndim >= 2 and value.shape[1] == width
            cut[key] = value[rows, :end] if padded else value[rows]
    return cut


def _split_unpadded(texts: Texts, size: int) -> list[Texts]:
    """Split texts concatenated without padding, as for flash attention; ``cu_seq_lens_q`` holds their bounds."""
    bounds = texts["cu_seq_lens_q"].tolist()
    rows, tokens = len(bounds) - 1, bounds[-1]
    batches = []
    for part in slices(rows, size):
        low, high, cut = part.start, part.stop, dict(texts)
        for key, value in texts.items():
            if key in ("cu_seq_lens_q", "cu_seq_lens_k"):
                cut[key] = value[low : high + 1] - value[low]
            elif key in ("max_length_q", "max_length_k"):
                cut[key] = max(bounds[i + 1] - bounds[i] for i in range(low, high))
            elif isinstance(value, Tensor) and value.ndim and value.shape[-1] == tokens:
                cut[key] = value[..., bounds[low] : bounds[high]] - (low if key == "seq_idx" else 0)
        batches.append(cut)
    return batches


def _stack(values: list[Any], rows: int) -> Tensor | None:
    first: Tensor = values[0]
    for value in values:
        if not isinstance(value, Tensor) or value.ndim != first.ndim or value.ndim == 0 or len(value) != rows:
            return None
        if value.shape[2:] != first.shape[2:]:
            return None
    if first.ndim >= 2:
        width = max(value.shape[1] for value in values)
        if first.is_floating_point() and any(value.shape[1] != width for value in values):
            return None   # 0 pads token ids and masks; in other inputs it is a value
        values = [F.pad(value, [0, 0] * (value.ndim - 2) + [0, width - value.shape[1]]) for value in values]
    return torch.cat(values)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    return isinstance(a, str | int | float | tuple | None) and type(a) is type(b) and bool(a == b)
