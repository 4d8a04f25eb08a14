"""Export an open_clip model to open_clip: load with ``open_clip.create_model("local-dir:FOLDER")``."""

from __future__ import annotations

from pathlib import Path

from matryo.encoders import OpenClip
from matryo.export.parts import add_to_json, matryoshka, of_images, some_dim, write_tokenizer
from matryo.inference.model import TrainedModel


def fits(model: TrainedModel) -> bool:
    """Whether the encoder is an open_clip model."""
    return isinstance(model.network.encoder, OpenClip)


def write(model: TrainedModel, folder: Path) -> None:
    """Write open_clip_config.json, open_clip_model.safetensors and the tokenizer."""
    encoder = model.network.encoder
    assert isinstance(encoder, OpenClip)   # checked by fits()
    encoder.save(folder)
    data, config = model.recipe.data, folder / "open_clip_config.json"
    read = {"mean": list(data.mean), "std": list(data.std), "interpolation": "bilinear", "resize_mode": "shortest"}
    add_to_json(config, {"preprocess_cfg": {**encoder.settings["preprocess_cfg"], **read}})
    add_to_json(folder / "config.json", matryoshka(model))
    write_tokenizer(model, folder)   # open_clip looks for it here, unless the model uses CLIP's tokenizer


def task(model: TrainedModel) -> str:   # noqa: ARG001
    """The ``pipeline_tag`` of the model on a hub."""
    return "zero-shot-image-classification"


def usage(model: TrainedModel, name: str) -> str:
    """Example code that loads the folder ``name`` and computes truncated vectors."""
    dim = some_dim(model)
    return (
        "import open_clip\nfrom torch.nn import functional as F\n\n"
        f'model = open_clip.create_model("local-dir:{name}").eval()\n'
        f"vectors = F.normalize({of_images(model, 'model.encode_image(images)')}[:, :{dim}], dim=-1)\n"
        f"texts = F.normalize(model.encode_text(ids)[:, :{dim}], dim=-1)"
    )
