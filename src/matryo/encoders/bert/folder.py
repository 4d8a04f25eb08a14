"""Read BERT folders of transformers and sentence-transformers without these libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from matryo.errors import InputError
from matryo.files import is_below, parse_json

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_POOLINGS = {
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
    "pooling_mode_cls_token": "cls",   # names used before sentence-transformers 6
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}


@dataclass(frozen=True)
class BertFolder:
    """The settings of a BERT in a folder, and the file of its weights."""

    config: Mapping[str, Any]
    pooling: str
    """Empty if the folder states none."""
    weights: Path

    @classmethod
    def open(cls, folder: Path) -> BertFolder:
        """Read the settings, but not the weights."""
        inside, pooling = _sentence_modules(folder)
        config = _json(inside / CONFIG)
        if config.get("model_type") != "bert" or config.get("position_embedding_type", "absolute") != "absolute":
            got = ", ".join(str(config[key]) for key in ("model_type", "position_embedding_type") if key in config)
            got = got or f"{inside / CONFIG} without model_type"
            cure = f"use transformers:{folder}"
            raise InputError("bert:FOLDER must hold a BERT with absolute positions", got=got, cure=cure)
        return cls(config, pooling or config.get("pooling", ""), inside / WEIGHTS)

    def read(self, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Load the weights named in ``wanted`` as float32; others (a pooler, a head) are skipped."""
        try:
            stored = load_file(self.weights)
        except (OSError, SafetensorError) as error:
            rule, cure = "the weights must be in model.safetensors", "save the model with transformers 5"
            raise InputError(rule, got=f"{self.weights}: {error}", cure=cure) from error
        weights = {_name(name): value for name, value in stored.items()}
        missing = [name for name in wanted if name not in weights]
        wrong = [name for name in wanted if name in weights and weights[name].shape != wanted[name].shape]
        if missing or wrong:
            got = f"{len(missing)} missing and {len(wrong)} of another shape, the first is {[*missing, *wrong][0]}"
            rule = "model.safetensors must hold every weight that config.json describes"
            raise InputError(rule, got=got, cure="download the folder again")
        return {name: weights[name].float() for name in wanted}


def _name(stored: str) -> str:
    """Normalise a weight's name: drop the prefix of models with a head, and update old spellings."""
    name = stored.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _sentence_modules(folder: Path) -> tuple[Path, str]:
    """The subfolder of the transformer and its pooling; the folder itself and "" for plain transformers folders."""
    if not (folder / "modules.json").is_file():
        return folder, ""
    inside, pooling = folder, ""
    for module in _json(folder / "modules.json"):
        if not is_below(str(module["path"])):
            got = f"{folder / 'modules.json'} with the path {module['path']}"
            raise InputError("the modules of a model must lie in its folder", got=got, cure="download the folder again")
        kind = str(module["type"]).rpartition(".")[2]
        if kind == "Transformer":
            inside = folder / module["path"]
        elif kind == "Pooling":
            pooling = _pooling(folder, _json(folder / module["path"] / CONFIG))
        elif kind != "Normalize":   # truncation normalises anyway
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
    rule = "bert:FOLDER supports one pooling and no other modules after the BERT"
    return InputError(rule, got=got, cure=f"use sentence-transformers:{folder}")


def _json(path: Path) -> Any:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError("cannot read the model's settings", got=f"{path}: {error}", cure="check the folder") from error
