"""A BERT over texts without padding: the tokens of all texts are one list, and only attention is computed per text.

Nearly all work of a BERT is in linear layers, which treat each token alone. So texts of any lengths share a batch at no
cost. The vectors are those of :meth:`Bert.forward`, up to rounding.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from matryo.encoders.bert.model import Bert, Layer
from matryo.errors import InputError

__all__ = ["embed_packed"]


def embed_packed(bert: Bert, ids: Tensor, counts: Tensor) -> Tensor:
    """Token ids of all texts [tokens], and the number of tokens of each [texts] → vectors [texts, d].

    >>> from matryo.encoders.bert.model import BertConfig
    >>> bert = Bert(BertConfig.named("bert-tiny", vocab_size=100)).eval()
    >>> embed_packed(bert, torch.tensor([1, 5, 2, 1, 2]), torch.tensor([3, 2])).shape
    torch.Size([2, 128])
    """
    texts, longest = len(counts), int(counts.max())
    if longest > bert.config.max_position_embeddings:
        limit = bert.config.max_position_embeddings
        raise InputError(f"a text must have at most {limit} tokens", got=longest, cure="truncate it")
    counts = counts.to(ids.device)
    mask = torch.arange(longest, device=ids.device) < counts[:, None]   # [texts, longest]
    rows, positions = mask.nonzero(as_tuple=True)   # the text of each token, and its place there
    table = bert.embeddings
    fixed = table.position_embeddings.weight[positions] + table.token_type_embeddings.weight[0]
    x = table.LayerNorm(table.word_embeddings(ids) + fixed)
    padded = None if len(ids) == texts * longest else mask
    for layer in bert.encoder.layer:
        x = _layer(cast("Layer", layer), x, padded, texts)
    if bert.pooling == "mean":
        return x.new_zeros(texts, x.shape[1]).index_add_(0, rows, x) / counts[:, None]
    ends = counts.cumsum(0)
    return x[ends - 1] if bert.pooling == "last" else x[ends - counts]


def _layer(layer: Layer, x: Tensor, mask: Tensor | None, texts: int) -> Tensor:
    inner = layer.attention.self
    projections = (inner.query, inner.key, inner.value)
    query, key, value = (_spread(linear(x), mask, texts, inner.heads) for linear in projections)
    seen = None if mask is None else mask[:, None, None, :]
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen).transpose(1, 2).flatten(-2)
    x = layer.attention.output(mixed.flatten(0, 1) if mask is None else mixed[mask], x)
    return layer.output(layer.intermediate(x), x)


def _spread(x: Tensor, mask: Tensor | None, texts: int, heads: int) -> Tensor:
    """[tokens, d] → [texts, heads, longest, d / heads], zero at padding."""
    if mask is None:
        grid = x.view(texts, -1, x.shape[1])
    else:
        grid = x.new_zeros(*mask.shape, x.shape[1])
        grid[mask] = x
    return grid.unflatten(-1, (heads, -1)).transpose(1, 2)
