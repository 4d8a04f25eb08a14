"""A transformers model of texts or images as an encoder: the embedding is its pooled last layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from matryo.encoders.tokens import Tokens, check_pooling, pool
from matryo.errors import InputError, MissingExtra


class TransformersEncoder(nn.Module):
    """A transformers model followed by a pooling of its last layer."""

    def __init__(self, model: nn.Module, dim: int, pooling: str) -> None:
        super().__init__()
        check_pooling(pooling)
        self.model, self.dim, self.pooling = model, dim, pooling
        freeze_poolers(model)

    @property
    def words(self) -> Tensor:
        """The token embedding matrix, [vocabulary, d], to which masked prediction is tied."""
        return self.model.get_input_embeddings().weight   # type: ignore[operator]

    def hidden(self, inputs: Tokens | Tensor) -> Tensor:
        """The output of the last layer for each token or patch, [batch, length, d]."""
        if isinstance(inputs, Tokens):
            mask = None if inputs.mask is None else inputs.mask.long()
            out = self.model(input_ids=inputs.ids, attention_mask=mask)
        else:
            out = self.model(pixel_values=inputs)
        return out.last_hidden_state

    def forward(self, inputs: Tokens | Tensor) -> Tensor:
        """Tokens, or images [batch, 3, height, width] → [batch, dim]."""
        return pool(self.hidden(inputs), inputs.mask if isinstance(inputs, Tokens) else None, self.pooling)

    def save(self, folder: str | Path) -> None:
        """Write the model for ``AutoModel.from_pretrained``. Save its tokenizer to the same folder separately."""
        self.model.save_pretrained(str(folder))   # type: ignore[operator]

    def save_shape(self, folder: str | Path) -> None:
        """Write the config, from which ``from_transformers(folder, pretrained=False)`` rebuilds the model."""
        self.model.config.save_pretrained(str(folder))   # type: ignore[union-attr, operator]


def cannot_load(
    rule: str, name: str | Path, error: Exception, cure: str = "check the name or the folder"
) -> InputError:
    """The error for a model that another library failed to load, with the first line of that library's message."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(rule, got=f"{name}: {reason}", cure=cure)


def freeze_poolers(model: nn.Module) -> None:
    """Exclude poolers (a tanh layer after the last) from training: they are unused and would get no gradient.

    They stay in the model, so that it is exported complete.
    """
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "pooler":
            module.requires_grad_(False)


def from_transformers(
    name: str | Path, *, pooling: str = "mean", pretrained: bool = True, **options: Any
) -> TransformersEncoder:
    """Load the model ``name`` of a hub or folder as an encoder; ``options`` go to ``AutoModel``.

    ``pretrained=False`` reads only the config and initialises new weights.
    """
    with MissingExtra.unless_installed("transformers", "transformers"):
        import transformers
    check_pooling(pooling)
    auto: Any = transformers.AutoModel
    try:
        if pretrained:
            model = auto.from_pretrained(str(name), **options)
        else:
            model = auto.from_config(transformers.AutoConfig.from_pretrained(str(name), **options))
    except (OSError, ValueError) as error:
        raise cannot_load("transformers cannot load the model", name, error) from error
    width = getattr(model.config, "hidden_size", None)
    has_decoder = hasattr(model, "encoder") and hasattr(model, "decoder")
    if width is None or has_decoder:
        raise InputError(
            "a transformers model must output one vector of hidden_size per token or patch",
            got=f"{name}, a {type(model).__name__}",
            cure="use sentence-transformers:NAME, which runs only the encoder of a T5" if has_decoder
            else "use timm:MODEL for convolutional networks, open_clip:NAME for CLIP",
        )  # fmt: skip
    return TransformersEncoder(model.float(), int(width), pooling)
