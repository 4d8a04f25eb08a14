"""To open_clip, for what came from there: ``open_clip.create_model("local-dir:folder")`` is the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.encoders import OpenClip
from matryo.export.parts import add_to_json, matryoshka, of_images, some_dim, write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.inference.model import TrainedModel

__all__ = ["fits", "task", "usage", "write"]


def fits(model: TrainedModel) -> bool:
    """Models that came from open_clip."""
    return isinstance(model.network.encoder, OpenClip)


def write(model: TrainedModel, folder: Path) -> None:
    """Write open_clip_config.json, open_clip_model.safetensors and the tokenizer."""
    encoder = model.network.encoder
    assert isinstance(encoder, OpenClip)   # as `fits` has seen
    encoder.save(folder)
    data, config = model.recipe.data, folder / "open_clip_config.json"
    seen = {"mean": list(data.mean), "std": list(data.std), "interpolation": "bilinear", "resize_mode": "shortest"}
    add_to_json(config, {"preprocess_cfg": {**encoder.settings["preprocess_cfg"], **seen}})
    add_to_json(folder / "config.json", matryoshka(model))
    write_tokenizer(model, folder)   # where open_clip looks for it, unless it is CLIP's own


def task(model: TrainedModel) -> str:   # noqa: ARG001
    """What the hub calls it."""
    return "zero-shot-image-classification"


def usage(model: TrainedModel, name: str) -> str:
    """Python that loads and truncates."""
    dim = some_dim(model)
    return (
        "import open_clip\nfrom torch.nn import functional as F\n\n"
        f'model = open_clip.create_model("local-dir:{name}").eval()\n'
        f"vectors = F.normalize({of_images(model, 'model.encode_image(images)')}[:, :{dim}], dim=-1)\n"
        f"texts = F.normalize(model.encode_text(ids)[:, :{dim}], dim=-1)"
    )
