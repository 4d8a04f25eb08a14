"""Export to ONNX: one graph with dynamic batch and length that outputs full vectors, to be truncated at any dim."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from matryo.encoders import Tokens
from matryo.errors import InputError, MissingExtra
from matryo.export.parts import matryoshka, some_dim, write_tokenizer
from matryo.files import write_json
from matryo.inference.model import TrainedModel
from matryo.training.objectives.base import NestedModel


class Images(nn.Module):
    """The module traced for images."""

    def __init__(self, network: NestedModel, *, flip: bool) -> None:
        super().__init__()
        self.network, self.flip = network, flip

    def forward(self, pixel_values: Tensor) -> Tensor:
        """[batch, 3, height, width] → [batch, d]."""
        return self.network.embed(pixel_values, flip=self.flip)


class Texts(nn.Module):
    """The module traced for texts."""

    def __init__(self, network: NestedModel) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Token ids and mask, both int64 [batch, length] → [batch, d]."""
        return self.network.embed(Tokens(input_ids, attention_mask.bool()))


def fits(model: TrainedModel) -> bool:   # noqa: ARG001
    """Always true: every model can be traced."""
    return True


def write(model: TrainedModel, folder: Path) -> None:
    """Write model.onnx (images.onnx and texts.onnx for a dual encoder), the tokenizer, and config.json."""
    data = model.recipe.data
    size = data.encoded_size
    network = copy.deepcopy(model.network).to("cpu", torch.float32).eval()
    images, texts = model.reads_images, model.tokenizer is not None
    config: dict[str, Any] = {"output": "vectors", **matryoshka(model)}
    example: tuple[Tensor, ...]
    if images:
        example = (torch.zeros(2, 3, size, size),)
        graph = Images(network, flip=data.test_flip)
        _write_graph(graph, example, folder / _file(model, "images"), model)
        config["image"] = {
            "size": size,
            "crop": data.test_crop,
            "interpolation": "bilinear",   # how matryo resizes images
            "mean": list(data.mean),
            "std": list(data.std),
        }
    if texts:
        example = (torch.ones(2, 4, dtype=torch.int64), torch.ones(2, 4, dtype=torch.int64))
        _write_graph(Texts(network), example, folder / _file(model, "texts"), model)
        write_tokenizer(model, folder)
        config["text"] = {"length": model.recipe.text.length}
    write_json(folder / "config.json", config)


def task(model: TrainedModel) -> str:
    """The ``pipeline_tag`` of the model on a hub."""
    return "image-feature-extraction" if model.tokenizer is None else "feature-extraction"


def usage(model: TrainedModel, name: str) -> str:
    """Example code that loads the folder ``name`` and computes truncated vectors."""
    texts, images = model.tokenizer is not None, model.reads_images
    lines = ["import numpy as np", "import onnxruntime", *(["from tokenizers import Tokenizer"] if texts else []), ""]
    lines += [
        "",
        "def encode(file, inputs):",
        f'    (vectors,) = onnxruntime.InferenceSession("{name}/" + file).run(None, inputs)',
        f"    vectors = vectors[:, :{some_dim(model)}]",
        "    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)",
        "",
    ]
    if texts:
        lines += [
            "",
            f'tokenizer = Tokenizer.from_file("{name}/tokenizer.json")',
            f"tokenizer.enable_truncation({model.recipe.text.length})",
            "tokenizer.enable_padding()",
            'rows = tokenizer.encode_batch(["a text", "another one"])',
            "ids, mask = np.array([row.ids for row in rows]), np.array([row.attention_mask for row in rows])",
            f'texts = encode("{_file(model, "texts")}", {{"input_ids": ids, "attention_mask": mask}})',
        ]
    if images:
        data = model.recipe.data
        size = data.encoded_size
        lines += [
            "",
            "# RGB values in 0…1, normalised by mean and std; here two black images.",
            f"pixels = np.zeros((2, 3, {size}, {size}), np.float32)",
            f"pixels -= np.reshape({list(data.mean)}, (3, 1, 1))",
            f"pixels /= np.reshape({list(data.std)}, (3, 1, 1))",
            f'images = encode("{_file(model, "images")}", {{"pixel_values": pixels}})',
        ]
    return "\n".join(lines)


def _file(model: TrainedModel, side: str) -> str:
    """The file of a graph; a dual encoder has one per side."""
    return f"{side}.onnx" if model.tokenizer is not None and model.reads_images else "model.onnx"


def _write_graph(graph: nn.Module, example: tuple[Tensor, ...], path: Path, model: TrainedModel) -> None:
    """Trace ``graph`` on an example, with dynamic batch and length."""
    with MissingExtra.unless_installed("onnxscript", "onnx"):
        import onnxscript  # noqa: F401
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=max(model.recipe.text.length, 5))
    texts = isinstance(graph, Texts)
    names = ("input_ids", "attention_mask") if texts else ("pixel_values",)
    shape = {0: batch, 1: length} if texts else {0: batch}
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            graph,
            example,
            input_names=names,
            output_names=["vectors"],
            dynamic_shapes=dict.fromkeys(names, shape),
            dynamo=True,
            verbose=False,
        )
    assert program is not None   # None only with dynamo=False
    for value in program.model.graph.inputs:   # the exporter fixes axes silently if it cannot keep them dynamic
        if value.shape is None or any(isinstance(value.shape[axis], int) for axis in shape):
            rule, cure = "the encoder cannot be traced with a dynamic batch and length", "use a built-in encoder"
            raise InputError(rule, got=f"{value.name} of shape {value.shape}", cure=cure)
    program.save(str(path), external_data=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings about its own internals."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
