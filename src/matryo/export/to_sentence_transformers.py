"""Export to sentence-transformers: load with ``SentenceTransformer(FOLDER, truncate_dim=64)``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from matryo.encoders import Bert, SentenceEncoder, TransformersEncoder
from matryo.encoders.weights import write_weights
from matryo.export.parts import add_to_json, is_masked, matryoshka, parts_of, read_settings, some_dim, write_tokenizer
from matryo.files import write_json
from matryo.inference.model import TrainedModel

# The entries of modules.json, in the order in which the modules process a text.
Modules = list[dict[str, Any]]

# These names are understood by every release of sentence-transformers.
_POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}
_OTHERS = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")


def fits(model: TrainedModel) -> bool:
    """Whether the model embeds texts by a pooled transformer.

    A masked model does not fit: it pools after its transform, for which sentence-transformers has no module.
    """
    supported = isinstance(parts_of(model).encoder, Bert | TransformersEncoder | SentenceEncoder)
    return supported and model.tokenizer is not None and not is_masked(model)


def write(model: TrainedModel, folder: Path) -> None:
    """Write the modules and modules.json."""
    encoder, weight, bias = parts_of(model)
    if isinstance(encoder, SentenceEncoder):
        modules = _write_sentence_encoder(encoder, model, folder)
    else:
        modules = _write_transformer(encoder, model, folder)
    add_to_json(folder / "config.json", matryoshka(model))
    if weight is not None:
        _write_dense(_add_module(modules, "Dense", folder), weight, bias)
    # Full vectors are unit vectors. truncate_dim applies after all modules, so callers normalise truncated ones.
    if not str(modules[-1]["type"]).endswith(".Normalize"):
        _add_module(modules, "Normalize", folder)
    write_json(folder / "modules.json", modules)


def task(model: TrainedModel) -> str:   # noqa: ARG001
    """The ``pipeline_tag`` of the model on a hub."""
    return "sentence-similarity"


def usage(model: TrainedModel, name: str) -> str:
    """Example code that loads the folder ``name`` and computes truncated vectors."""
    return (
        "from sentence_transformers import SentenceTransformer\n\n"
        f'model = SentenceTransformer("{name}", truncate_dim={some_dim(model)})\n'
        'vectors = model.encode(["a text"], normalize_embeddings=True)'
    )


def _add_module(modules: Modules, kind: str, folder: Path, *, in_root: bool = False) -> Path:
    """Append a module to the list for modules.json, and return the folder for its files."""
    index = len(modules)
    path = "" if in_root else f"{index}_{kind}"
    modules.append({"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"})
    (folder / path).mkdir(exist_ok=True)
    return folder / path


def _write_transformer(encoder: Any, model: TrainedModel, folder: Path) -> Modules:
    """Write the transformer to the folder itself, and its pooling to a subfolder."""
    modules: Modules = []
    encoder.save(_add_module(modules, "Transformer", folder, in_root=True))
    write_tokenizer(model, folder)
    length = {"max_seq_length": model.recipe.text.length, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", length)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {}, "similarity_fn_name": "cosine"})
    chosen = {name: kind == encoder.pooling for kind, name in _POOLINGS.items()} | dict.fromkeys(_OTHERS, False)
    pooling = {"word_embedding_dimension": encoder.dim, **chosen, "include_prompt": True}
    write_json(_add_module(modules, "Pooling", folder) / "config.json", pooling)
    return modules


def _write_sentence_encoder(encoder: SentenceEncoder, model: TrainedModel, folder: Path) -> Modules:
    """Write the model's own modules with the tokenizer of the run, and the layer norm that its truncation needs."""
    encoder.save(folder)
    modules: Modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    first = folder / modules[0]["path"]
    _replace_tokenizer(model, first)
    add_to_json(first / "sentence_bert_config.json", {"max_seq_length": model.recipe.text.length})
    # Prompts stay available by name, but none is the default, because training used none.
    add_to_json(folder / "config_sentence_transformers.json", {"default_prompt_name": None})
    if encoder.truncation.layer_norm:
        module = _add_module(modules, "LayerNorm", folder)
        write_json(module / "config.json", {"dimension": encoder.dim})
        norm = {"norm.weight": torch.ones(encoder.dim), "norm.bias": torch.zeros(encoder.dim)}
        write_weights(module / "model.safetensors", norm)
    return modules


def _replace_tokenizer(model: TrainedModel, folder: Path) -> None:
    """Replace the tokenizer in ``folder`` by that of the run. If both are equal, keep the other settings."""
    config = folder / "tokenizer_config.json"
    rules, settings = _rules(folder), read_settings(config)
    write_tokenizer(model, folder)
    if _rules(folder) == rules:
        write_json(config, {**settings, "model_max_length": model.recipe.text.length})


def _rules(folder: Path) -> dict[str, Any]:
    """The contents of tokenizer.json without truncation and padding, which the caller sets."""
    stored = read_settings(folder / "tokenizer.json")
    return {key: value for key, value in stored.items() if key not in ("truncation", "padding")}


def _write_dense(folder: Path, weight: Tensor, bias: Tensor | None) -> None:
    sizes = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": bias is not None}
    write_json(folder / "config.json", {**sizes, "activation_function": "torch.nn.modules.linear.Identity"})
    layer = {"linear.weight": weight} if bias is None else {"linear.weight": weight, "linear.bias": bias}
    write_weights(folder / "model.safetensors", layer)
