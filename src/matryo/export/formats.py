"""The registry of export formats: one module per library."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from matryo.errors import InputError
from matryo.export import to_onnx, to_open_clip, to_sentence_transformers, to_timm, to_transformers
from matryo.inference.model import TrainedModel


class Format(Protocol):
    """The functions of a format module ``to_*.py``."""

    def fits(self, model: TrainedModel) -> bool:
        """Whether the format can represent the model."""

    def write(self, model: TrainedModel, folder: Path) -> None:
        """Write all files but the card to ``folder``."""

    def task(self, model: TrainedModel) -> str:
        """The ``pipeline_tag`` of the model on a hub."""

    def usage(self, model: TrainedModel, name: str) -> str:
        """Example code that loads the folder ``name`` and computes truncated vectors."""


FORMATS: dict[str, Format] = {
    "sentence-transformers": to_sentence_transformers,
    "transformers": to_transformers,
    "timm": to_timm,
    "open_clip": to_open_clip,
    "onnx": to_onnx,
}


def find_format(name: str, model: TrainedModel) -> Format:
    """Return the format ``name``; raise if it is unknown or cannot represent ``model``."""
    if name not in FORMATS:
        near = get_close_matches(name.replace("_", "-"), FORMATS, n=1)
        cure = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(FORMATS)}"
        raise InputError("unknown format", got=repr(name), cure=cure)
    if not FORMATS[name].fits(model):
        fitting = [other for other, module in FORMATS.items() if module.fits(model)]
        got = f"{model.description['name']} with encoder {model.description['encoder']}"
        raise InputError(f"{name} cannot represent this model", got=got, cure=f"export it to {' or '.join(fitting)}")
    return FORMATS[name]
