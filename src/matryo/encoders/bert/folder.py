"""Folders of BERT weights, as transformers and sentence-transformers write them, read without either."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

__all__ = ["CONFIG", "WEIGHTS", "BertFolder"]

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_POOLINGS = {
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
    "pooling_mode_cls_token": "cls",   # as sentence-transformers spelt them before 6
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}


@dataclass(frozen=True)
class BertFolder:
    """What a folder says of the BERT in it."""

    config: Mapping[str, Any]
    pooling: str
    """Empty where the folder states none."""
    weights: Path

    @classmethod
    def open(cls, folder: Path) -> BertFolder:
        """Read the settings; the weights wait."""
        inside, pooling = _sentence_modules(folder)
        config = _json(inside / CONFIG)
        if config.get("model_type") != "bert" or config.get("position_embedding_type", "absolute") != "absolute":
            got = ", ".join(str(config[key]) for key in ("model_type", "position_embedding_type") if key in config)
            raise InputError(
                "only a BERT with absolute positions can be opened so",
                got=got or f"{inside / CONFIG} without model_type",
                cure=f"use transformers:{folder}",
            )
        return cls(config, pooling or config.get("pooling", ""), inside / WEIGHTS)

    def read(self, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights called as in ``wanted``, as float32; the file may hold more (a pooler, a head)."""
        try:
            stored = load_file(self.weights)
        except (OSError, SafetensorError) as error:
            rule, cure = "a BERT's weights must be in model.safetensors", "save the model with transformers 5"
            raise InputError(rule, got=f"{self.weights}: {error}", cure=cure) from error
        found = {_name(name): value for name, value in stored.items()}
        missing = [name for name in wanted if name not in found]
        wrong = [name for name in wanted if name in found and found[name].shape != wanted[name].shape]
        if missing or wrong:
            raise InputError(
                "model.safetensors must hold every weight that config.json describes",
                got=f"{len(missing)} missing and {len(wrong)} of another shape, the first is {[*missing, *wrong][0]}",
                cure="download the folder again",
            )
        return {name: found[name].float() for name in wanted}


def _name(stored: str) -> str:
    """A weight's name, without the prefix of a model with a head and in today's spelling."""
    name = stored.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _sentence_modules(folder: Path) -> tuple[Path, str]:
    """Where the transformer of a sentence-transformers folder lies, and its pooling; others are their own."""
    if not (folder / "modules.json").is_file():
        return folder, ""
    inside, pooling = folder, ""
    for module in _json(folder / "modules.json"):
        kind = str(module["type"]).rpartition(".")[2]
        if kind == "Transformer":
            inside = folder / module["path"]
        elif kind == "Pooling":
            pooling = _pooling(folder, _json(folder / module["path"] / CONFIG))
        elif kind != "Normalize":   # which every truncation does again
            raise _not_plain(folder, kind)
    return inside, pooling


def _pooling(folder: Path, values: Mapping[str, Any]) -> str:
    stated = values.get("pooling_mode")
    names = [stated] if isinstance(stated, str) else stated
    if names is None:
        names = [name for name, value in values.items() if name.startswith("pooling_mode_") and value]
    if len(names) != 1 or names[0] not in _POOLINGS or values.get("include_prompt") is False:
        raise _not_plain(folder, f"pooling by {', '.join(names)}")
    return _POOLINGS[names[0]]


def _not_plain(folder: Path, got: str) -> InputError:
    rule = "a BERT is read with one pooling behind it and nothing else"
    return InputError(rule, got=got, cure=f"use sentence-transformers:{folder}")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError("cannot read a model's settings", got=f"{path}: {error}", cure="check the folder") from error
