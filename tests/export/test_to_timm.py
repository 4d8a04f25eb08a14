"""Folders for timm and open_clip: loaded there, they are the encoders they were."""

import json

import numpy as np
import pytest
import torch
from export_models import TEXTS, alive, image_model, run_card, tokenizer, trained
from safetensors.torch import load_file
from torch.nn import functional as F

from matryo.encoders import Tokens, from_timm
from matryo.errors import InputError
from matryo.export import export
from matryo.training.objectives.pairs import PairModel
from matryo.training.recipe.fields import Data, Encoder, Loop, Objective, Recipe, Text

CASES = {
    "resnet": lambda: image_model("resnet18"),
    "vit": lambda: image_model("vit-ti8", dims=(8, 192)),
    "vit without a token": lambda: image_model("vit-ti4", dims=(8, 192), pooling="mean"),
}


@pytest.mark.parametrize("case", CASES)
def test_timm_loads_what_is_written(case, tmp_path):
    timm = pytest.importorskip("timm", exc_type=ImportError)
    model = CASES[case]()
    folder = export(model, "timm", tmp_path / "out")
    theirs, images = timm.create_model(f"local-dir:{folder}", pretrained=True).eval(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(theirs(images), model.network.encoder(images), atol=1e-4, rtol=1e-4)
        back = from_timm(f"local-dir:{folder}", pretrained=True, size=32).eval()
        torch.testing.assert_close(back(images), theirs(images))
    assert theirs.pretrained_cfg["input_size"] in ((3, 32, 32), [3, 32, 32])
    assert theirs.pretrained_cfg["mean"] in (model.recipe.data.mean, list(model.recipe.data.mean))
    assert theirs.pretrained_cfg["interpolation"] == "bilinear"


@pytest.mark.parametrize("flip", [False, True])
def test_the_card_gives_the_vectors_of_the_model(flip, tmp_path):
    pytest.importorskip("timm", exc_type=ImportError)
    model = image_model(flip=flip)
    folder, images = export(model, "timm", tmp_path / "out"), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted = F.normalize(model.network.embed(images, flip=flip)[:, :64])
    torch.testing.assert_close(run_card(folder, images=images)["vectors"], wanted)


@pytest.mark.parametrize("case", CASES)
def test_the_files_are_what_timm_reads(case, tmp_path):
    model = CASES[case]()
    folder = export(model, "timm", tmp_path / "out")
    config, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    assert config["architecture"] == ("resnet18" if case == "resnet" else "vit_base_patch16_224")
    assert (config["num_classes"], config["matryoshka_dimensions"][0]) == (0, 8)
    own = model.network.encoder.state_dict()
    assert weights.keys() == own.keys()
    assert all(torch.equal(weights[name], value) for name, value in own.items())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_model_of_timm_goes_home(layout, tmp_path):
    timm = pytest.importorskip("timm", exc_type=ImportError)
    model = image_model("timm:resnet10t", size=64)
    model.network.to(memory_format=layout)   # a model that was loaded has the second
    model.network.encoder.model.pretrained_cfg["crop_mode"] = "squash"   # as some published ones have
    folder = export(model, "timm", tmp_path / "out")
    theirs, images = timm.create_model(f"local-dir:{folder}", pretrained=True).eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(theirs(images), model.network.encoder(images), atol=1e-4, rtol=1e-4)
    config = json.loads((folder / "config.json").read_text())
    assert config["is_matryoshka"] is True
    # Images must be read as they were in this training, not as the published weights were trained.
    seen = config["pretrained_cfg"]
    assert (seen["input_size"], seen["mean"]) == ([3, 64, 64], list(model.recipe.data.mean))
    assert (seen["interpolation"], seen["crop_pct"], seen["crop_mode"]) == ("bilinear", 1.0, "center")


def test_a_model_of_timm_for_images_of_another_size_goes_home(tmp_path):
    timm = pytest.importorskip("timm", exc_type=ImportError)
    model = image_model()
    model.network.encoder = from_timm("vit_tiny_patch16_224", size=32, depth=1)
    folder = export(alive(model), "timm", tmp_path / "out")
    theirs, images = timm.create_model(f"local-dir:{folder}", pretrained=True).eval(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(theirs(images), model.network.encoder(images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{"stem": "small"}, {"blurpool": True}, {"norm": "group"}, {"dim": 64}, {"name": "convnet", "dim": 64}],
    ids=str,
)
def test_what_timm_does_not_have_is_refused(options, tmp_path):
    with pytest.raises(InputError, match=r"timm cannot represent this model .*: export it to onnx"):
        export(image_model(**options), "timm", tmp_path / "out")


def test_a_model_of_open_clip_goes_home(tmp_path):
    open_clip = pytest.importorskip("open_clip", exc_type=ImportError)
    config = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 12, "vocab_size": 30, "width": 32, "heads": 2, "layers": 1},
    }
    known = open_clip.factory._MODEL_CONFIGS
    known["matryo-test"] = config
    try:
        recipe = Recipe(name="clip", data=Data(source="captions", test_flip=True),
                        encoder=Encoder(name="open_clip:matryo-test"), objective=Objective(kind="pairs"),
                        loop=Loop(precision="fp32"))  # fmt: skip
        model = trained(recipe, sides=("images", "texts"))
        assert isinstance(model.network, PairModel)
        model.network.encoder.settings["preprocess_cfg"]["resize_mode"] = "squash"   # as some published ones have
    finally:
        del known["matryo-test"]
    folder = export(alive(model), "open_clip", tmp_path / "out")
    seen = json.loads((folder / "open_clip_config.json").read_text())["preprocess_cfg"]
    assert (seen["mean"], seen["interpolation"]) == (list(recipe.data.mean), "bilinear")
    assert seen["resize_mode"] == "shortest"
    theirs = open_clip.create_model(f"local-dir:{folder}").eval()
    images, ids = torch.randn(2, 3, 32, 32), torch.randint(1, 30, (2, 12))
    with torch.no_grad():
        a, b = model.network.encoder((images, Tokens(ids)))
        torch.testing.assert_close(theirs.encode_image(images), a)
        torch.testing.assert_close(theirs.encode_text(ids), b)
        card = run_card(folder, images=images, ids=ids)
        dim = card["vectors"].shape[1]
        wanted = model.network.embed(images, flip=True)
        torch.testing.assert_close(card["vectors"], F.normalize(wanted[:, :dim]))
        torch.testing.assert_close(card["texts"], F.normalize(b[:, :dim]))


