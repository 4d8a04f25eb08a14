"""A folder that sentence-transformers loads gives the vectors that matryo gives, at every dim."""

import json
import logging

import numpy as np
import pytest
from export_models import TEXTS, alive, text_model, tokenizer

from matryo.data.texts.tokenizer import Tokenizer
from matryo.encoders import Bert, BertConfig
from matryo.errors import InputError
from matryo.export import export

sentence_transformers = pytest.importorskip("sentence_transformers")


def load(folder, dim=None):
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu", truncate_dim=dim)


def assert_same(model, folder, dims):
    for dim in dims:
        theirs = load(folder, dim).encode(TEXTS, normalize_embeddings=True)
        np.testing.assert_allclose(theirs, model.encode(TEXTS, dim=dim), atol=1e-5)
        assert theirs.shape == (len(TEXTS), dim)


@pytest.mark.parametrize("kind", ["pairs", "classify"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_the_vectors_are_ours(kind, pooling, tmp_path, caplog):
    model = text_model(kind=kind, pooling=pooling)
    with caplog.at_level(logging.WARNING):
        assert_same(model, export(model, "sentence-transformers", tmp_path / "out"), (8, 32, 100, 128))
    assert not caplog.records, "nothing is missing, drawn or converted"


@pytest.mark.parametrize(("dim", "dims"), [(48, (8, 48)), (48, (8, 24)), (0, (8, 64))])
def test_a_projection_is_a_dense_module(dim, dims, tmp_path):
    """Or only a cut, where training reads fewer columns than the encoder has."""
    model = text_model(dim=dim, dims=dims)
    folder = export(model, "sentence-transformers", tmp_path / "out")
    assert_same(model, folder, dims)
    whole = load(folder).encode(TEXTS)
    assert whole.shape[1] == dims[-1]
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(whole, model.encode(TEXTS), atol=1e-5)


def test_the_nesting_is_machine_readable(tmp_path):
    import transformers

    folder = export(text_model(), "sentence-transformers", tmp_path / "out")
    config = transformers.AutoConfig.from_pretrained(folder)   # what vLLM asks
    assert config.is_matryoshka is True
    assert config.matryoshka_dimensions == [8, 32, 128]
    assert load(folder).max_seq_length == 24
    fixed = export(text_model(dims=(128,)), "sentence-transformers", tmp_path / "fixed")
    assert not hasattr(transformers.AutoConfig.from_pretrained(fixed), "matryoshka_dimensions")
    assert {path.name for path in folder.iterdir()} == {
        "1_Pooling", "2_Normalize", "README.md", "config.json", "config_sentence_transformers.json", "matryo.json",
        "model.safetensors", "modules.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip


def test_the_tokenizer_goes_along(tmp_path):
    import transformers

    model = text_model()
    folder = export(model, "sentence-transformers", tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    got = theirs(TEXTS, padding=True, truncation=True)
    ids, mask = model.tokenizer.encode(TEXTS, 24)
    longest = int(mask.sum(1).max())
    np.testing.assert_array_equal(got["input_ids"], ids[:, :longest])
    np.testing.assert_array_equal(np.array(got["attention_mask"], bool), mask[:, :longest])
    assert (theirs.pad_token_id, theirs.cls_token_id, theirs.mask_token_id) == (
        model.tokenizer.pad, model.tokenizer.cls, model.tokenizer.mask,
    )  # fmt: skip


def source(path, words):
    """A BERT in a folder of transformers, with its tokenizer."""
    config = BertConfig.named("bert-tiny", vocab_size=words.vocabulary, max_position_embeddings=32)
    Bert(config).save(path)
    words.save(path)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 24}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def sentence_source(path, words):
    source(path, words)
    names = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [
        {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, place) in enumerate(names.items())
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 128, "pooling_mode_mean_tokens": True}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return path


@pytest.mark.parametrize("dim", [0, 48])
def test_a_model_of_transformers_goes_too(dim, tmp_path):
    words = tokenizer()
    folder = source(tmp_path / "source", words)
    model = text_model(f"transformers:{folder}", dim=dim, dims=(8, dim or 128), words=words)
    out = export(model, "sentence-transformers", tmp_path / "out")
    assert_same(model, out, (8, dim or 128))
    card = (out / "README.md").read_text()
    assert "encoder transformers:source," in card
    assert str(tmp_path) not in card


@pytest.mark.parametrize("dim", [0, 48])
@pytest.mark.parametrize("name", ["plain", "nomic-embed-text-v1.5"])
def test_a_sentence_transformer_goes_home(name, dim, tmp_path):
    words = tokenizer()
    folder = sentence_source(tmp_path / name, words)
    model = text_model(f"sentence-transformers:{folder}", dim=dim, dims=(8, dim or 128), words=words)
    inside = model.network.encoder if not dim else model.network.encoder.encoder
    assert inside.truncation.layer_norm == (name != "plain")
    out = export(model, "sentence-transformers", tmp_path / "out")
    assert_same(model, out, (8, dim or 128))
    assert json.loads((out / "config.json").read_text())["is_matryoshka"] is True
    assert_same(alive(model), export(model, "sentence-transformers", out, overwrite=True), (8,))


def test_a_sentence_transformer_reads_texts_as_the_training_did(tmp_path):
    """As long, with the tokenizer of the run, and without a prompt that was not there: whatever the source has."""
    words, other = tokenizer(), Tokenizer.train([text[::-1] for text in TEXTS], vocabulary=90, lowercase=False)
    folder = sentence_source(tmp_path / "source", words)
    prompts = {"prompts": {"query": "rain: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    for length, used in [(8, words), (24, other), (32, words)]:
        model = text_model(f"sentence-transformers:{folder}", dims=(8, 128), length=length, words=used)
        out = export(model, "sentence-transformers", tmp_path / "out", overwrite=True)
        assert_same(model, out, (8, 128))
        theirs = load(out)
        assert theirs.max_seq_length == theirs.tokenizer.model_max_length == length
        assert theirs.tokenizer.get_vocab() == used._inner.get_vocab()
        assert theirs.prompts["query"] == "rain: ", "for those who name it"
        np.testing.assert_allclose(
            theirs.encode(["a cat"], prompt_name="query", normalize_embeddings=True), model.encode(["rain: a cat"]),
            atol=1e-5,
        )  # fmt: skip


def test_what_a_source_knows_of_its_tokenizer_stays(tmp_path):
    words = tokenizer()
    folder = sentence_source(tmp_path / "source", words)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "[SEP]"}))
    other = Tokenizer.train(TEXTS, vocabulary=90)
    for used, end in [(words, "[SEP]"), (other, None)]:
        model = text_model(f"sentence-transformers:{folder}", words=used)
        out = export(model, "sentence-transformers", tmp_path / "out", overwrite=True)
        assert load(out).tokenizer.eos_token == end


def test_a_masked_model_has_no_place_there(tmp_path):
    with pytest.raises(InputError, match=r"sentence-transformers cannot represent .* export it to transformers"):
        export(text_model(kind="masked"), "sentence-transformers", tmp_path / "out")
