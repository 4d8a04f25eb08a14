"""Models of other libraries as encoders: the same vectors as there, and the library's own folder on the way out."""

import json
import shutil
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from matryo.data.texts.tokenizer import Tokenizer
from matryo.encoders import (
    Tokens,
    Truncation,
    build_encoder,
    from_open_clip,
    from_sentence_transformers,
    from_timm,
    from_transformers,
    save_shape,
    truncation_of,
)
from matryo.errors import InputError, MissingExtra

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
SENTENCES = ["a b c", "d e f g h i j", "b"]


def texts():
    ids = torch.tensor([[2, 5, 6, 7, 3, 0], [2, 8, 9, 10, 11, 3], [2, 6, 3, 0, 0, 0]])
    return Tokens(ids, ids != 0)


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory):
    """A tiny BERT with its tokenizer, saved by transformers."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.BertModel(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    Tokenizer.open(folder).save(folder)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 16}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def sentence_folder(bert_folder, tmp_path_factory):
    """The same behind sentence-transformers' mean pooling and normalisation."""
    pytest.importorskip("sentence_transformers")
    folder = tmp_path_factory.mktemp("sentence") / "model"
    shutil.copytree(bert_folder, folder)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


# --- transformers ---


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_transformers_model_is_pooled(bert_folder, pooling):
    import transformers

    encoder = from_transformers(bert_folder, pooling=pooling).eval()
    tokens, model = texts(), transformers.AutoModel.from_pretrained(bert_folder).eval()
    with torch.no_grad():
        hidden = model(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state
        rows = [one[kept] for one, kept in zip(hidden, tokens.mask, strict=True)]
        pick = {"mean": lambda one: one.mean(0), "cls": lambda one: one[0], "last": lambda one: one[-1]}[pooling]
        torch.testing.assert_close(encoder(tokens), torch.stack([pick(one) for one in rows]))
        torch.testing.assert_close(encoder(Tokens(tokens.ids[1:2])), encoder(tokens)[1:2])
        same = build_encoder(f"transformers:{bert_folder}", pooling=pooling).eval()
        torch.testing.assert_close(same(tokens), encoder(tokens))
        ours = build_encoder(f"bert:{bert_folder}", pooling=pooling).eval()
        torch.testing.assert_close(ours(tokens), encoder(tokens), atol=1e-5, rtol=1e-5)
    assert encoder.dim == 16
    assert torch.equal(encoder.words, model.embeddings.word_embeddings.weight)


def test_a_transformers_model_goes_home(bert_folder, tmp_path):
    import transformers

    encoder = from_transformers(bert_folder).eval()
    with torch.no_grad():
        encoder.words.mul_(0.5)
    encoder.save(tmp_path / "home")
    model, report = transformers.AutoModel.from_pretrained(tmp_path / "home", output_loading_info=True)
    assert not any(report.values()), report
    tokens = texts()
    with torch.no_grad():
        hidden = model.eval()(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state
        torch.testing.assert_close(encoder.hidden(tokens), hidden)


def test_a_transformers_model_is_built_again_from_its_shape(bert_folder, tmp_path):
    encoder = build_encoder(f"transformers:{bert_folder}", dim=8)
    save_shape(encoder, tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))
    again = build_encoder("transformers:gone", dim=8, shape=tmp_path)
    assert not torch.equal(again.encoder.words, encoder.encoder.words), "newly drawn"
    again.load_state_dict(encoder.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(texts()), encoder.eval()(texts()))


@pytest.mark.parametrize("library", ["transformers", "sentence-transformers"])
def test_what_is_trained_has_a_gradient(library, bert_folder, sentence_folder):
    """Processes that train together wait for the gradient of every weight that asks for one."""
    encoder = build_encoder(f"{library}:{bert_folder if library == 'transformers' else sentence_folder}")
    encoder(texts()).square().sum().backward()
    trained = {name: value for name, value in encoder.named_parameters() if value.requires_grad}
    assert {name for name, value in trained.items() if value.grad is None} == set()
    frozen = {name for name, value in encoder.named_parameters() if name not in trained}
    assert all("pooler" in name for name in frozen)


def test_dropout_and_vocabulary_of_other_libraries(bert_folder):
    still = build_encoder(f"transformers:{bert_folder}", dropout=0.0, vocabulary=len(WORDS)).train()
    torch.testing.assert_close(still(texts()), still(texts()))
    moving = build_encoder(f"transformers:{bert_folder}").train()
    assert not torch.allclose(moving(texts()), moving(texts()))
    with pytest.raises(InputError, match=r"more tokens than the model's 15 \(got 16\)"):
        build_encoder(f"transformers:{bert_folder}", vocabulary=16)


def test_a_transformers_model_of_images():
    transformers = pytest.importorskip("transformers")
    from matryo.encoders import TransformersEncoder

    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    model, images = transformers.ViTModel(config, add_pooling_layer=False).eval(), torch.randn(2, 3, 8, 8)
    encoder = TransformersEncoder(model, 16, "cls")
    with torch.no_grad():
        torch.testing.assert_close(encoder(images), model(pixel_values=images).last_hidden_state[:, 0])


def test_transformers_models_without_a_vector_a_token_are_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    t5 = transformers.T5Config(vocab_size=8, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2)
    transformers.T5EncoderModel(t5).save_pretrained(tmp_path / "t5")   # AutoModel puts a decoder beside it
    resnet = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1])
    transformers.ResNetModel(resnet).save_pretrained(tmp_path / "resnet")
    for name, kind, cure in (("t5", "T5Model", "sentence-transformers:NAME"), ("resnet", "ResNetModel", "timm:MODEL")):
        with pytest.raises(InputError, match=f"one vector of hidden_size .* a {kind}.*{cure}"):
            from_transformers(tmp_path / name)


