"""The formats: which models each can hold, how it is written, and what is said of it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol

from matryo.errors import InputError
from matryo.export import to_onnx, to_open_clip, to_sentence_transformers, to_timm, to_transformers

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.inference.model import TrainedModel

__all__ = ["FORMATS", "Format", "find_format", "format_names"]


class Format(Protocol):
    """One library's folder, as a module of this room."""

    def fits(self, model: TrainedModel) -> bool:
        """Whether it can hold the model."""

    def write(self, model: TrainedModel, folder: Path) -> None:
        """Write the model into a folder, but for its card."""

    def task(self, model: TrainedModel) -> str:
        """What hubs call the model there."""

    def usage(self, model: TrainedModel, name: str) -> str:
        """Python that loads the folder of that name and truncates a vector."""


FORMATS: dict[str, Format] = {
    "sentence-transformers": to_sentence_transformers,
    "transformers": to_transformers,
    "timm": to_timm,
    "open_clip": to_open_clip,
    "onnx": to_onnx,
}


def format_names() -> tuple[str, ...]:
    """What a model can be exported to."""
    return tuple(FORMATS)


def find_format(name: str, model: TrainedModel) -> Format:
    """The format called ``name``, which must be able to hold ``model``."""
    if name not in FORMATS:
        near = get_close_matches(name.replace("_", "-"), FORMATS, n=1)
        cure = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(FORMATS)}"
        raise InputError("unknown format", got=repr(name), cure=cure)
    if not FORMATS[name].fits(model):
        others = [other for other, one in FORMATS.items() if one.fits(model)]
        raise InputError(
            f"{name} has no place for this model",
            got=model.description["name"] + ", an encoder " + model.description["encoder"],
            cure=f"export it to {' or '.join(others)}",
        )
    return FORMATS[name]
