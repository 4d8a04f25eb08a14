"""BERT in plain PyTorch, without heads. Parameter names are those of transformers, so public weights load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from matryo.arguments import as_integer, checked
from matryo.encoders.bert.folder import CONFIG, WEIGHTS, BertFolder
from matryo.encoders.layered import Layered, sharing
from matryo.encoders.tokens import Tokens, check_pooling, pool
from matryo.encoders.weights import write_weights
from matryo.errors import InputError
from matryo.files import write_json

# Number of layers, width, number of heads: the sizes published by Google.
BERTS = {
    "bert-tiny": (2, 128, 2),
    "bert-mini": (4, 256, 4),
    "bert-small": (4, 512, 8),
    "bert-medium": (8, 512, 8),
    "bert-base": (12, 768, 12),
    "bert-large": (24, 1024, 16),
}
ACTS: dict[str, Any] = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu, "swish": F.silu}
ACTS |= dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), partial(F.gelu, approximate="tanh"))


@checked
@dataclass(frozen=True)
class BertConfig:
    """The settings of a BERT, named as in config.json; the defaults are BERT-Base."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size"):
            as_integer(getattr(self, name), name, 1)
        if self.hidden_size % self.num_attention_heads:
            rule = "hidden_size must be a multiple of num_attention_heads"
            got = f"{self.hidden_size} and {self.num_attention_heads}"
            raise InputError(rule, got=got, cure="change one of them")
        if self.hidden_act not in ACTS:
            cure = f"choose one of {', '.join(sorted(ACTS))}"
            raise InputError("unknown hidden_act", got=repr(self.hidden_act), cure=cure)

    @classmethod
    @checked
    def named(cls, name: str, **changes: Any) -> BertConfig:
        """The published size ``name``, with ``changes`` applied.

        >>> BertConfig.named("bert-mini", vocab_size=8192).intermediate_size
        1024
        """
        if name not in BERTS:
            raise InputError("there is no such size of BERT", got=name, cure=f"use one of {', '.join(BERTS)}")
        layers, width, heads = BERTS[name]
        sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
        return cls(**{**sizes, "intermediate_size": 4 * width, **changes})

    @checked
    def with_dropout(self, rate: float) -> BertConfig:
        """Set the dropout rate of features and of attention."""
        return replace(self, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)

    @classmethod
    @checked
    def of(cls, values: Mapping[str, Any]) -> BertConfig:
        """Read the contents of a config.json; unknown names are ignored."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names and value is not None})


class Bert(Layered):
    """The encoder of Devlin et al., from tokens to one vector per text.

    Every text is one segment (token type 0). There is no pooler (a tanh layer that sentence embeddings do not use): the
    vectors of the last layer are pooled directly.

    Args:
        config: the settings, as in config.json.
        pooling: ``mean``, ``cls`` or ``last``.

    >>> bert = Bert(BertConfig.named("bert-tiny", vocab_size=100))
    >>> bert(Tokens(torch.randint(100, (2, 9)))).shape
    torch.Size([2, 128])
    """

    @checked
    def __init__(self, config: BertConfig | None = None, *, pooling: str = "mean") -> None:
        super().__init__()
        check_pooling(pooling)
        self.config, self.pooling = config or BertConfig(), pooling
        self.dim = self.config.hidden_size
        self.embeddings = Embeddings(self.config)
        self.encoder = Layers(self.config)
        std = self.config.initializer_range
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    @classmethod
    def open(
        cls, folder: str | Path, *, pooling: str = "", dropout: float | None = None, weights: bool = True
    ) -> Bert:
        """Load a BERT from a Hugging Face or sentence-transformers folder (config.json and model.safetensors).

        ``pooling`` and ``dropout`` override those of the folder; the default pooling is the mean. ``weights=False``
        reads only config.json and initialises new weights.
        """
        stored = BertFolder.open(Path(folder))
        config = BertConfig.of(stored.config)
        config = config if dropout is None else config.with_dropout(dropout)
        bert = cls(config, pooling=pooling or stored.pooling or "mean")
        if weights:
            bert.load_state_dict(stored.read(bert.state_dict()))
        return bert

    def save(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors for ``transformers.AutoModel.from_pretrained``.

        The pooler, which a transformers BertModel always has, is zero: it was not trained.
        """
        self.save_shape(folder)
        pooler = {"pooler.dense.weight": torch.zeros(self.dim, self.dim), "pooler.dense.bias": torch.zeros(self.dim)}
        write_weights(Path(folder) / WEIGHTS, {**self.state_dict(), **pooler})

    def save_shape(self, folder: str | Path) -> None:
        """Write config.json alone, for ``Bert.open(folder, weights=False)``."""
        kind = {"architectures": ["BertModel"], "model_type": "bert", "pooling": self.pooling}
        write_json(Path(folder) / CONFIG, {**kind, **asdict(self.config)})

    @property
    def words(self) -> Tensor:
        """The token embedding matrix, [vocabulary, d], to which masked prediction is tied."""
        return self.embeddings.word_embeddings.weight

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self.encoder.layer)

    def cut(self, layers: int) -> Bert:
        """This BERT with only its first ``layers``, which share their weights with it."""
        first = sharing(self.encoder, layer=self.encoder.layer[:layers])
        shallow = sharing(self, encoder=first)
        shallow.config = replace(self.config, num_hidden_layers=layers)
        return shallow

    def hidden(self, tokens: Tokens, layers: Sequence[int] = ()) -> Tensor:
        """The output of the last layer for each token, [batch, length, d]; or after several numbers of ``layers``."""
        length, limit = tokens.ids.shape[1], self.config.max_position_embeddings
        if length > limit:
            raise InputError(f"a text must have at most {limit} tokens", got=length, cure="truncate it")
        mask = None if tokens.mask is None else tokens.mask[:, None, None, :]
        return self.encoder(self.embeddings(tokens.ids), mask, layers)

    def forward(self, tokens: Tokens, layers: Sequence[int] = ()) -> Tensor:
        """Tokens → [batch, dim]; after several numbers of ``layers``: [number, batch, dim]."""
        hidden = self.hidden(tokens, layers)
        if not layers:
            return pool(hidden, tokens.mask, self.pooling)
        return torch.stack([pool(each, tokens.mask, self.pooling) for each in hidden])


