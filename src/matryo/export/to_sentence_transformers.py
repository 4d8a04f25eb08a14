"""To sentence-transformers: ``SentenceTransformer(folder, truncate_dim=64)`` gives our vectors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from matryo.encoders import Bert, SentenceEncoder, TransformersEncoder
from matryo.encoders.weights import write_weights
from matryo.export.parts import add_to_json, facts_in, is_masked, matryoshka, parts_of, some_dim, write_tokenizer
from matryo.export.to_transformers import write_encoder
from matryo.files import write_json

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from matryo.inference.model import TrainedModel

__all__ = ["fits", "task", "usage", "write"]

# As every release of sentence-transformers reads them.
_POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}
_OTHERS = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")


def fits(model: TrainedModel) -> bool:
    """Texts through a transformer, pooled. A masked model pools behind its transform, for which there is no module."""
    encoder = parts_of(model).encoder
    known = isinstance(encoder, Bert | TransformersEncoder | SentenceEncoder)
    return known and model.tokenizer is not None and not is_masked(model)


def write(model: TrainedModel, folder: Path) -> None:
    """Write the modules one after the other, as plain files."""
    encoder, weight, bias = parts_of(model)
    if isinstance(encoder, SentenceEncoder):
        modules = _write_sentence_encoder(encoder, model, folder)
        add_to_json(folder / "config.json", matryoshka(model))
    else:
        modules = _write_transformer(encoder, model, folder)
    if weight is not None:
        _write_dense(modules, weight, bias)
    # Truncation comes behind all modules, and whoever truncates normalises again; yet whole vectors are unit vectors.
    if modules.kinds[-1] != "Normalize":
        modules.add("Normalize")
    modules.write()


def task(model: TrainedModel) -> str:   # noqa: ARG001
    """What the hub calls it."""
    return "sentence-similarity"


def usage(model: TrainedModel, name: str) -> str:
    """Python that loads and truncates."""
    return (
        "from sentence_transformers import SentenceTransformer\n\n"
        f'model = SentenceTransformer("{name}", truncate_dim={some_dim(model)})\n'
        'vectors = model.encode(["a text"], normalize_embeddings=True)'
    )


class Modules:
    """modules.json under way: what a text goes through, in order."""

    def __init__(self, folder: Path, entries: list[dict[str, Any]] | None = None) -> None:
        self.folder, self.entries = folder, entries or []

    @property
    def kinds(self) -> list[str]:
        """The classes of the modules."""
        return [str(entry["type"]).rpartition(".")[2] for entry in self.entries]

    def add(self, kind: str, *, in_root: bool = False) -> Path:
        """Add a module; returns the folder of its files."""
        place = len(self.entries)
        path = "" if in_root else f"{place}_{kind}"
        about = {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        self.entries.append(about)
        (self.folder / path).mkdir(exist_ok=True)
        return self.folder / path

    def write(self) -> None:
        """Write modules.json."""
        write_json(self.folder / "modules.json", self.entries)


def _write_transformer(encoder: Any, model: TrainedModel, folder: Path) -> Modules:
    """The transformer in the folder itself, and its pooling."""
    modules = Modules(folder)
    modules.add("Transformer", in_root=True)
    write_encoder(encoder, folder, matryoshka(model))
    write_tokenizer(model, folder)
    length = {"max_seq_length": model.recipe.text.length, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", length)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {}, "similarity_fn_name": "cosine"})
    chosen = {name: kind == encoder.pooling for kind, name in _POOLINGS.items()} | dict.fromkeys(_OTHERS, False)
    facts = {"word_embedding_dimension": encoder.dim, **chosen, "include_prompt": True}
    write_json(modules.add("Pooling") / "config.json", facts)
    return modules


def _write_sentence_encoder(encoder: SentenceEncoder, model: TrainedModel, folder: Path) -> Modules:
    """Its own modules, which read texts as the training did, and the norm that it wants before it is truncated."""
    encoder.save(folder)
    modules = Modules(folder, json.loads((folder / "modules.json").read_text(encoding="utf-8")))
    first = folder / modules.entries[0]["path"]
    _replace_tokenizer(model, first)
    add_to_json(first / "sentence_bert_config.json", {"max_seq_length": model.recipe.text.length})
    # Prompts are there for those who name them; by default there is none, as there was none in training.
    add_to_json(folder / "config_sentence_transformers.json", {"default_prompt_name": None})
    if encoder.truncation.layer_norm:
        place = modules.add("LayerNorm")
        write_json(place / "config.json", {"dimension": encoder.dim})
        norm = {"norm.weight": torch.ones(encoder.dim), "norm.bias": torch.zeros(encoder.dim)}
        write_weights(place / "model.safetensors", norm)
    return modules


def _replace_tokenizer(model: TrainedModel, folder: Path) -> None:
    """The tokenizer of the run for the one in ``folder``, whose other settings stay where it is the same."""
    settings = folder / "tokenizer_config.json"
    rules, known = _rules(folder), facts_in(settings)
    write_tokenizer(model, folder)
    if _rules(folder) == rules:
        write_json(settings, {**known, "model_max_length": model.recipe.text.length})


def _rules(folder: Path) -> dict[str, Any]:
    """How a tokenizer numbers a text; how long a text is and how it is padded, the caller says."""
    facts = facts_in(folder / "tokenizer.json")
    return {key: value for key, value in facts.items() if key not in ("truncation", "padding")}


def _write_dense(modules: Modules, weight: Tensor, bias: Tensor | None) -> None:
    place = modules.add("Dense")
    facts = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": bias is not None}
    write_json(place / "config.json", {**facts, "activation_function": "torch.nn.modules.linear.Identity"})
    layer = {"linear.weight": weight} if bias is None else {"linear.weight": weight, "linear.bias": bias}
    write_weights(place / "model.safetensors", layer)
