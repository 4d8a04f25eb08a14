"""BERT against transformers' own, token by token; its folders, in both directions; and how it trains."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from matryo.encoders import Bert, BertConfig, Tokens, build_encoder, save_shape
from matryo.errors import InputError

SMALL = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 16,
}
HEADLESS = {"add_pooling_layer": False}


def theirs(seed=0, **changes):
    """A BertModel with weights that all matter."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    model = transformers.BertModel(transformers.BertConfig(**SMALL, **changes)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def texts(lengths=(9, 4, 1, 7), seed=1):
    ids = torch.randint(1, 50, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Tokens(ids.masked_fill(~mask, 0), mask)


def encode_theirs(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_act": "gelu_new"},
        {"hidden_act": "relu"},
        {"hidden_act": "silu"},
        {"layer_norm_eps": 0.1},
        {"type_vocab_size": 1},
    ],
    ids=str,
)
def test_it_is_transformers_bert(changes):
    model, tokens = theirs(**changes), texts()
    bert = Bert(BertConfig.of(model.config.to_dict())).eval()
    bert.load_state_dict({name: value for name, value in model.state_dict().items() if not name.startswith("pooler")})
    wanted = encode_theirs(model, tokens)
    with torch.no_grad():
        torch.testing.assert_close(bert.hidden(tokens)[tokens.mask], wanted[tokens.mask], atol=1e-5, rtol=1e-5)
        means = torch.stack([row[kept].mean(0) for row, kept in zip(wanted, tokens.mask, strict=True)])
        torch.testing.assert_close(bert(tokens), means, atol=1e-5, rtol=1e-5)


def test_without_padding_no_mask_is_needed():
    bert, tokens = Bert(BertConfig(**SMALL)).eval(), texts((6, 6))
    with torch.no_grad():
        torch.testing.assert_close(bert(Tokens(tokens.ids)), bert(tokens))


def test_padding_changes_nothing():
    bert, tokens = Bert(BertConfig(**SMALL)).eval(), texts()
    with torch.no_grad():
        together = bert(tokens)
        for row, length in enumerate(tokens.mask.sum(1).tolist()):
            torch.testing.assert_close(bert(Tokens(tokens.ids[row : row + 1, :length]))[0], together[row])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("pooling", "at"), [("cls", 0), ("last", -1)])
def test_pooling_takes_the_first_or_last_token_that_is_there(pooling, at, side):
    bert, tokens = Bert(BertConfig(**SMALL), pooling=pooling).eval(), texts()
    if side == "left":
        tokens = Tokens(tokens.ids.flip(1), tokens.mask.flip(1))
    with torch.no_grad():
        hidden, z = bert.hidden(tokens), bert(tokens)
        for row, kept in enumerate(tokens.mask):
            assert torch.equal(z[row], hidden[row][kept][at])
        whole = Tokens(tokens.ids)
        assert torch.equal(bert(whole), bert.hidden(whole)[:, at])


def test_an_empty_text_is_zero():
    bert, tokens = Bert(BertConfig(**SMALL)).eval(), texts()
    with torch.no_grad():
        assert not bert(Tokens(tokens.ids, torch.zeros_like(tokens.mask))).any()


# --- folders ---


def test_a_folder_of_transformers_opens_and_goes_home(tmp_path):
    transformers = pytest.importorskip("transformers")
    model, tokens = theirs(hidden_act="gelu_new", layer_norm_eps=1e-5), texts()
    model.save_pretrained(tmp_path / "theirs")
    bert = Bert.open(tmp_path / "theirs", pooling="cls").eval()
    assert bert.config.hidden_act == "gelu_new"
    wanted = encode_theirs(model, tokens)
    with torch.no_grad():
        torch.testing.assert_close(bert.hidden(tokens)[tokens.mask], wanted[tokens.mask], atol=1e-5, rtol=1e-5)
    bert.save(tmp_path / "ours")
    again, report = transformers.BertModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    torch.testing.assert_close(encode_theirs(again.eval(), tokens)[tokens.mask], wanted[tokens.mask])
    assert Bert.open(tmp_path / "ours").pooling == "cls", "it says so itself"