# --- sentence-transformers ---


def test_a_sentence_transformer_gives_its_own_vectors(sentence_folder, tmp_path):
    from sentence_transformers import SentenceTransformer

    encoder = build_encoder(f"sentence-transformers:{sentence_folder}").eval()
    model = SentenceTransformer(str(sentence_folder), device="cpu")
    wanted = torch.from_numpy(model.encode(SENTENCES))
    inputs = model.tokenize(SENTENCES)
    tokens = Tokens(inputs["input_ids"], inputs["attention_mask"].bool())
    with torch.no_grad():
        torch.testing.assert_close(encoder(tokens), wanted, atol=1e-6, rtol=1e-5)
        one = model.tokenize(SENTENCES[:1])
        torch.testing.assert_close(encoder(Tokens(one["input_ids"])), wanted[:1], atol=1e-6, rtol=1e-5)
        ours = F.normalize(build_encoder(f"bert:{sentence_folder}").eval()(tokens))
        torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=1e-5)
    assert encoder.dim == 16

    for parameter in encoder.parameters():
        parameter.data.mul_(0.9)
    encoder.save(tmp_path / "home")
    home = SentenceTransformer(str(tmp_path / "home"), device="cpu")
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(home.encode(SENTENCES)), encoder(tokens), atol=1e-6, rtol=1e-5)


def test_a_sentence_transformer_is_built_again_when_its_source_is_gone(sentence_folder, tmp_path):
    encoder = build_encoder(f"sentence-transformers:{sentence_folder}").eval()
    save_shape(encoder, tmp_path)
    again = build_encoder("sentence-transformers:nomic-ai/nomic-embed-text-v1.5", shape=tmp_path).eval()
    assert again.truncation.layer_norm, "what is known by its name stays so"
    with torch.no_grad():
        z = encoder(texts())
        torch.testing.assert_close(again(texts()), F.layer_norm(z, (16,)))


def test_a_known_truncation_is_honoured(sentence_folder):
    z = from_sentence_transformers(sentence_folder, truncation=Truncation(layer_norm=True)).eval()(texts())
    plain = from_sentence_transformers(sentence_folder).eval()(texts())
    centred = plain - plain.mean(-1, keepdim=True)
    wanted = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(z, wanted)
    assert not torch.allclose(F.normalize(z[:, :4]), F.normalize(plain[:, :4]), atol=1e-3), "a prefix differs"


