"""Parts of a trained model that several formats write: encoder, projection, nesting and tokenizer."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from matryo.data.texts.tokenizer import Tokenizer
from matryo.encoders import Projected, Tokens
from matryo.errors import DataError
from matryo.files import write_json
from matryo.inference.model import TrainedModel
from matryo.training.objectives.masked import MaskedModel

_PLAIN = "PreTrainedTokenizerFast"   # the class of transformers that follows tokenizer.json
_SAMPLE = ["a text", " Another one:  12,345 unbelievable cases.\n", "naïve 東京 🙂", ""]


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
        weight, bias = encoder.folded()
        return Parts(encoder.innermost, weight[:dim], None if bias is None else bias[:dim])
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
    """Write the files of the tokenizer: those of a pretrained model as they are, but with the length of the recipe."""
    if model.tokenizer is None:
        return
    model.tokenizer.save(folder)
    config, length = folder / "tokenizer_config.json", {"model_max_length": model.recipe.text.length}
    tokens = _special_tokens(model.tokenizer, read_settings(folder / "tokenizer.json"))
    if config.name not in model.tokenizer.files:   # of a tokenizer that was trained here
        write_json(config, {"tokenizer_class": _PLAIN, **length, **tokens})
        return
    stored = read_settings(config)
    settings = {"tokenizer_class": _PLAIN, **stored, **length}
    own = read_settings(folder / "special_tokens_map.json") | stored
    if not own.get("pad_token") and (padding := tokens.get("pad_token") or own.get("eos_token")):
        settings["pad_token"] = padding   # any token will do, as the mask hides it
    if stored.get("truncation_side") == "left":
        settings["truncation_side"] = "right"   # as in training
    if stored.get("padding_side") == "left" and _counts_padding(model):
        settings["padding_side"] = "right"
    write_json(config, settings)
    if not _same_ids(model, folder):   # some classes of transformers add to tokenizer.json, or ignore parts of it
        write_json(config, {**settings, "tokenizer_class": _PLAIN})


def _special_tokens(tokenizer: Tokenizer, stored: dict[str, Any]) -> dict[str, str]:
    contents = {token["id"]: token["content"] for token in stored["added_tokens"]}
    tokens = {"unk_token": stored["model"].get("unk_token")}
    for role in ("pad", "cls", "sep", "mask"):
        try:
            tokens[f"{role}_token"] = contents.get(getattr(tokenizer, role))
        except DataError:   # the tokenizer has no such token
            continue
    return {role: token for role, token in tokens.items() if token}


def _same_ids(model: TrainedModel, folder: Path) -> bool:
    """Whether transformers reads the same ids from the folder as the model; True if it is not installed."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return True
    try:
        theirs = AutoTokenizer.from_pretrained(str(folder))
        ids = [theirs(text, truncation=True)["input_ids"] for text in _SAMPLE]
    except Exception:   # a class that this release does not have, or that needs another package
        return False
    assert model.tokenizer is not None
    flat, offsets = model.tokenizer.flat(_SAMPLE, model.recipe.text.length)
    return ids == [flat[first:end].tolist() for first, end in pairwise(offsets)]


def _counts_padding(model: TrainedModel) -> bool:
    """Whether padding on the left changes the vectors, because the model counts absolute positions from there."""
    encoder = parts_of(model).encoder
    ids = torch.tensor([[0, 0, 1, 2, 3]], device=model.device)
    with torch.no_grad():
        alone, padded = encoder(Tokens(ids[:, 2:])), encoder(Tokens(ids, torch.arange(5, device=ids.device)[None] >= 2))
    return not torch.allclose(alone, padded, rtol=1e-2, atol=1e-3 * float(alone.abs().max()))
