"""A sentence-transformers model as an encoder: its sentence embedding, up to where it would be truncated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from matryo.encoders.adapters.transformers import freeze_poolers
from matryo.encoders.adapters.truncation import Truncation, truncation_of
from matryo.encoders.tokens import Tokens
from matryo.errors import InputError, MissingExtra

__all__ = ["SentenceEncoder", "from_sentence_transformers"]

_NO_TRANSFORMER = ("StaticEmbedding", "WordEmbeddings", "BoW")   # which read texts in ways of their own


class SentenceEncoder(nn.Module):
    """A ``SentenceTransformer`` whose texts come as tokens."""

    def __init__(self, model: nn.Module, dim: int, truncation: Truncation) -> None:
        super().__init__()
        self.model, self.dim, self.truncation = model, dim, truncation
        freeze_poolers(model)

    def forward(self, tokens: Tokens) -> Tensor:
        """Tokens → [batch, dim], ready to be sliced and normalised."""
        mask = tokens.ids.new_ones(tokens.ids.shape) if tokens.mask is None else tokens.mask.long()
        z: Tensor = self.model({"input_ids": tokens.ids, "attention_mask": mask})["sentence_embedding"]
        return self.truncation.prepare(z)

    def save(self, folder: str | Path) -> None:
        """Write the model as sentence-transformers does."""
        self.model.save(str(folder))   # type: ignore[operator]

    def save_shape(self, folder: str | Path) -> None:
        """Write the whole model: its modules are not described without their weights."""
        self.save(folder)


def from_sentence_transformers(
    name: str | Path, *, truncation: Truncation | None = None, **options: Any
) -> SentenceEncoder:
    """The model ``name`` of a hub, or of a folder, as an encoder; ``options`` go to ``SentenceTransformer``.

    ``truncation`` is the recipe of the model if its name is known (:func:`truncation_of`), else a plain slice. A
    ``truncate_dim`` that it was saved with is set aside: what is nested is the whole vector.
    """
    with MissingExtra.unless_installed("sentence-transformers", "sentence"):
        from sentence_transformers import SentenceTransformer
    try:
        model = SentenceTransformer(str(name), **{"device": "cpu", **options})
    except (OSError, ValueError) as error:
        raise InputError(
            "sentence-transformers must be able to load the model", got=f"{name}: {str(error).splitlines()[0]}",
            cure="check the name or the folder",
        ) from error  # fmt: skip
    if (kind := type(model[0]).__name__) in _NO_TRANSFORMER:
        rule, cure = "a sentence-transformers model must begin with a transformer", "choose another model"
        raise InputError(rule, got=f"{name}, which begins with {kind}", cure=cure)
    model.truncate_dim = None
    dim = model.get_embedding_dimension()
    return SentenceEncoder(model.float(), int(dim or 0), truncation or truncation_of(str(name)))