def test_a_stored_truncate_dim_is_set_aside(sentence_folder, tmp_path):
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(str(sentence_folder), device="cpu", truncate_dim=4).save(
        str(tmp_path / "cut"), create_model_card=False
    )
    assert SentenceTransformer(str(tmp_path / "cut"), device="cpu").encode(["a"]).shape == (1, 4)
    encoder = from_sentence_transformers(tmp_path / "cut").eval()
    plain = from_sentence_transformers(sentence_folder).eval()
    with torch.no_grad():
        torch.testing.assert_close(encoder(texts()), plain(texts()))
        assert encoder.dim == 16
        assert build_encoder(f"sentence-transformers:{tmp_path / 'cut'}", dim=8)(texts()).shape == (3, 8)


def test_sentence_transformers_without_a_transformer_are_refused(bert_folder, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.models import StaticEmbedding
    from tokenizers import Tokenizer as Library

    words = StaticEmbedding(Library.from_file(str(bert_folder / "tokenizer.json")), embedding_dim=8)
    library.SentenceTransformer(modules=[words], device="cpu").save(str(tmp_path / "words"), create_model_card=False)
    with pytest.raises(InputError, match=r"must start with a transformer .*words, which starts with StaticEmbedding"):
        from_sentence_transformers(tmp_path / "words")


@pytest.mark.parametrize(
    ("name", "layer_norm"),
    [
        ("nomic-ai/nomic-embed-text-v1.5", True),
        ("/some/folder/Nomic-Embed-Text-v1.5/", True),
        ("nomic-ai/nomic-embed-text-v1", False),
        ("mixedbread-ai/mxbai-embed-large-v1", False),
        ("text-embedding-3-large", False),
        ("somebody/something", False),
    ],
)
def test_how_published_models_are_truncated(name, layer_norm):
    assert truncation_of(name) == Truncation(layer_norm)


# --- open_clip and timm ---


@pytest.fixture(scope="module")
def clip():
    open_clip = pytest.importorskip("open_clip", exc_type=ImportError)
    config = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 12, "vocab_size": 30, "width": 32, "heads": 2, "layers": 1},
    }
    folder = open_clip.factory._MODEL_CONFIGS
    folder["matryo-test"] = config
    yield from_open_clip("matryo-test")
    del folder["matryo-test"]


