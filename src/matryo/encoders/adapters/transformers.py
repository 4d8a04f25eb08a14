"""A transformers model of texts or images as an encoder: its last layer, pooled, is the embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from matryo.encoders.tokens import Tokens, check_pooling, pool
from matryo.errors import InputError, MissingExtra

__all__ = ["TransformersEncoder", "freeze_poolers", "from_transformers"]


class TransformersEncoder(nn.Module):
    """A transformers model with a pooling of its last layer."""

    def __init__(self, model: nn.Module, dim: int, pooling: str) -> None:
        super().__init__()
        check_pooling(pooling)
        self.model, self.dim, self.pooling = model, dim, pooling
        freeze_poolers(model)

    @property
    def words(self) -> Tensor:
        """The embedding matrix [vocabulary, d]: what masked prediction is tied to."""
        words: Tensor = self.model.get_input_embeddings().weight   # type: ignore[operator]
        return words

    def hidden(self, inputs: Tokens | Tensor) -> Tensor:
        """What the last layer says of each token or patch, [batch, length, d]."""
        if isinstance(inputs, Tokens):
            mask = None if inputs.mask is None else inputs.mask.long()
            out = self.model(input_ids=inputs.ids, attention_mask=mask)
        else:
            out = self.model(pixel_values=inputs)
        hidden: Tensor = out.last_hidden_state
        return hidden

    def forward(self, inputs: Tokens | Tensor) -> Tensor:
        """Tokens, or images [batch, 3, height, width] → [batch, dim]."""
        return pool(self.hidden(inputs), inputs.mask if isinstance(inputs, Tokens) else None, self.pooling)

    def save(self, folder: str | Path) -> None:
        """Write the model as transformers does, so that ``AutoModel.from_pretrained`` loads it.

        Its tokenizer is not a part of it: save that to the same folder.
        """
        self.model.save_pretrained(str(folder))   # type: ignore[operator]

    def save_shape(self, folder: str | Path) -> None:
        """Write its config, from which ``from_transformers(folder, pretrained=False)`` builds it again."""
        self.model.config.save_pretrained(str(folder))   # type: ignore[union-attr, operator]


def freeze_poolers(model: nn.Module) -> None:
    """Train no pooler (a tanh layer behind the last): nothing here reads it, and what is not read has no gradient.

    It stays part of the model, which goes home as whole as it came.
    """
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "pooler":
            module.requires_grad_(False)


def from_transformers(
    name: str | Path, *, pooling: str = "mean", pretrained: bool = True, **options: Any
) -> TransformersEncoder:
    """The model ``name`` of a hub, or of a folder, as an encoder; ``options`` go to ``AutoModel``.

    ``pretrained=False`` reads only its config and draws new weights.
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
        raise InputError(
            "transformers must be able to load the model", got=f"{name}: {str(error).splitlines()[0]}",
            cure="check the name or the folder",
        ) from error  # fmt: skip
    width = getattr(model.config, "hidden_size", None)
    two = hasattr(model, "encoder") and hasattr(model, "decoder")
    if width is None or two:
        raise InputError(
            "a model of transformers must give one vector of hidden_size a token or patch",
            got=f"{name}, a {type(model).__name__}",
            cure="use sentence-transformers:NAME, which runs the encoder of a T5 alone" if two
            else "a convolutional network comes from timm:MODEL, a CLIP from open_clip:NAME",
        )  # fmt: skip
    return TransformersEncoder(model.float(), int(width), pooling)
