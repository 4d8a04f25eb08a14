"""A folder that transformers loads has our hidden states, and a masked model's predictions at every dim."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from export_models import TEXTS, alive, image_model, run_card, text_model
from PIL import Image

from matryo.encoders import Tokens, TransformersEncoder
from matryo.errors import InputError
from matryo.export import export
from matryo.inference.items import GivenImages
from matryo.training.batches.images import centred_images

transformers = pytest.importorskip("transformers")


def tokens_of(model):
    ids, mask = model.tokenizer.encode(TEXTS, 24)
    return Tokens(torch.from_numpy(ids).long(), torch.from_numpy(mask))


def test_a_bert_is_a_bert(tmp_path):
    model = text_model()
    folder = export(model, "transformers", tmp_path / "out")
    theirs, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs) is transformers.BertModel
    assert theirs.config.matryoshka_dimensions == [8, 32, 128]
    tokens = tokens_of(model)
    with torch.no_grad():
        got = theirs.eval()(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state
        torch.testing.assert_close(got[tokens.mask], model.network.encoder.hidden(tokens)[tokens.mask],
                                   atol=1e-5, rtol=1e-5)  # fmt: skip
    names = transformers.AutoTokenizer.from_pretrained(folder)
    assert names(TEXTS[0])["input_ids"] == tokens.ids[0][tokens.mask[0]].tolist()


def test_a_masked_model_predicts_the_same_words(tmp_path):
    model = text_model(kind="masked")
    folder = export(model, "transformers", tmp_path / "out")
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs) is transformers.BertForMaskedLM
    tokens, network = tokens_of(model), model.network
    with torch.no_grad():
        got = theirs.eval()(input_ids=tokens.ids, attention_mask=tokens.mask.long()).logits
        z = network.transform(network.encoder.hidden(tokens))
        torch.testing.assert_close(got[tokens.mask], (z @ network.words.T + network.bias)[tokens.mask],
                                   atol=1e-4, rtol=1e-4)  # fmt: skip
    assert theirs.config.is_matryoshka


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("kind", ["pairs", "masked"])
def test_the_card_gives_the_vectors_of_the_model(kind, pooling, tmp_path):
    """A masked model's are behind its transform, of which the pooling in a config.json would say nothing."""
    model = text_model(kind=kind, pooling=pooling)
    folder = export(model, "transformers", tmp_path / "out")
    wanted = model.encode(["a text", "another one"], dim=32)
    np.testing.assert_allclose(run_card(folder)["vectors"], wanted, atol=1e-5)
    config = json.loads((folder / "config.json").read_text())
    assert config.get("pooling") == (pooling if kind == "pairs" else None)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_the_card_of_a_model_of_images_looks_at_their_mirror_images_too(pooling, tmp_path):
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    model = image_model(size=8, dims=(4, 8, 16), dim=0, flip=True)
    model.network.encoder = TransformersEncoder(transformers.ViTModel(config, add_pooling_layer=False), 16, pooling)
    folder = export(alive(model), "transformers", tmp_path / "out")
    picture = tmp_path / "a.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(picture)
    wanted = model.encode([picture], dim=8)
    np.testing.assert_allclose(run_card(folder)["vectors"], wanted, atol=1e-5)


@pytest.mark.parametrize("crop", [1.0, 0.875])
def test_images_are_read_as_here(crop, tmp_path):
    """From a smooth picture of another shape, as both resize, in another order."""
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=28, patch_size=14
    )
    model = image_model(size=28, dims=(4, 16), dim=0)
    model = replace(model, recipe=replace(model.recipe, data=replace(model.recipe.data, test_crop=crop)))
    model.network.encoder = TransformersEncoder(transformers.ViTModel(config, add_pooling_layer=False), 16, "mean")
    folder = export(alive(model), "transformers", tmp_path / "out")
    rows, columns = np.mgrid[0:96, 0:128]
    picture = np.stack([2 * rows, 255 - 2 * columns, rows + columns], 2).clip(0, 255).astype(np.uint8)
    theirs = transformers.AutoImageProcessor.from_pretrained(folder)(Image.fromarray(picture), return_tensors="np")
    (ours,) = centred_images(GivenImages(picture), model.recipe, torch.device("cpu"), [[0]])
    assert theirs["pixel_values"].shape == tuple(ours.shape)
    # They cut whole pixels after resizing, we before: half a pixel, which is 3.5 of 255 steps here, and rounding. The
    # deviations, 0.22 and more, make 4.5 times as much of a step at most.
    assert np.abs(theirs["pixel_values"] - ours.numpy()).max() < 5 * 4.5 / 255


def test_what_transformers_would_not_apply_is_refused(tmp_path):
    rule = r"transformers cannot represent this model .*export it to sentence-transformers or onnx"
    with pytest.raises(InputError, match=rule):
        export(text_model(dim=48, dims=(8, 48)), "transformers", tmp_path / "out")
    with pytest.raises(InputError, match=r"transformers cannot represent .*resnet18\): export it to timm or onnx"):
        export(image_model(), "transformers", tmp_path / "out")
