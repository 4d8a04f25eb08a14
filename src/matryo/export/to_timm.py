"""To timm: ``timm.create_model("local-dir:folder", pretrained=True)`` is the encoder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from matryo.encoders import ResNet, TimmEncoder, ViT
from matryo.encoders.layers import PUBLISHED
from matryo.encoders.resnet import SHAPES
from matryo.encoders.weights import write_weights
from matryo.export.parts import add_to_json, matryoshka, of_images, some_dim
from matryo.files import write_json

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.inference.model import TrainedModel

__all__ = ["fits", "task", "usage", "write"]


def fits(model: TrainedModel) -> bool:
    """Vision transformers, ResNets as published, and what came from timm; without a projection."""
    encoder, options = model.network.encoder, model.recipe.encoder
    if isinstance(encoder, ResNet):
        published = (options.stem, options.blurpool, options.norm) == ("imagenet", PUBLISHED.blurpool, PUBLISHED.norm)
        return published and options.name in SHAPES and model.width == 1
    return isinstance(encoder, ViT | TimmEncoder)


def write(model: TrainedModel, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    encoder, data = model.network.encoder, model.recipe.data
    size = data.encoded_size
    seen = {
        "input_size": [3, size, size],
        "mean": list(data.mean),
        "std": list(data.std),
        "crop_pct": data.test_crop,
        "crop_mode": "center",   # as images are read here, whatever was published
        "interpolation": "bilinear",
    }
    if isinstance(encoder, TimmEncoder):
        encoder.save(folder)
        config = folder / "config.json"
        published = json.loads(config.read_text(encoding="utf-8"))["pretrained_cfg"]   # how images were read before
        kept = {key: value for key, value in published.items() if not key.startswith("test_")}
        add_to_json(config, {**matryoshka(model), "pretrained_cfg": {**kept, **seen}})
        return
    about = _vit(encoder) if isinstance(encoder, ViT) else {"architecture": model.recipe.encoder.name}
    facts = {"num_classes": 0, "num_features": encoder.dim, "pretrained_cfg": {**seen, "num_classes": 0}}
    write_json(folder / "config.json", {**about, **facts, **matryoshka(model)})
    write_weights(folder / "model.safetensors", encoder.state_dict())


def task(model: TrainedModel) -> str:   # noqa: ARG001
    """What the hub calls it."""
    return "image-feature-extraction"


def usage(model: TrainedModel, name: str) -> str:
    """Python that loads and truncates."""
    return (
        "import timm\nfrom torch.nn import functional as F\n\n"
        f'model = timm.create_model("local-dir:{name}", pretrained=True).eval()\n'
        f"vectors = F.normalize({of_images(model, 'model(images)')}[:, :{some_dim(model)}], dim=-1)"
    )


def _vit(encoder: ViT) -> dict[str, Any]:
    """Any shape of it, as changes to one that timm knows by name."""
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