def test_a_masked_language_model_opens_too(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SMALL)).eval()
    model.save_pretrained(tmp_path)
    bert, tokens = Bert.open(tmp_path).eval(), texts()
    with torch.no_grad():
        torch.testing.assert_close(bert.hidden(tokens)[tokens.mask], encode_theirs(model.bert, tokens)[tokens.mask])
    torch.testing.assert_close(bert.words, model.bert.embeddings.word_embeddings.weight)


def test_the_spelling_of_the_first_berts_and_half_precision(tmp_path):
    from safetensors.torch import save_file

    bert = Bert(BertConfig(**SMALL))
    bert.save(tmp_path)
    spelt = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in bert.half().state_dict().items()
    }
    save_file(spelt, tmp_path / "model.safetensors")
    again = Bert.open(tmp_path)
    assert {value.dtype for value in again.state_dict().values()} == {torch.float32}
    assert all(torch.equal(value.half(), bert.state_dict()[name]) for name, value in again.state_dict().items())


@pytest.mark.parametrize(
    ("stated", "pooling"),
    [
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["lasttoken"]}, "last"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
    ],
    ids=str,
)
def test_a_sentence_transformers_folder_says_its_pooling(stated, pooling, tmp_path):
    sentence_folder(tmp_path, stated)
    assert Bert.open(tmp_path).pooling == pooling
    assert Bert.open(tmp_path, pooling="mean").pooling == "mean", "unless told otherwise"


def sentence_folder(path, pooling, extra=()):
    Bert(BertConfig(**SMALL)).save(path / "0_Transformer")
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, **pooling}))
    kinds = ["Transformer", "Pooling", *extra]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": f"{i}_{kind}"} for i, kind in enumerate(kinds)]
    (path / "modules.json").write_text(json.dumps(modules))


def test_what_a_bert_cannot_say_is_left_to_its_library(tmp_path):
    sentence_folder(tmp_path / "dense", {"pooling_mode": "mean"}, extra=["Dense"])
    with pytest.raises(InputError, match=r"one pooling.*got Dense.*sentence-transformers:"):
        Bert.open(tmp_path / "dense")
    sentence_folder(tmp_path / "max", {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True})
    with pytest.raises(InputError, match=r"one pooling.*got pooling by pooling_mode_max_tokens, pooling_mode_mean"):
        Bert.open(tmp_path / "max")
    sentence_folder(tmp_path / "normal", {"pooling_mode": "mean"}, extra=["Normalize"])
    assert Bert.open(tmp_path / "normal").dim == 24


