"""Folders of pretrained models: their images and tokens are prepared as they say, and forged folders refused."""

import json

import numpy as np
import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from export_models import run_card, text_model  # noqa: E402

from matryo.data import array_dataset  # noqa: E402
from matryo.data.texts.tokenizer import Tokenizer  # noqa: E402
from matryo.encoders import build_encoder, from_transformers  # noqa: E402
from matryo.errors import InputError, RecipeError  # noqa: E402
from matryo.export import export  # noqa: E402
from matryo.training import Recipe, train  # noqa: E402
from matryo.training.recipe.fields import Data, Encoder, Head, Loop  # noqa: E402

TEXTS = ["a text", "another one", "the mat on which a cat sleeps, and a dog, and a cat"]
_TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def siglip(folder, **preprocessor):
    """A SigLIP of images of 8 px; its own normalisation is that of its class, 0.5 and 0.5."""
    config = transformers.SiglipVisionConfig(**_TINY, image_size=8, patch_size=4)
    transformers.SiglipVisionModel(config).save_pretrained(folder)
    stored = {"image_processor_type": "SiglipImageProcessor", **preprocessor}
    (folder / "preprocessor_config.json").write_text(json.dumps(stored))
    return folder


def decoder(folder, config, **settings):
    """A decoder whose tokenizer ends each text with </s> and pads on the left."""
    pieces = tokenizers.pre_tokenizers.ByteLevel
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    inner.pre_tokenizer, inner.decoder = pieces(), tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=pieces.alphabet(), show_progress=False
    )
    inner.train_from_iterator(TEXTS, trainer)
    inner.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(inner.to_str())   # not as this library would write it
    stored = {"eos_token": "</s>", "bos_token": "<s>", "padding_side": "left", "model_max_length": 4096, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(stored, indent=7))
    (folder / "special_tokens_map.json").write_text('{ "eos_token":"</s>" }\n')
    (folder / "chat_template.jinja").write_bytes(b"{{ messages }}\r\n")
    return folder


# --- images ---