class Embeddings(nn.Module):
    """The sum of token, position and segment embeddings."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, ids: Tensor) -> Tensor:
        """[batch, length] → [batch, length, d]."""
        positions = self.position_embeddings.weight[: ids.shape[1]] + self.token_type_embeddings.weight[0]
        return self.dropout(self.LayerNorm(self.word_embeddings(ids) + positions))


class Layers(nn.Module):
    """The stack of layers."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor, mask: Tensor | None, layers: Sequence[int] = ()) -> Tensor:
        """[batch, length, d] → [batch, length, d]; after several numbers of ``layers``, one more axis in front."""
        reached = []
        for number, layer in enumerate(self.layer, 1):
            x = layer(x, mask)
            if number in layers:
                reached.append(x)
        return torch.stack(reached) if layers else x


class Layer(nn.Module):
    """A post-norm transformer layer: attention and an MLP, each with a residual connection."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = Output(config.intermediate_size, config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[batch, length, d] → [batch, length, d]."""
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class Attention(nn.Module):
    """Self-attention with a residual connection and a norm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = SelfAttention(config)
        self.output = Output(config.hidden_size, config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[batch, length, d] → [batch, length, d]."""
        return self.output(self.self(x, mask), x)


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product attention."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.num_attention_heads, config.attention_probs_dropout_prob
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[batch, length, d] → [batch, length, d]; ``mask`` is False at tokens not to attend to."""
        projections = (self.query, self.key, self.value)
        query, key, value = (linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in projections)
        rate = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=rate)
        return mixed.transpose(1, 2).flatten(-2)


class Intermediate(nn.Module):
    """The hidden layer of the MLP."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.act = config.hidden_act
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, d] → [batch, length, intermediate]."""
        return ACTS[self.act](self.dense(x))


class Output(nn.Module):
    """A linear map to d, the residual connection and the norm."""

    def __init__(self, before: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(before, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """[batch, length, before] → [batch, length, d]."""
        return self.LayerNorm(self.dropout(self.dense(x)) + shortcut)