def test_a_shape_is_enough_to_build_it_again(tmp_path):
    Bert(BertConfig(**SMALL, hidden_act="relu"), pooling="cls").save(tmp_path / "source")
    encoder = build_encoder(f"bert:{tmp_path / 'source'}", dim=8)
    save_shape(encoder, tmp_path / "shape")
    assert [path.name for path in (tmp_path / "shape").iterdir()] == ["config.json"]
    again = build_encoder("bert:gone", dim=8, shape=tmp_path / "shape")
    assert (again.encoder.config, again.encoder.pooling) == (encoder.encoder.config, "cls")
    again.load_state_dict(encoder.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(texts()), encoder.eval()(texts()))
    save_shape(build_encoder("convnet"), tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "roberta"}, r"a BERT with absolute positions.*got roberta.*use transformers:"),
        ({"position_embedding_type": "relative_key"}, r"got bert, relative_key"),
        ({"num_hidden_layers": 4}, r"every weight that config.json describes \(got 16 missing and 0 of another shape"),
        ({"vocab_size": 51}, r"0 missing and 1 of another shape, the first is embeddings.word_embeddings.weight"),
        ({"hidden_act": "mish"}, r"unknown hidden_act \(got 'mish'\)"),
        ({"num_attention_heads": 5}, r"multiple of num_attention_heads \(got 24 and 5\)"),
    ],
)
def test_folders_that_hold_something_else(change, message, tmp_path):
    Bert(BertConfig(**SMALL)).save(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(InputError, match=message):
        Bert.open(tmp_path)


def test_folders_without_what_they_need(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the model's settings.*config.json"):
        Bert.open(tmp_path)
    Bert(BertConfig(**SMALL)).save_shape(tmp_path)
    with pytest.raises(InputError, match=r"must be in model.safetensors.*save the model"):
        Bert.open(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(InputError, match=r"must be in model.safetensors"):
        Bert.open(tmp_path)


# --- sizes and training ---


@pytest.mark.parametrize(("name", "count"), [("bert-tiny", 4_369_408), ("bert-base", 108_891_648)])
def test_the_named_sizes_have_googles_number_of_parameters(name, count):
    """The published counts less the pooler, d² + d: 4,385,920 for tiny and 109,482,240 for base."""
    with torch.device("meta"):
        bert = build_encoder(name)
    assert sum(parameter.numel() for parameter in bert.parameters()) == count


def test_first_weights_are_drawn_as_berts():
    torch.manual_seed(0)
    bert = Bert(BertConfig.named("bert-mini", vocab_size=1000))
    weight = bert.words.detach()
    assert weight.abs().max() <= 0.04
    # The spread of a normal one cut at two deviations.
    assert weight.std().item() == pytest.approx(0.02 * 0.8796, rel=0.02)
    for name, value in bert.named_parameters():
        if name.endswith("bias"):
            assert not value.any()
        elif "LayerNorm" in name:
            assert (value == 1).all()


def test_it_learns_in_bfloat16():
    torch.manual_seed(0)
    bert = build_encoder("bert-tiny", vocabulary=50, length=16, dropout=0.0)
    tokens, target = texts((8, 5, 3, 8)), torch.tensor([0, 1, 2, 3])
    seen, optimizer = [], torch.optim.AdamW(bert.parameters(), lr=1e-3)
    for _ in range(30):
        with torch.autocast("cpu", torch.bfloat16):
            z = bert(tokens)
        loss = F.cross_entropy(z[:, :4].float(), target)
        optimizer.zero_grad()
        loss.backward()
        unused = [name for name, value in bert.named_parameters() if value.grad is None]
        assert not unused
        optimizer.step()
        seen.append(loss.item())
    assert seen[-1] < 0.1 * seen[0]


def test_dropout_is_the_configs_and_only_in_training():
    tokens = texts()
    still = build_encoder("bert-tiny", vocabulary=50, dropout=0.0).train()
    torch.testing.assert_close(still(tokens), still(tokens))
    moving = build_encoder("bert-tiny", vocabulary=50).train()
    assert moving.config.attention_probs_dropout_prob == moving.config.hidden_dropout_prob == 0.1
    assert not torch.allclose(moving(tokens), moving(tokens))
    attention = Bert(BertConfig(**SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.9)).train()
    assert not torch.allclose(attention(tokens), attention(tokens))
    torch.testing.assert_close(moving.eval()(tokens), moving(tokens))


def test_the_dropout_of_a_folder_can_be_another(tmp_path):
    Bert(BertConfig(**SMALL, hidden_dropout_prob=0.3)).save(tmp_path)
    assert Bert.open(tmp_path).config.hidden_dropout_prob == 0.3
    still = build_encoder(f"bert:{tmp_path}", dropout=0.0).train()
    torch.testing.assert_close(still(texts()), still(texts()))


def test_a_tokenizer_must_fit_the_model(tmp_path):
    Bert(BertConfig(**SMALL)).save(tmp_path)
    build_encoder(f"bert:{tmp_path}", vocabulary=50)
    with pytest.raises(InputError, match=r"more tokens than the model's 50 \(got 51\): use the tokenizer"):
        build_encoder(f"bert:{tmp_path}", vocabulary=51)


def test_it_compiles_to_one_graph():
    bert, graphs = Bert(BertConfig(**SMALL)).eval(), []

    def as_it_is(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(bert, backend=as_it_is, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(texts()), bert(texts()))
    assert len(graphs) == 1


def test_a_text_longer_than_the_positions_is_refused():
    with pytest.raises(InputError, match=r"at most 16 tokens \(got 17\): truncate it"):
        Bert(BertConfig(**SMALL))(Tokens(torch.ones(1, 17, dtype=torch.int64)))
    with pytest.raises(InputError, match=r"unknown pooling \(got 'max'\): choose one of mean, cls, last"):
        Bert(BertConfig(**SMALL), pooling="max")