@pytest.mark.parametrize(
    "stored, mean, std",
    [
        ({}, 0.5, 0.5),   # by the class of the processor
        ({"image_mean": [0.25] * 3, "image_std": [0.125] * 3}, 0.25, 0.125),
        ({"do_normalize": False}, 0.0, 1.0),
        ({"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3}, 0.5, 0.5),   # −1…1
        ({"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [51.0] * 3}, 0.5, 0.2),   # of 0…255
    ],
)  # fmt: skip
def test_the_normalisation_is_that_of_the_images_that_a_model_was_given(stored, mean, std, tmp_path):
    """Compared with what the processor of transformers does to black and white."""
    folder = siglip(tmp_path, size={"height": 8, "width": 8}, **stored)
    colours = from_transformers(folder).colours
    np.testing.assert_allclose(colours, [[mean] * 3, [std] * 3], rtol=1e-6)
    pixels = np.stack([np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 255, np.uint8)])
    theirs = transformers.AutoImageProcessor.from_pretrained(folder)(list(pixels), return_tensors="np")["pixel_values"]
    ours = (pixels / 255 - colours[0]) / colours[1]
    np.testing.assert_allclose(theirs, ours.transpose(0, 3, 1, 2), atol=1e-5)


def test_training_stops_at_another_normalisation(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), np.uint8)
    data = array_dataset({"train": (pixels, [0, 1] * 4)})
    recipe = Recipe(
        data=Data(source="arrays", size=8, test=()), encoder=Encoder(name=f"transformers:{siglip(tmp_path / 'm')}"),
        head=Head(dims=(8, 16)), loop=Loop(steps=1, batch=4, device="cpu"),
    )  # fmt: skip
    with pytest.raises(RecipeError, match=r"data\.mean and .* must be .* --data\.mean 0\.5,0\.5,0\.5 --data\.std 0\.5"):
        train(recipe, data, tmp_path / "run", progress=False)


def test_what_is_not_said_of_images_is_not_invented(tmp_path):
    folder = siglip(tmp_path)
    (folder / "preprocessor_config.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot read preprocessor_config\.json"):
        from_transformers(folder)
    (folder / "preprocessor_config.json").unlink()
    encoder = from_transformers(folder)
    assert encoder.colours is None
    encoder(torch.randn(2, 3, 8, 8)).square().sum().backward()
    assert all(value.grad is not None for value in encoder.parameters() if value.requires_grad)


def test_images_of_another_size_are_refused_before_training(tmp_path):
    name = f"transformers:{siglip(tmp_path)}"
    assert build_encoder(name, size=8).dim == 16
    with pytest.raises(InputError, match=r"takes images of 8 px only .* at 16 px\): use --data\.size 8"):
        build_encoder(name, size=16)


# --- tokens ---


def llama():
    return transformers.LlamaConfig(**_TINY, num_key_value_heads=1, vocab_size=290, max_position_embeddings=64)


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "Qwen2Tokenizer"])
def test_an_export_keeps_the_tokenizer_and_the_vectors(kind, tmp_path):
    """A decoder that pools the last token, with padding on the left: the card gives the vectors of the run."""
    source = decoder(tmp_path / "source", llama(), tokenizer_class=kind)
    model = text_model(f"transformers:{source}", dims=(8, 16), pooling="last", length=12, words=Tokenizer.open(source))
    out = export(model, "transformers", tmp_path / "out")
    for name in ("tokenizer.json", "special_tokens_map.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    stored, given = (json.loads((folder / "tokenizer_config.json").read_text()) for folder in (out, source))
    needed = {"model_max_length": 12, "pad_token": "<unk>", "tokenizer_class": "PreTrainedTokenizerFast"}
    assert stored == {**given, **needed}
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert (theirs.eos_token, theirs.padding_side) == ("</s>", "left")
    np.testing.assert_allclose(run_card(out)["vectors"], model.encode(TEXTS[:2], dim=16), atol=1e-5)
    inputs = theirs(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        last = transformers.AutoModel.from_pretrained(out).eval()(**inputs).last_hidden_state[:, -1]
    wanted = model.encode(TEXTS)
    np.testing.assert_allclose(nn.functional.normalize(last).numpy(), wanted, atol=1e-5)


def test_a_model_that_counts_padding_is_padded_as_in_training(tmp_path):
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=290, n_positions=64)
    source = decoder(tmp_path / "source", config, truncation_side="left")
    model = text_model(f"transformers:{source}", dims=(8, 16), pooling="last", length=12, words=Tokenizer.open(source))
    out = export(model, "transformers", tmp_path / "out")
    stored = json.loads((out / "tokenizer_config.json").read_text())
    assert (stored["padding_side"], stored["truncation_side"]) == ("right", "right")
    np.testing.assert_allclose(run_card(out)["vectors"], model.encode(TEXTS[:2], dim=16), atol=1e-5)


def test_a_run_folder_keeps_the_files_of_its_tokenizer(tmp_path):
    """And takes no other file from its bundle, which might come from elsewhere."""
    source = decoder(tmp_path / "source", llama())
    words = Tokenizer.open(source)
    words.flat(TEXTS, 4)   # leaves its truncation in the library's object
    words.store(tmp_path / "run")
    again = Tokenizer.open(tmp_path / "run" / "tokenizer.json")
    assert again.files == words.files
    assert set(words.files) == {path.name for path in source.iterdir()} - {"config.json", "model.safetensors"}
    bundle = tmp_path / "run" / "tokenizer_files.json"
    bundle.write_text(json.dumps({**json.loads(bundle.read_text()), "../evil.py": "x", "config.json": "x"}))
    assert Tokenizer.open(tmp_path / "run").files == words.files
    Tokenizer.train(TEXTS, 64).store(tmp_path / "run")
    assert not Tokenizer.open(tmp_path / "run").files.keys() - {"tokenizer.json"}, "nothing of the former one is left"


# --- folders that are not a model ---


def test_an_adapter_must_be_merged(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "base"}')
    for library in ("transformers", "sentence-transformers"):
        pytest.importorskip(library.replace("-", "_"))
        with pytest.raises(InputError, match=r"not a PEFT adapter .*merge_and_unload\(\)"):
            build_encoder(f"{library}:{tmp_path}")


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "a/../../b.safetensors", 7, None])
def test_weights_outside_of_the_folder_are_not_read(shard, tmp_path):
    transformers.BertModel(transformers.BertConfig(**_TINY, vocab_size=8)).save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "secret.safetensors")
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": shard}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"model\.safetensors\.index\.json must"):
        from_transformers(tmp_path / "m")
