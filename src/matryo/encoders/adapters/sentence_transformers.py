"""A sentence-transformers model as an encoder: the embedding is its sentence embedding, ready for truncation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from matryo.encoders.adapters.transformers import cannot_load, check_folder, freeze_poolers
from matryo.encoders.adapters.truncation import Truncation, truncation_of
from matryo.encoders.tokens import Tokens
from matryo.errors import InputError, MissingExtra

_NO_TRANSFORMER = ("StaticEmbedding", "WordEmbeddings", "BoW")   # with their own tokenisation


class SentenceEncoder(nn.Module):
    """A ``SentenceTransformer`` that takes :class:`Tokens`."""

    def __init__(self, model: nn.Module, dim: int, truncation: Truncation) -> None:
        super().__init__()
        self.model, self.dim, self.truncation = model, dim, truncation
        freeze_poolers(model)

    def forward(self, tokens: Tokens) -> Tensor:
        """Tokens → [batch, dim], prepared for slicing."""
        mask = tokens.ids.new_ones(tokens.ids.shape) if tokens.mask is None else tokens.mask.long()
        z: Tensor = self.model({"input_ids": tokens.ids, "attention_mask": mask})["sentence_embedding"]
        return self.truncation.prepare(z)

    def save(self, folder: str | Path) -> None:
        """Write the model as a sentence-transformers folder."""
        # The card would ask huggingface.co about the folder that the model came from.
        self.model.save(str(folder), create_model_card=False)   # type: ignore[operator]

    def save_shape(self, folder: str | Path) -> None:
        """Write the whole model, because sentence-transformers has no format without weights."""
        self.save(folder)


def from_sentence_transformers(
    name: str | Path, *, truncation: Truncation | None = None, **options: Any
) -> SentenceEncoder:
    """Load the model ``name`` of a hub or folder as an encoder; ``options`` go to ``SentenceTransformer``.

    ``truncation`` defaults to that of the model if its name is known (:func:`truncation_of`), else to a plain slice. A
    ``truncate_dim`` stored with the model is ignored: the encoder returns whole vectors.
    """
    with MissingExtra.unless_installed("sentence-transformers", "sentence"):
        from sentence_transformers import SentenceTransformer
    check_folder(name)
    try:
        model = SentenceTransformer(str(name), **{"device": "cpu", **options})
    except (OSError, ValueError) as error:
        raise cannot_load("sentence-transformers cannot load the model", name, error) from error
    if (kind := type(model[0]).__name__) in _NO_TRANSFORMER:
        rule, cure = "a sentence-transformers model must start with a transformer", "choose another model"
        raise InputError(rule, got=f"{name}, which starts with {kind}", cure=cure)
    model.truncate_dim = None
    dim = model.get_embedding_dimension()
    return SentenceEncoder(model.float(), int(dim or 0), truncation or truncation_of(str(name)))
