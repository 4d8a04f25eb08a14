"""Encoders cut after fewer layers: one pass over all of them gives what each cut encoder gives, with shared weights."""

import pytest
import torch

from matryo.encoders import Bert, BertConfig, Projected, Tokens, build_encoder, cut, depth_of, vit
from matryo.encoders.bert.packed import PackedBert
from matryo.errors import InputError

CONFIG = BertConfig.named("bert-mini", vocab_size=50, max_position_embeddings=16)


def texts():
    ids = torch.randint(50, (3, 9))
    return Tokens(ids, torch.arange(9) < torch.tensor([[9], [4], [1]]))


CASES = {
    "bert mean": lambda: (Bert(CONFIG), texts()),
    "bert cls": lambda: (Bert(CONFIG, pooling="cls"), texts()),
    "bert last": lambda: (Bert(CONFIG, pooling="last"), texts()),
    "projected": lambda: (Projected(Bert(CONFIG), 24, neck="linear+layer"), texts()),
    "vit": lambda: (vit("vit-ti16", size=32), torch.randn(2, 3, 32, 32)),
    "vit mean": lambda: (vit("vit-ti16", size=32, pooling="mean"), torch.randn(2, 3, 32, 32)),
}


@pytest.mark.parametrize("case", CASES)
def test_one_pass_gives_the_embedding_of_every_cut_encoder(case):
    torch.manual_seed(0)
    encoder, inputs = CASES[case]()
    encoder.eval()
    most = depth_of(encoder)
    assert most == (12 if "vit" in case else 4)
    with torch.no_grad():
        after = encoder(inputs, range(1, most + 1))
        assert after.shape == (most, len(encoder(inputs)), encoder.dim)
        for layers, z in enumerate(after, 1):
            torch.testing.assert_close(cut(encoder, layers)(inputs), z)
        torch.testing.assert_close(encoder(inputs), after[-1])
        torch.testing.assert_close(encoder(inputs, [1, 3]), after[[0, 2]])
    assert (after[0] - after[-1]).abs().max() > 1e-3


@pytest.mark.parametrize("case", ["bert mean", "projected", "vit"])
def test_a_cut_encoder_shares_the_weights_and_leaves_the_whole_one_alone(case):
    encoder, inputs = CASES[case]()
    names = [*encoder.state_dict()]
    shallow = cut(encoder, 2)
    own = dict(encoder.named_parameters())
    assert {*dict(shallow.named_parameters())} < {*own}
    assert all(value is own[name] for name, value in shallow.named_parameters())
    assert [*encoder.state_dict()] == names
    assert (depth_of(shallow), depth_of(encoder)) == (2, 12 if case == "vit" else 4)
    shallow(inputs).sum().backward()
    assert any(value.grad is not None for value in encoder.parameters())


def test_a_cut_bert_is_a_bert_everywhere():
    """Its folder and the server's packed batches stop after the same layer."""
    bert = cut(Bert(CONFIG).eval(), 2)
    assert bert.config.num_hidden_layers == 2
    ids = torch.randint(50, (1, 9))
    with torch.no_grad():
        torch.testing.assert_close(PackedBert(bert)(ids[0], torch.tensor([9])), bert(Tokens(ids)))


def test_a_compiled_encoder_is_cut_too():
    encoder = Bert(CONFIG).eval()
    encoder._compiled_call_impl = lambda *_: pytest.fail("the whole encoder was called")
    assert cut(encoder, 1)(texts()).shape == (3, 256)


def test_depth_builds_the_first_layers():
    torch.manual_seed(0)
    whole = build_encoder("bert-mini", vocabulary=50)
    torch.manual_seed(0)
    first = build_encoder("bert-mini", vocabulary=50, depth=3)
    assert depth_of(first) == 3
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in first.state_dict().items())


@pytest.mark.parametrize(
    ("name", "depth", "message"),
    [
        ("convnet", 2, r"no layers to cut \(got ConvNet\): use a BERT"),
        ("resnet18", 2, r"no layers to cut \(got ResNet\)"),
        ("bert-mini", 5, r"at most the encoder's 4 \(got 5\): use 1 to 4"),
        ("vit-ti8", -1, "layers"),
    ],
)
def test_what_cannot_be_cut_is_refused(name, depth, message):
    with pytest.raises(InputError, match=message):
        build_encoder(name, depth=depth, size=32)
