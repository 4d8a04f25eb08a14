"""What several formats need to know of a model: its encoder, the map behind it, its nesting and its tokenizer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from matryo.encoders import Projected
from matryo.errors import DataError
from matryo.files import write_json
from matryo.training.objectives.masked import MaskedModel

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.inference.model import TrainedModel

__all__ = [
    "Parts",
    "add_to_json",
    "facts_in",
    "is_masked",
    "matryoshka",
    "of_images",
    "parts_of",
    "some_dim",
    "write_tokenizer",
]


class Parts(NamedTuple):
    """An encoder and the linear map behind it."""

    encoder: nn.Module
    weight: Tensor | None = None
    """[dims that leave, dims of the encoder]; None where they are the same."""
    bias: Tensor | None = None


def parts_of(model: TrainedModel) -> Parts:
    """The encoder of ``model`` and the map to what it was trained for: columns that no dim reads do not leave."""
    encoder, dim = model.network.encoder, model.nesting.dim
    if isinstance(encoder, Projected):
        bias = encoder.projection.bias
        return Parts(encoder.encoder, encoder.projection.weight[:dim], None if bias is None else bias[:dim])
    width = int(encoder.dim)   # type: ignore[arg-type]
    return Parts(encoder) if dim == width else Parts(encoder, torch.eye(width)[:dim])


def is_masked(model: TrainedModel) -> bool:
    """Whether it predicts masked words, behind a transform of its own."""
    return isinstance(model.network, MaskedModel)


def matryoshka(model: TrainedModel) -> dict[str, Any]:
    """The nesting as vLLM and others read it from a config.json; a model of one dim has none."""
    if len(model.nesting) == 1:
        return {}
    return {"is_matryoshka": True, "matryoshka_dimensions": list(model.nesting.dims)}


def some_dim(model: TrainedModel) -> int:
    """A dim for an example: neither the smallest nor the largest, where there is another."""
    return model.nesting.dims[len(model.nesting) // 2]


def of_images(model: TrainedModel, call: str) -> str:
    """Python of the vectors of ``images``, which ``call`` embeds; with ``data.test_flip`` of their mirror images too.

    >>> from types import SimpleNamespace as Some
    >>> of_images(Some(recipe=Some(data=Some(test_flip=True))), "model(images)")
    '((model(images) + model(images.flip(-1))) / 2)'
    """
    if not model.recipe.data.test_flip:
        return call
    return f"(({call} + {call.replace('images', 'images.flip(-1)')}) / 2)"


def add_to_json(path: Path, facts: dict[str, Any]) -> None:
    """Add ``facts`` to the settings in a file, or begin one."""
    write_json(path, {**facts_in(path), **facts})


def facts_in(path: Path) -> dict[str, Any]:
    """The settings in a file; none where there is no file."""
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return facts


def write_tokenizer(model: TrainedModel, folder: Path) -> None:
    """tokenizer.json, and beside it what transformers wants to know."""
    if model.tokenizer is None:
        return
    model.tokenizer.save(folder)
    inside = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    spelt = {token["id"]: token["content"] for token in inside["added_tokens"]}
    tokens = {"unk_token": inside["model"].get("unk_token")}
    for role in ("pad", "cls", "sep", "mask"):
        try:
            tokens[f"{role}_token"] = spelt.get(getattr(model.tokenizer, role))
        except DataError:   # it has none
            continue
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.recipe.text.length}
    write_json(folder / "tokenizer_config.json", about | {role: token for role, token in tokens.items() if token})
