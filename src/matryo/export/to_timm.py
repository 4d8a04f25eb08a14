"""Export to timm: load with ``timm.create_model("local-dir:FOLDER", pretrained=True)``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matryo.encoders import ResNet, TimmEncoder, ViT
from matryo.encoders.layers import PUBLISHED
from matryo.encoders.resnet import SHAPES
from matryo.encoders.weights import write_weights
from matryo.export.parts import add_to_json, matryoshka, of_images, read_settings, some_dim
from matryo.files import write_json
from matryo.inference.model import TrainedModel


def fits(model: TrainedModel) -> bool:
    """Whether the encoder is a ViT, a published ResNet or a timm model, without a projection."""
    encoder, options = model.network.encoder, model.recipe.encoder
    if isinstance(encoder, ResNet):
        published = (options.stem, options.blurpool, options.norm) == ("imagenet", PUBLISHED.blurpool, PUBLISHED.norm)
        return published and options.name in SHAPES and model.width == 1
    return isinstance(encoder, ViT | TimmEncoder)


def write(model: TrainedModel, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    encoder, data = model.network.encoder, model.recipe.data
    size = data.encoded_size
    preprocess = {
        "input_size": [3, size, size],
        "mean": list(data.mean),
        "std": list(data.std),
        "crop_pct": data.test_crop,
        "crop_mode": "center",   # how matryo reads images, whatever was published
        "interpolation": "bilinear",
    }
    if isinstance(encoder, TimmEncoder):
        encoder.save(folder)
        config = folder / "config.json"
        published = read_settings(config)["pretrained_cfg"]
        kept = {key: value for key, value in published.items() if not key.startswith("test_")}
        add_to_json(config, {**matryoshka(model), "pretrained_cfg": {**kept, **preprocess}})
        return
    architecture = _vit(encoder) if isinstance(encoder, ViT) else {"architecture": model.recipe.encoder.name}
    sizes = {"num_classes": 0, "num_features": encoder.dim, "pretrained_cfg": {**preprocess, "num_classes": 0}}
    write_json(folder / "config.json", {**architecture, **sizes, **matryoshka(model)})
    write_weights(folder / "model.safetensors", encoder.state_dict())


def task(model: TrainedModel) -> str:   # noqa: ARG001
    """The ``pipeline_tag`` of the model on a hub."""
    return "image-feature-extraction"


def usage(model: TrainedModel, name: str) -> str:
    """Example code that loads the folder ``name`` and computes truncated vectors."""
    return (
        "import timm\nfrom torch.nn import functional as F\n\n"
        f'model = timm.create_model("local-dir:{name}", pretrained=True).eval()\n'
        f"vectors = F.normalize({of_images(model, 'model(images)')}[:, :{some_dim(model)}], dim=-1)"
    )


def _vit(encoder: ViT) -> dict[str, Any]:
    """Describe a ViT of any shape as arguments to a named timm architecture."""
    shape = {
        "img_size": encoder.grid * encoder.patch,
        "patch_size": encoder.patch,
        "embed_dim": encoder.dim,
        "depth": len(encoder.blocks),
        "num_heads": encoder.heads,
        "dynamic_img_size": True,
    }
    mean = {"class_token": False, "global_pool": "avg", "fc_norm": False}
    args = shape if encoder.pooling == "cls" else {**shape, **mean}
    pooling = "token" if encoder.pooling == "cls" else "avg"
    return {"architecture": "vit_base_patch16_224", "global_pool": pooling, "model_args": args}
