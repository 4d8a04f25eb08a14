"""One graph for every batch and length: onnxruntime gives what torch gives."""

import json
import re
import sys

import numpy as np
import pytest
import torch
from export_models import TEXTS, dual_model, image_model, text_model
from torch import nn

from matryo.encoders import Bert, ViT
from matryo.errors import InputError, MissingExtra
from matryo.export import export

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")


def run(path, **inputs):
    (vectors,) = onnxruntime.InferenceSession(str(path)).run(None, inputs)
    return vectors


def unit(vectors, dim):
    return vectors[:, :dim] / np.linalg.norm(vectors[:, :dim], axis=1, keepdims=True)


def assert_texts(model, path):
    for texts in (TEXTS[:1], TEXTS):   # of other numbers and lengths than the graph was traced with
        ids, mask = model.tokenizer.encode(texts, 24)
        got = run(path, input_ids=ids.astype(np.int64), attention_mask=mask.astype(np.int64))
        np.testing.assert_allclose(got, model.encode(texts, normalize=False), atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(unit(got, 8), model.encode(texts, dim=8), atol=1e-5)


def run_card(folder, monkeypatch):
    """What the Python of a card leaves behind, where its folder lies in the working directory."""
    monkeypatch.chdir(folder.parent)
    found = {}
    exec(re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1], found)
    return found


def shallow(model):
    """With one layer of each transformer: exporting takes seconds a layer."""
    for module in model.network.modules():
        if isinstance(module, ViT):
            module.blocks = module.blocks[:1]
        elif isinstance(module, Bert):
            module.encoder.layer = module.encoder.layer[:1]
    return model


def test_texts_even_behind_the_transform_of_a_masked_model(tmp_path, monkeypatch):
    model = shallow(text_model(kind="masked", dims=(8, 100)))
    folder = export(model, "onnx", tmp_path / "out")
    assert_texts(model, folder / "model.onnx")
    told = run_card(folder, monkeypatch)
    np.testing.assert_allclose(told["texts"], model.encode(["a text", "another one"], dim=100), atol=1e-5)
    assert "images" not in told
    about = json.loads((folder / "config.json").read_text())
    nesting = {"is_matryoshka": True, "matryoshka_dimensions": [8, 100]}
    assert about == {"output": "vectors", **nesting, "text": {"length": 24}}
    assert {path.name for path in folder.iterdir()} == {
        "README.md", "config.json", "matryo.json", "model.onnx", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip


def test_images_even_averaged_with_their_mirror_images(tmp_path):
    model = shallow(image_model("vit-ti16", dims=(8, 192), flip=True))
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    folder = export(model, "onnx", tmp_path / "out")
    for batch in (1, 5):
        images = torch.randn(batch, 3, 32, 32)
        with torch.no_grad():
            wanted = model.network.embed(images, flip=True)
        got = run(folder / "model.onnx", pixel_values=images.numpy())
        np.testing.assert_allclose(got, wanted.numpy(), atol=1e-4, rtol=1e-4)
    about = json.loads((folder / "config.json").read_text())
    wanted = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    assert about["image"] == {"size": 32, "crop": 1.0, "interpolation": "bilinear", **wanted}
    assert all(torch.equal(before[name], value) for name, value in model.network.state_dict().items())


def test_images_and_texts_are_two_graphs(tmp_path, monkeypatch):
    model = shallow(dual_model())
    folder = export(model, "onnx", tmp_path / "out")
    assert_texts(model, folder / "texts.onnx")
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    data = model.recipe.data
    pixels = ((images / 255 - data.mean) / data.std).astype(np.float32).transpose(0, 3, 1, 2)
    got = run(folder / "images.onnx", pixel_values=pixels)
    np.testing.assert_allclose(unit(got, 8), model.encode(images, dim=8), atol=1e-4)
    told, dim = run_card(folder, monkeypatch), model.nesting.dims[len(model.nesting) // 2]
    np.testing.assert_allclose(told["texts"], model.encode(["a text", "another one"], dim=dim), atol=1e-4)
    np.testing.assert_allclose(told["images"], model.encode(np.zeros((2, 32, 32, 3), np.uint8), dim=dim), atol=1e-4)


class Stubborn(nn.Module):
    """An encoder that knows how many images there are."""

    dim = 64

    def forward(self, x):
        return torch.zeros(len(x), 64) + x.flatten(1)[:, :64]


def test_a_graph_of_one_batch_size_is_refused(tmp_path):
    model = image_model()
    model.network.encoder = Stubborn()
    with pytest.raises(InputError, match=r"traced with a dynamic batch and length .*: use a built-in encoder"):
        export(model, "onnx", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_without_onnxscript_its_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)   # what a missing package looks like to import
    with pytest.raises(MissingExtra, match=r"this needs onnxscript: pip install 'matryo\[onnx\]'"):
        export(image_model(), "onnx", tmp_path / "out")


def test_an_onnxscript_that_cannot_be_imported_says_why(tmp_path, monkeypatch):
    (tmp_path / "onnxscript.py").write_text("import no_such_module")
    monkeypatch.delitem(sys.modules, "onnxscript")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        export(image_model(), "onnx", tmp_path / "out")
