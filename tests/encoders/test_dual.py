"""Two encoders in one space: projections, sharing, and a temperature that can fall no further but can rise again."""

import math

import pytest
import torch

from matryo.encoders import Bert, BertConfig, ConvNet, Dual, Tokens
from matryo.errors import InputError
from matryo.losses import nested_contrastive
from matryo.nesting import Nesting


def text_encoder():
    return Bert(BertConfig.named("bert-tiny", vocab_size=30, max_position_embeddings=8, hidden_dropout_prob=0.0,
                                 attention_probs_dropout_prob=0.0))  # fmt: skip


def pairs():
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(6, 3, 32, 32, generator=generator)
    return images, Tokens(torch.randint(30, (6, 7), generator=generator))


def test_each_side_is_its_encoder_and_its_projection():
    torch.manual_seed(0)
    dual, (images, texts) = Dual(ConvNet(24), text_encoder(), dim=16).eval(), pairs()
    with torch.no_grad():
        a, b = dual((images, texts))
        torch.testing.assert_close(a, dual.queries.encoder(images) @ dual.queries.projection.weight.T)
        torch.testing.assert_close(b, dual.candidates.encoder(texts) @ dual.candidates.projection.weight.T)
        assert torch.equal(dual.embed_queries(images), a)
        assert torch.equal(dual.embed_candidates(texts), b)
    assert (dual.dim, a.shape, b.shape) == (16, (6, 16), (6, 16))


def test_encoders_that_agree_need_no_projection():
    left, right = ConvNet(24), ConvNet(24)
    dual = Dual(left, right)
    assert dual.queries is left
    assert dual.candidates is right
    assert dual.dim == 24


def test_a_siamese_network_shares_everything():
    encoder = text_encoder()
    dual = Dual(encoder, encoder, dim=16)
    assert dual.queries is dual.candidates
    count = sum(parameter.numel() for parameter in encoder.parameters())
    assert sum(parameter.numel() for parameter in dual.parameters()) == count + 16 * encoder.dim + 1


def test_it_learns_to_match_and_its_temperature_moves():
    torch.manual_seed(0)
    dual, (images, texts) = Dual(ConvNet(24, norm="group"), text_encoder(), dim=16, temperature=0.2), pairs()
    assert dual.temperature.item() == pytest.approx(0.2)
    seen, optimizer = [], torch.optim.AdamW(dual.parameters(), lr=3e-3)
    for _ in range(40):
        loss = nested_contrastive(*dual((images, texts)), Nesting([4, 16]), dual.temperature, symmetric=True)
        seen.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert seen[-1] < 0.2 * seen[0]
    assert dual.temperature.item() < 0.2, "what is right is said more firmly"


def test_the_temperature_stops_at_its_floor_and_comes_back():
    dual = Dual(ConvNet(8), ConvNet(8), temperature=0.02)
    dual.temperature.backward()   # a loss that grows with it
    torch.testing.assert_close(dual.logit_scale.grad, torch.tensor(-0.02))   # d exp(-s) / ds
    with torch.no_grad():
        dual.logit_scale.fill_(math.log(200))
    assert dual.temperature.item() == pytest.approx(0.01)
    dual.logit_scale.grad = None
    dual.temperature.backward()
    assert dual.logit_scale.grad == 0, "no further down"
    (-dual.temperature).backward()
    torch.testing.assert_close(dual.logit_scale.grad, torch.tensor(1 / 200), msg="but up again")


def test_mistakes_are_named():
    with pytest.raises(InputError, match=r"different dims need a common dim \(got 24 and 128\): set the dim"):
        Dual(ConvNet(24), text_encoder())
    for temperature in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="temperature must be a positive number"):
            Dual(ConvNet(8), ConvNet(8), temperature=temperature)
