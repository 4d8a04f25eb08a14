"""Export to transformers: load with ``AutoModel.from_pretrained``, or ``AutoModelForMaskedLM`` for a masked model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matryo.encoders import Bert, Projected, TransformersEncoder
from matryo.encoders.bert.folder import CONFIG, WEIGHTS
from matryo.encoders.weights import write_weights
from matryo.export.parts import add_to_json, is_masked, matryoshka, of_images, read_settings, some_dim, write_tokenizer
from matryo.files import write_json
from matryo.inference.model import TrainedModel
from matryo.training.objectives.masked import MaskedModel

# Padding may be on either side: the first token is the first of those kept, the last has the largest running count.
_POOLED = {"mean": "(hidden * kept).sum(1) / kept.sum(1)", "cls": "hidden[range(len(hidden)), kept.argmax(1)[:, 0]]",
           "last": "hidden[range(len(hidden)), kept.cumsum(1).argmax(1)[:, 0]]"}  # fmt: skip
_POOLED_IMAGES = {"mean": ".mean(1)", "cls": "[:, 0]", "last": "[:, -1]"}


def fits(model: TrainedModel) -> bool:
    """Whether the encoder is a BERT or a transformers model, without a projection (transformers would ignore it)."""
    encoder = model.network.encoder
    if isinstance(encoder, Projected):
        return False
    if is_masked(model):   # transformers configures its head by these two settings of the BERT; ours are fixed
        usual = ("gelu", 1e-12)
        return isinstance(encoder, Bert) and (encoder.config.hidden_act, encoder.config.layer_norm_eps) == usual
    return isinstance(encoder, Bert | TransformersEncoder)


def write(model: TrainedModel, folder: Path) -> None:
    """Write the model, its config with the nesting, and its tokenizer or image preprocessor."""
    network = model.network
    if isinstance(network, MaskedModel):
        _write_masked(network, folder)
    else:
        network.encoder.save(folder)   # type: ignore[operator]
    add_to_json(folder / CONFIG, matryoshka(model))
    write_tokenizer(model, folder)
    if model.tokenizer is None:
        write_json(folder / "preprocessor_config.json", _preprocessor(model))


def task(model: TrainedModel) -> str:
    """The ``pipeline_tag`` of the model on a hub."""
    if is_masked(model):
        return "fill-mask"
    return "feature-extraction" if model.tokenizer is not None else "image-feature-extraction"


def usage(model: TrainedModel, name: str) -> str:
    """Example code that loads the folder ``name`` and computes truncated vectors."""
    pooling = str(getattr(model.network.encoder, "pooling", "mean"))
    cut = f"[:, :{some_dim(model)}], dim=-1)"
    if model.tokenizer is None:
        vectors = of_images(model, f"model(images).last_hidden_state{_POOLED_IMAGES[pooling]}")
        return "\n".join([
            "from PIL import Image",
            "from torch.nn import functional as F",
            "from transformers import AutoImageProcessor, AutoModel",
            "",
            f'processor = AutoImageProcessor.from_pretrained("{name}")',
            f'model = AutoModel.from_pretrained("{name}").eval()',
            'images = processor([Image.open("a.jpg")], return_tensors="pt")["pixel_values"]',
            f"vectors = F.normalize({vectors}{cut}",
        ])  # fmt: skip
    auto, hidden = "AutoModel", "model(**inputs).last_hidden_state"
    if is_masked(model):   # its vectors come after the transform, not from the last layer
        auto, hidden = "AutoModelForMaskedLM", "model.cls.predictions.transform(model.bert(**inputs).last_hidden_state)"
    return "\n".join([
        "from torch.nn import functional as F",
        f"from transformers import {auto}, AutoTokenizer{', pipeline' * is_masked(model)}",
        "",
        *([f'fill = pipeline("fill-mask", "{name}")', ""] if is_masked(model) else []),
        f'tokenizer, model = AutoTokenizer.from_pretrained("{name}"), {auto}.from_pretrained("{name}").eval()',
        'inputs = tokenizer(["a text", "another one"], padding=True, truncation=True, return_tensors="pt")',
        f'hidden, kept = {hidden}, inputs["attention_mask"][..., None]',
        f"vectors = F.normalize(({_POOLED[pooling]}){cut}",
    ])  # fmt: skip


def _preprocessor(model: TrainedModel) -> dict[str, Any]:
    """The image preprocessing in transformers' format: resize, centre crop, mean/std normalisation."""
    data = model.recipe.data
    size = data.encoded_size
    return {
        "image_processor_type": "BitImageProcessor",   # unlike ViTImageProcessor, it crops
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": round(size / data.test_crop)},
        "resample": 2,   # bilinear
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(data.mean),
        "image_std": list(data.std),
    }


def _write_masked(network: MaskedModel, folder: Path) -> None:
    """Write a BertForMaskedLM, whose decoder is tied to the token embeddings."""
    bert = network.encoder
    assert isinstance(bert, Bert)   # checked by fits()
    weights = {f"bert.{name}": value for name, value in bert.state_dict().items()}
    for name, value in network.transform.state_dict().items():
        weights[f"cls.predictions.transform.{name}"] = value
    weights["cls.predictions.bias"] = network.bias
    bert.save_shape(folder)
    config = {key: value for key, value in read_settings(folder / CONFIG).items() if key != "pooling"}
    write_json(folder / CONFIG, {**config, "architectures": ["BertForMaskedLM"], "tie_word_embeddings": True})
    write_weights(folder / WEIGHTS, weights)