def test_the_tokenizer_lies_where_open_clip_looks_for_it(tmp_path):
    """A model that names one of a hub finds it in the folder instead, and it is the one that was trained with."""
    open_clip = pytest.importorskip("open_clip", exc_type=ImportError)
    pytest.importorskip("transformers")
    words, known = tokenizer(), open_clip.factory._MODEL_CONFIGS
    text = {"context_length": 24, "vocab_size": words.vocabulary, "width": 32, "heads": 2, "layers": 1,
            "hf_tokenizer_name": "somebody/words"}  # fmt: skip
    vision = {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16}
    known["matryo-test"] = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    try:
        recipe = Recipe(name="clip", data=Data(source="captions"), encoder=Encoder(name="open_clip:matryo-test"),
                        text=Text(length=24), objective=Objective(kind="pairs"),
                        loop=Loop(precision="fp32"))  # fmt: skip
        model = trained(recipe, tokenizer=words, sides=("images", "texts"))
    finally:
        del known["matryo-test"]
    folder = export(alive(model), "open_clip", tmp_path / "out")
    theirs = open_clip.create_model(f"local-dir:{folder}").eval()
    ids = open_clip.get_tokenizer(f"local-dir:{folder}")([text.strip() for text in TEXTS])
    with torch.no_grad():
        vectors = torch.nn.functional.normalize(theirs.encode_text(ids), dim=1)
    np.testing.assert_allclose(vectors, model.encode([text.strip() for text in TEXTS]), atol=1e-5)
