"""What a pretrained encoder cannot read is named before anything is trained: longer texts, other tokenizers."""

import contextlib
import json

import numpy as np
import pytest

pytest.importorskip("tokenizers")

import texts_made as made
import torch
from texts_made import recipe

from matryo.data import array_dataset
from matryo.encoders import ConvNet, TransformersEncoder, build_encoder
from matryo.errors import InputError, RecipeError
from matryo.training import train
from matryo.training.model import build_model
from matryo.training.recipe.against_data import check_length, check_normalisation
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override

PAIRS = {"objective__kind": "pairs", "loop__precision": "fp32"}
OWN, SMALLER, LARGER = 80, 60, 100   # how many tokens that of the model has, and others


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT of 32 positions, which both libraries and matryo itself can open."""
    path = tmp_path_factory.mktemp("bert")
    words = made.tokenizer(OWN)
    build_encoder("bert-tiny", vocabulary=words.vocabulary, length=32).save(path)
    words.save(path)
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return path


@pytest.fixture(params=["bert", "transformers", "sentence-transformers"])
def name(request, folder):
    if request.param != "bert":
        pytest.importorskip(request.param.replace("-", "_"))
    return f"{request.param}:{folder}"


def test_texts_longer_than_the_positions_are_refused(name, tmp_path):
    for field in ("encoder__name", "objective__teacher"):
        changes = {**PAIRS, field: name, "text__length": 33, "objective__distil": int("teacher" in field)}
        with pytest.raises(RecipeError, match=r"32 positions of .*\(got 33\): use --text.length 32"):
            train(recipe(**changes), made.pairs(), tmp_path / field, progress=False)
    run = recipe(**PAIRS, encoder__name=name, text__length=32)
    assert build_model(run, 0, vocabulary=OWN).encoder.dim == 128


def test_more_tokens_than_the_model_knows_are_refused(name, tmp_path):
    made.tokenizer(LARGER).save(tmp_path / "other.json")
    changes = {**PAIRS, "encoder__name": name, "text__tokenizer": tmp_path / "other.json"}
    with pytest.raises(InputError, match=rf"more tokens than the model's {OWN} \(got {LARGER}\): use the tok"):
        train(recipe(**changes), made.pairs(), tmp_path / "run", progress=False)


SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}


@pytest.mark.parametrize(
    ("kind", "settings", "most"),
    [
        ("Bert", {**SMALL, "max_position_embeddings": 12}, 12),
        ("XLMRoberta", {**SMALL, "max_position_embeddings": 12, "type_vocab_size": 1}, 10),
        ("MPNet", {**SMALL, "max_position_embeddings": 12}, 10),
        ("GPT2", {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 12, "vocab_size": 50, "bos_token_id": 1,
                  "eos_token_id": 1}, 12),
        ("T5Encoder", {"d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8, "vocab_size": 50}, None),
    ],
)  # fmt: skip
def test_the_longest_text_that_is_allowed_can_be_read_and_the_next_cannot(kind, settings, most):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind.removesuffix('Encoder')}Config")(**settings)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    encoder = TransformersEncoder(model, 16, "mean")
    check_length(recipe(text__length=most or 4000), encoder, kind)
    model(input_ids=torch.full((1, most or 600), 7))
    if most is None:   # positions are relative
        return
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, most + 1), 7))
    with pytest.raises(RecipeError, match=rf"the {most} positions of {kind} \(got {most + 1}\)"):
        check_length(recipe(text__length=most + 1), encoder, kind)


# --- open_clip ---


@pytest.fixture
def clip(request):
    open_clip = pytest.importorskip("open_clip", exc_type=ImportError)
    config = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 16, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 16, "vocab_size": OWN, "width": 32, "heads": 2,
                     "layers": 1, **getattr(request, "param", {})},
    }  # fmt: skip
    known = open_clip.factory._MODEL_CONFIGS
    known["matryo-test"] = config
    yield {**PAIRS, "encoder__name": "open_clip:matryo-test", "head__dims": "8,16", "loop__epochs": 1}
    del known["matryo-test"]


def test_a_model_of_open_clip_reads_with_its_own_tokenizer(clip, tmp_path):
    cases = {
        SMALLER: rf"needs its own tokenizer \(got a tokenizer with {SMALLER} tokens instead of {OWN}\): "
                 r"name its tokenizer.json: --text.tokenizer PATH",
        LARGER: rf"not have more than the {OWN} tokens",
        OWN: "",
    }  # fmt: skip
    for size, message in cases.items():
        made.tokenizer(size).save(tmp_path / f"{size}.json")
        changed = recipe(**clip, text__tokenizer=tmp_path / f"{size}.json")
        refused = pytest.raises(InputError, match=message) if message else contextlib.nullcontext()
        with refused:
            train(changed, made.captions(), tmp_path / f"run{size}", progress=False)


@pytest.mark.parametrize("clip", [{"hf_tokenizer_name": "somebody/words"}], indirect=True)
def test_a_model_of_open_clip_that_names_a_tokenizer_does_not_say_how_many_tokens_it_has(clip):
    assert build_encoder(clip["encoder__name"], vocabulary=SMALLER).dim == 16
    with pytest.raises(InputError, match="more tokens than the model"):
        build_encoder(clip["encoder__name"], vocabulary=LARGER)


# --- images ---


def images():
    return array_dataset({"train": (np.zeros((8, 32, 32, 3), np.uint8), np.arange(8) % 2)})


@pytest.mark.parametrize(
    ("mean", "std", "fits"),
    [
        ("0.5,0.5,0.5", "0.25,0.25,0.25", True),
        ("0.5,0.501,0.499", "0.251,0.25,0.25", True),   # rounded
        ("0.5,0.5,0.5", "0.25,0.25,0.26", False),
        ("0.485,0.456,0.406", "0.25,0.25,0.25", False),
    ],
)
def test_weights_know_images_of_one_mean_and_deviation(mean, std, fits):
    inner = torch.nn.Linear(2, 2)
    inner.colours = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    expected = pytest.raises(
        RecipeError,
        match=rf"those that it was trained with \(got {mean} and {std}\): use --data.mean 0.5,0.5,0.5 --data.std 0.25",
    )
    chosen = recipe(data__mean=mean, data__std=std)
    with contextlib.nullcontext() if fits else expected:
        check_normalisation(chosen, images().split("train"), torch.nn.Sequential(inner), "it")
    for split, encoder in ((images().split("train"), torch.nn.Linear(2, 2)), (made.pairs().split("train"), inner)):
        check_normalisation(chosen, split, encoder, "it")   # nothing is known, or no image


@pytest.mark.parametrize("field", ["encoder__name", "objective__teacher"])
def test_a_run_of_images_that_weights_do_not_know_stops_before_it_begins(field, tmp_path):
    pytest.importorskip("timm", exc_type=ImportError)
    build_encoder("timm:test_vit.r160_in1k", size=160).save(tmp_path / "vit")   # whose images had 0.5 and 0.5
    changes = {field: f"timm:local-dir:{tmp_path / 'vit'}", "data__size": "160", "data__workers": "0"}
    changes |= {"encoder__pretrained": "true"} if field == "encoder__name" else {"objective__kind": "distil"}
    made_so = override(Recipe(), {name.replace("__", "."): value for name, value in changes.items()})
    with pytest.raises(RecipeError, match=r"use --data.mean 0.5,0.5,0.5 --data.std 0.5,0.5,0.5"):
        train(made_so, images(), tmp_path / "r")
    assert not (tmp_path / "r" / "checkpoint.safetensors").exists()


def test_colours_matter_to_the_weights_that_know_them_and_not_to_a_run_that_goes_on(tmp_path, monkeypatch):
    fields = {"encoder.dim": "16", "head.dims": "8,16", "loop.device": "cpu", "loop.batch": "4", "loop.epochs": "1",
              "data.resident": "yes"}  # fmt: skip
    plain = override(Recipe(), fields)
    train(plain, images(), tmp_path / "done", progress=False)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "checkpoint.safetensors").write_bytes((tmp_path / "done/checkpoint.safetensors").read_bytes())
    monkeypatch.setattr(ConvNet, "colours", ((0.5,) * 3, (0.5,) * 3), raising=False)
    with pytest.raises(RecipeError, match=r"those that encoder\.name convnet was trained with"):
        train(plain, images(), tmp_path / "new", progress=False)
    train(plain, images(), tmp_path / "begun", progress=False)
    train(override(plain, {"finetune.start": str(tmp_path / "done")}), images(), tmp_path / "on", progress=False)
    for run in ("begun", "on"):
        assert (tmp_path / run / "run.json").exists()
