"""Parts of a trained model that several formats write: encoder, projection, nesting and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from matryo.encoders import Projected
from matryo.errors import DataError
from matryo.files import write_json
from matryo.inference.model import TrainedModel
from matryo.training.objectives.masked import MaskedModel


class Parts(NamedTuple):
    """An encoder and the linear map after it."""

    encoder: nn.Module
    weight: Tensor | None = None
    """[largest dim, dim of the encoder]; None if there is no map."""
    bias: Tensor | None = None


def parts_of(model: TrainedModel) -> Parts:
    """Split ``model`` into its encoder and the linear map to the largest trained dim; columns beyond it are dropped."""
    encoder, dim = model.network.encoder, model.nesting.dim
    if isinstance(encoder, Projected):
        bias = encoder.projection.bias
        return Parts(encoder.encoder, encoder.projection.weight[:dim], None if bias is None else bias[:dim])
    width = int(encoder.dim)   # type: ignore[arg-type]
    return Parts(encoder) if dim == width else Parts(encoder, torch.eye(width)[:dim])


def is_masked(model: TrainedModel) -> bool:
    """Whether the model was trained on masked prediction, which adds a transform after the encoder."""
    return isinstance(model.network, MaskedModel)


def matryoshka(model: TrainedModel) -> dict[str, Any]:
    """The nesting as vLLM and others read it from config.json; empty for a model of one dim."""
    if len(model.nesting) == 1:
        return {}
    return {"is_matryoshka": True, "matryoshka_dimensions": list(model.nesting.dims)}


def some_dim(model: TrainedModel) -> int:
    """A dim for usage examples, from the middle of the nesting."""
    return model.nesting.dims[len(model.nesting) // 2]


def of_images(model: TrainedModel, call: str) -> str:
    """The code that embeds ``images`` with ``call``; with ``data.test_flip``, averaged with the mirrored images.

    >>> from types import SimpleNamespace as Stub
    >>> of_images(Stub(recipe=Stub(data=Stub(test_flip=True))), "model(images)")
    '((model(images) + model(images.flip(-1))) / 2)'
    """
    if not model.recipe.data.test_flip:
        return call
    return f"(({call} + {call.replace('images', 'images.flip(-1)')}) / 2)"


def add_to_json(path: Path, settings: dict[str, Any]) -> None:
    """Add ``settings`` to a JSON file, or create it."""
    write_json(path, {**read_settings(path), **settings})


def read_settings(path: Path) -> dict[str, Any]:
    """The contents of a JSON file; empty if it does not exist."""
    settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return settings


def write_tokenizer(model: TrainedModel, folder: Path) -> None:
    """Write tokenizer.json, and tokenizer_config.json for transformers."""
    if model.tokenizer is None:
        return
    model.tokenizer.save(folder)
    stored = read_settings(folder / "tokenizer.json")
    contents = {token["id"]: token["content"] for token in stored["added_tokens"]}
    tokens = {"unk_token": stored["model"].get("unk_token")}
    for role in ("pad", "cls", "sep", "mask"):
        try:
            tokens[f"{role}_token"] = contents.get(getattr(model.tokenizer, role))
        except DataError:   # the tokenizer has no such token
            continue
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.recipe.text.length}
    write_json(folder / "tokenizer_config.json", settings | {role: token for role, token in tokens.items() if token})