def test_an_open_clip_model_is_a_dual_encoder(clip, tmp_path):
    import open_clip

    images = torch.randn(2, 3, 32, 32)
    ids = torch.tensor([[28, 4, 5, 29], [28, 6, 29, 0]])
    padded = F.pad(ids, (0, 8))
    with torch.no_grad():
        a, b = clip((images, Tokens(ids, ids != 0)))
        torch.testing.assert_close(a, clip.model.encode_image(images))
        torch.testing.assert_close(b, clip.model.encode_text(padded))
    assert (clip.dim, a.shape) == (16, (2, 16))
    assert clip.temperature.item() == pytest.approx(0.07, rel=1e-3)
    clip.save(tmp_path)
    home = open_clip.create_model(f"local-dir:{tmp_path}")
    with torch.no_grad():
        torch.testing.assert_close(home.encode_image(images), a)
        torch.testing.assert_close(home.encode_text(padded), b)
    with pytest.raises(InputError, match=r"at most 12 tokens \(got 13\): truncate it"):
        clip.embed_candidates(Tokens(torch.zeros(1, 13, dtype=torch.int64)))
    save_shape(clip, tmp_path / "shape")
    again = build_encoder("open_clip:matryo-test/published-weights", shape=tmp_path / "shape")
    again.load_state_dict(clip.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(again.embed_queries(images), a)
    again = build_encoder(f"open_clip:local-dir:{tmp_path / 'gone'}", shape=tmp_path / "shape")
    again.load_state_dict(clip.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(again.embed_candidates(Tokens(ids, ids != 0)), b)
    with pytest.raises(InputError, match=r"open_clip cannot load the model \(got local-dir:.*gone.*\): check"):
        build_encoder(f"open_clip:local-dir:{tmp_path / 'gone'}")
    with pytest.raises(InputError, match=r"this dual encoder has dim 16 \(got dim 8\): use dim 0"):
        build_encoder("open_clip:matryo-test", dim=8)
    with pytest.raises(InputError, match=r"unknown open_clip model \(got 'nope'\)"):
        build_encoder("open_clip:nope")


@pytest.fixture(scope="module")
def timm():
    return pytest.importorskip("timm", exc_type=ImportError)


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_timm_model_goes_home_and_comes_back(timm, name, layout, tmp_path):
    encoder, images = from_timm(name, size=32).eval(), torch.randn(2, 3, 32, 32)
    encoder.to(memory_format=layout)
    encoder.save(tmp_path)
    convolution = next(value for value in encoder.parameters() if value.ndim == 4)
    assert convolution.is_contiguous(memory_format=layout), "left as it was"
    home = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    back = from_timm(f"local-dir:{tmp_path}", pretrained=True).eval()
    built = build_encoder(f"timm:local-dir:{tmp_path}", pretrained=True, size=32).eval()
    for again in (home, back.model, built.model):
        theirs = again.state_dict()
        assert all(torch.equal(theirs[key], value) for key, value in encoder.model.state_dict().items())
    with torch.no_grad():
        wanted = encoder(images)
        for again in (home, back, built):
            torch.testing.assert_close(again(images), wanted)
    assert back.dim == encoder.dim
    back.save(tmp_path / "twice")   # what shapes it is read from the folder, and must not get lost there
    with torch.no_grad():
        twice = from_timm(f"local-dir:{tmp_path / 'twice'}", pretrained=True).eval()
        torch.testing.assert_close(twice(images), wanted)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("swin_tiny_patch4_window7_224", {"embed_dim": 24, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 8)}),
        ("swinv2_tiny_window8_256", {"embed_dim": 24, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 8)}),
        ("davit_tiny", {"embed_dims": (8, 16, 24, 32), "depths": (1, 1, 1, 1), "num_heads": (1, 2, 3, 4)}),
        ("nextvit_small", {}),
    ],
)
def test_weights_that_timm_would_rename_go_home(timm, name, shape, tmp_path):
    encoder, images = from_timm(name, size=64, **shape).eval(), torch.randn(1, 3, 64, 64)
    encoder.save(tmp_path)
    home = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    back = from_timm(f"local-dir:{tmp_path}", pretrained=True).eval()
    with torch.no_grad():
        torch.testing.assert_close(home(images), encoder(images))
        torch.testing.assert_close(back(images), encoder(images))
    assert (back.dim, back.settings.keys()) == (encoder.dim, encoder.settings.keys())
    other = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=3).eval()
    with torch.no_grad():
        torch.testing.assert_close(other.forward_features(images), home.forward_features(images))
        assert other(images).shape == (1, 3)


@pytest.mark.usefixtures("timm")
def test_published_weights_know_the_colours_of_their_images(clip, tmp_path):
    from_timm("vit_tiny_patch16_224.augreg_in21k", size=32, depth=1).save(tmp_path / "vit")
    half = (0.5, 0.5, 0.5)
    assert [[*map(tuple, from_timm(f"local-dir:{tmp_path / 'vit'}", pretrained=True).colours)]] == [[half, half]]
    assert from_timm(f"local-dir:{tmp_path / 'vit'}").colours is None   # whose weights are drawn
    clip.save(tmp_path / "clip")
    assert clip.colours is None
    assert from_open_clip(f"local-dir:{tmp_path / 'clip'}").colours[0][0] == pytest.approx(0.4815, abs=1e-4)


