"""To transformers: ``AutoModel.from_pretrained(folder)``, or ``AutoModelForMaskedLM`` for a masked model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matryo.encoders import Bert, Projected, TransformersEncoder
from matryo.encoders.bert_folder import CONFIG, WEIGHTS
from matryo.encoders.weights import write_weights
from matryo.export.parts import add_to_json, is_masked, matryoshka, some_dim, write_tokenizer
from matryo.training.masked import MaskedModel

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.training.trained import TrainedModel

__all__ = ["fits", "task", "usage", "write", "write_encoder"]


def fits(model: TrainedModel) -> bool:
    """A BERT or a model of transformers, without a projection, which transformers would not apply."""
    encoder = model.network.encoder
    if isinstance(encoder, Projected):
        return False
    if is_masked(model):   # transformers' head takes these two from the BERT below it; ours has BERT's own
        usual = ("gelu", 1e-12)
        return isinstance(encoder, Bert) and (encoder.config.hidden_act, encoder.config.layer_norm_eps) == usual
    return isinstance(encoder, Bert | TransformersEncoder)


def write(model: TrainedModel, folder: Path) -> None:
    """Write the model, its config with the nesting, and its tokenizer."""
    network = model.network
    if isinstance(network, MaskedModel):
        _write_masked(network, folder)
        add_to_json(folder / CONFIG, matryoshka(model))
    else:
        write_encoder(network.encoder, folder, matryoshka(model))
    write_tokenizer(model, folder)


def write_encoder(encoder: Any, folder: Path, facts: dict[str, Any]) -> None:
    """Write config.json, with ``facts`` added, and model.safetensors."""
    encoder.save(folder)
    add_to_json(folder / CONFIG, facts)


def task(model: TrainedModel) -> str:
    """What the hub calls it."""
    if is_masked(model):
        return "fill-mask"
    return "feature-extraction" if model.tokenizer is not None else "image-feature-extraction"


def usage(model: TrainedModel, name: str) -> str:
    """Python that loads and truncates."""
    if is_masked(model):
        return f'from transformers import pipeline\n\nfill = pipeline("fill-mask", "{name}")'
    pooling = getattr(model.network.encoder, "pooling", "mean")
    at = {"mean": "mean of the tokens that are no padding", "cls": "first token", "last": "last token"}[pooling]
    return (
        "from torch.nn import functional as F\nfrom transformers import AutoModel\n\n"
        f'model = AutoModel.from_pretrained("{name}")\n'
        f"# A vector is the {at} of model(…).last_hidden_state. Truncate it, then normalise:\n"
        f"# F.normalize(vectors[:, :{some_dim(model)}], dim=-1)"
    )


def _write_masked(network: MaskedModel, folder: Path) -> None:
    """A BertForMaskedLM: its decoder is the embedding of words, as here."""
    bert = network.encoder
    assert isinstance(bert, Bert)   # as `fits` has seen
    weights = {f"bert.{name}": value for name, value in bert.state_dict().items()}
    for name, value in network.transform.state_dict().items():
        weights[f"cls.predictions.transform.{name}"] = value
    weights["cls.predictions.bias"] = network.bias
    bert.save_shape(folder)
    add_to_json(folder / CONFIG, {"architectures": ["BertForMaskedLM"], "tie_word_embeddings": True})
    write_weights(folder / WEIGHTS, weights)
