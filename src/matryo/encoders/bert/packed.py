"""A BERT over texts without padding: the tokens of all texts are one list, and attention runs over short parts of it.

Nearly all work of a BERT is in linear layers, which treat each token alone, so texts of any lengths share a batch. On
CPUs the linear layers are oneDNN's, with the layout of the weights prepared once and with the activation and the
residual connection inside. The vectors are those of :meth:`Bert.forward`, up to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from matryo.encoders.bert.model import ACTS, Bert, Layer
from matryo.errors import InputError

__all__ = ["ROWS", "PackedBert"]

_PART = 64   # tokens that share a call of attention; longer texts have a call of their own
ROWS = 32
"""oneDNN prepares, and keeps, code and memory for each number of tokens: it sees multiples of this."""
_Inside = tuple[str, list[float], str]
_GELU: _Inside = ("gelu", [], "tanh")
_INSIDE: dict[str, _Inside] = {   # the names that oneDNN's operators have for activations
    "": ("none", [], ""), "relu": ("relu", [], ""), "silu": ("swish", [], ""), "swish": ("swish", [], ""),
    "gelu": ("gelu", [], "none"), "gelu_new": _GELU, "gelu_fast": _GELU, "gelu_pytorch_tanh": _GELU,
}  # fmt: skip


class PackedBert:
    """The forward pass of ``bert`` without padding; the weights are those of this moment.

    >>> from matryo.encoders.bert.model import BertConfig
    >>> bert = Bert(BertConfig.named("bert-tiny", vocab_size=100)).eval()
    >>> with torch.inference_mode():
    ...     PackedBert(bert)(torch.tensor([1, 5, 2, 1, 2]), torch.tensor([3, 2])).shape
    torch.Size([2, 128])
    """

    def __init__(self, bert: Bert) -> None:
        self.table, self.limit, self.pooling = bert.embeddings, bert.config.max_position_embeddings, bert.pooling
        self._layers = [_PackedLayer(layer) for layer in bert.encoder.layer if isinstance(layer, Layer)]

    def __call__(self, ids: Tensor, counts: Tensor) -> Tensor:
        """Token ids of all texts [tokens], and the number of tokens of each [texts] → vectors [texts, d]."""
        longest = int(counts.max())
        if longest > self.limit:
            raise InputError(f"a text must have at most {self.limit} tokens", got=longest, cure="truncate it")
        parts = _parts(counts, ids.device)
        counts = counts.to(ids.device)
        rows = torch.arange(len(counts), device=ids.device).repeat_interleave(counts)   # the text of each token
        ends = counts.cumsum(0)
        positions = torch.arange(len(ids), device=ids.device) - (ends - counts)[rows]
        table = self.table
        fixed = table.position_embeddings.weight[positions] + table.token_type_embeddings.weight[0]
        x = table.LayerNorm(table.word_embeddings(ids) + fixed)
        x = F.pad(x, (0, 0, 0, -len(ids) % ROWS))
        for layer in self._layers:
            x = layer(x, parts)
        x = x[: len(ids)]
        if self.pooling == "mean":
            return x.new_zeros(len(counts), x.shape[1]).index_add_(0, rows, x) / counts[:, None]
        return x[ends - 1] if self.pooling == "last" else x[ends - counts]


_Parts = list[tuple[int, Tensor | None]]
"""The tokens of each call of attention, and its mask; None for a single text."""


def _parts(counts: Tensor, device: torch.device) -> _Parts:
    """Neighbouring texts share a call of attention up to ``_PART`` tokens; the mask keeps them apart."""
    groups: list[list[int]] = [[]]
    for count in counts.tolist():
        if groups[-1] and sum(groups[-1]) + count > _PART:
            groups.append([])
        groups[-1].append(count)
    return [(sum(group), _apart(group, device)) for group in groups]


def _apart(counts: list[int], device: torch.device) -> Tensor | None:
    if len(counts) == 1:
        return None
    text = torch.arange(len(counts), device=device).repeat_interleave(torch.tensor(counts, device=device))
    return torch.zeros(len(text), len(text), device=device).masked_fill_(text[:, None] != text, float("-inf"))


class _PackedLayer:
    """A layer with one projection for queries, keys and values."""

    def __init__(self, layer: Layer) -> None:
        inner, self.act = layer.attention.self, layer.intermediate.act
        projections = (inner.query, inner.key, inner.value)
        weight, bias = (torch.cat([getattr(one, name).detach() for one in projections]) for name in ("weight", "bias"))
        self.heads, self.project = inner.heads, _linear(weight, bias)
        self.mix, self.mixed = _of(layer.attention.output.dense), layer.attention.output.LayerNorm
        self.widen, self.narrow = _of(layer.intermediate.dense), _of(layer.output.dense)
        self.narrowed = layer.output.LayerNorm

    def __call__(self, x: Tensor, parts: _Parts) -> Tensor:
        """[tokens, d] → [tokens, d]."""
        mixed, start = torch.zeros_like(x), 0
        projected = self.project(x).unflatten(1, (3, self.heads, -1)).transpose(0, 2)   # [heads, 3, tokens, d / heads]
        for size, mask in parts:
            query, key, value = projected[:, :, start : start + size].unsqueeze(0).unbind(2)
            out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            mixed[start : start + size] = out[0].transpose(0, 1).flatten(1)
            start += size
        x = self.mixed(self.mix.plus(mixed, x))
        return self.narrowed(self.narrow.plus(self.widen(x, self.act), x))


class _Plain:
    """A linear layer of PyTorch, with the activation or the residual connection after it."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor, act: str = "") -> Tensor:
        """[tokens, before] → [tokens, after]."""
        out = F.linear(x, self.weight, self.bias)
        return ACTS[act](out) if act else out

    def plus(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """[tokens, before] → [tokens, after], added to ``shortcut``."""
        return self(x) + shortcut


class _OneDnn(_Plain):
    """A linear layer of oneDNN, by the operators that torch.compile uses where weights are frozen."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__(torch.ops.mkldnn._reorder_linear_weight(weight, None), bias)

    def __call__(self, x: Tensor, act: str = "") -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, *_INSIDE[act])

    def plus(self, x: Tensor, shortcut: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.binary(x, shortcut, self.weight, self.bias, "add")


def _linear(weight: Tensor, bias: Tensor) -> _Plain:
    one = hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and torch.backends.mkldnn.is_available()
    able = one and weight.device.type == "cpu" and weight.dtype == torch.float32
    return (_OneDnn if able else _Plain)(weight.detach(), bias.detach())


def _of(linear: nn.Linear) -> _Plain:
    return _linear(linear.weight, linear.bias)