@pytest.mark.usefixtures("timm")
def test_a_timm_model_keeps_its_options(tmp_path):
    encoder = from_timm("vit_tiny_patch16_224", size=32, depth=1, cache_dir=str(tmp_path / "cache"))
    assert encoder.settings == {"depth": 1, "img_size": 32}, "what shapes it, not where weights come from"
    encoder.save_shape(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    again = from_timm(f"local-dir:{tmp_path}")
    again.load_state_dict(encoder.state_dict())
    assert again.settings == encoder.settings


def test_a_timm_model_is_built_for_the_size_of_the_images(timm, tmp_path):
    images = torch.randn(2, 3, 32, 32)
    encoder = from_timm("vit_tiny_patch16_224", size=32, depth=1).eval()
    assert encoder(images).shape == (2, 192)
    assert encoder.model.pos_embed.shape == (1, 1 + 2 * 2, 192)
    assert from_timm("vit_tiny_patch16_224", size=32).training, "as timm makes it"
    assert from_timm("vit_tiny_patch16_224", depth=1).model.pos_embed.shape == (1, 1 + 14 * 14, 192), "its own"
    assert from_timm("resnet10t", size=32).settings == {}, "it reads any"
    encoder.save(tmp_path)
    larger = from_timm(f"local-dir:{tmp_path}", pretrained=True, size=64).eval()
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, img_size=64).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(larger(images), theirs(images))


@pytest.mark.usefixtures("timm")
def test_sizes_that_timm_cannot_read():
    encoder = from_timm("vit_tiny_patch16_224", depth=1)
    rule = r"this timm model takes images of 224 px only \(got 32 × 32 px\): use --data.size 224"
    with pytest.raises(InputError, match=rule):
        encoder(torch.zeros(1, 3, 32, 32))
    rule = r"timm cannot build the model for images of 8 px \(got vit_tiny_.*\): use --data.size 224"
    with pytest.raises(InputError, match=rule):
        from_timm("vit_tiny_patch16_224", size=8, depth=1)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("local-dir:nowhere", "nowhere"),
        ("hf-hub:no/such/name", "no/such/name"),   # refused before anything is asked for
        ("elsewhere:resnet18", "elsewhere"),
        ("resnet18.no_such_tag", "no_such_tag"),
    ],
)
@pytest.mark.usefixtures("timm")
def test_a_timm_model_that_cannot_be_loaded(name, why):
    rule = rf"timm cannot load the model \(got {name}: .*{why}.*\): check the name or the folder"
    with pytest.raises(InputError, match=rule):
        from_timm(name)


# --- mistakes ---


NEED = [
    ("transformers", "transformers", lambda: from_transformers("x")),
    ("sentence_transformers", "sentence", lambda: from_sentence_transformers("x")),
    ("open_clip", "open_clip", lambda: from_open_clip("x")),
    ("timm", "timm", lambda: from_timm("x")),
]


@pytest.mark.parametrize(("package", "extra", "make"), NEED)
def test_without_its_library_the_extra_is_named(monkeypatch, package, extra, make):
    monkeypatch.setitem(sys.modules, package, None)   # what a missing package looks like to import
    with pytest.raises(MissingExtra, match=rf"pip install 'matryo\[{extra}\]'"):
        make()


@pytest.mark.parametrize(("package", "extra", "make"), NEED)
@pytest.mark.parametrize("broken", ["import no_such_module", "from sys import no_such_name"])
def test_a_library_that_cannot_be_imported_says_why(monkeypatch, tmp_path, package, extra, make, broken):
    (tmp_path / f"{package}.py").write_text(broken)
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="no_such") as caught:
        make()
    assert not isinstance(caught.value, MissingExtra), f"{extra} is installed"


def test_models_that_cannot_be_loaded(tmp_path):
    pytest.importorskip("sentence_transformers")
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 3}))
    with pytest.raises(InputError, match="transformers cannot load the model"):
        from_transformers(tmp_path)
    with pytest.raises(InputError, match="sentence-transformers cannot load the model"):
        from_sentence_transformers(tmp_path)
