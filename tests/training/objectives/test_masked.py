"""The masked model against transformers' arithmetic written out: at dim m only the first m columns are read."""

import pytest
import torch
from torch.nn import functional as F

from matryo import Nesting
from matryo.encoders import Bert, BertConfig, ConvNet, Tokens
from matryo.errors import RecipeError
from matryo.training.batches.masking import IGNORED, MaskedText
from matryo.training.objectives.masked import MaskedModel

VOCABULARY = 50


def model(dims=(8, 32, 128), seed=0, gain=1.0):
    torch.manual_seed(seed)
    config = BertConfig.named("bert-tiny", vocab_size=VOCABULARY, max_position_embeddings=16)
    made = MaskedModel(Bert(config), Nesting(dims), gain)
    torch.nn.init.normal_(made.bias)
    return made.double().eval()


def batch(seed=0):
    source = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (4, 12), generator=source)
    places = torch.stack([torch.randperm(12, generator=source)[:3] for _ in range(4)])
    target = torch.randint(VOCABULARY, (4, 3), generator=source)
    target[0, 2] = target[3, 1] = IGNORED
    return MaskedText(Tokens(ids), places), target


def logits_at(made, inputs, row, column, dim):
    """One hidden word's logits, the way Devlin et al. have it, with the last columns cut away."""
    hidden = made.encoder.hidden(inputs.tokens)[row, inputs.places[row, column]]
    dense = made.transform.dense
    x = F.gelu(dense.weight @ hidden + dense.bias)
    x = (x - x.mean()) / (x.var(unbiased=False) + 1e-12).sqrt() * made.transform.LayerNorm.weight
    x = x + made.transform.LayerNorm.bias
    words = made.encoder.embeddings.word_embeddings.weight
    return torch.stack([words[v, :dim] @ x[:dim] + made.bias[v] for v in range(VOCABULARY)])


def test_the_loss_is_that_of_a_plain_loop():
    made, (inputs, target) = model(), batch()
    with torch.no_grad():
        z, losses = made(inputs, target)
        right = made.hits(z, target)
        for i, dim in enumerate(made.nesting.dims):
            found = []
            for row in range(4):
                for column in range(3):
                    word = target[row, column]
                    if word != IGNORED:
                        scores = logits_at(made, inputs, row, column, dim)
                        found.append((-scores.log_softmax(0)[word], scores.argmax() == word))
            assert len(found) == 10
            assert losses[i].item() == pytest.approx(sum(float(loss) for loss, _ in found) / 10, abs=1e-9)
            assert right[i].item() == pytest.approx(sum(bool(hit) for _, hit in found) / 10)


def test_a_fixed_model_uses_only_the_first_columns():
    made, (inputs, target) = model(dims=(8,)), batch()
    made(inputs, target)[1].sum().backward()
    assert made.transform.LayerNorm.weight.grad[8:].abs().max() == 0
    assert made.transform.LayerNorm.weight.grad[:8].abs().min() > 0
    with torch.no_grad():   # the output columns beyond do not exist for it
        before = made(inputs, target)[1]
        made.transform.LayerNorm.weight[8:] = 7
        made.transform.LayerNorm.bias[8:] = -7
        assert torch.equal(made(inputs, target)[1], before)


def test_nested_and_fixed_begin_alike():
    nested, fixed = model(gain=4.0).state_dict(), model(dims=(8,), gain=4.0).state_dict()
    assert all(torch.equal(value, fixed[name]) for name, value in nested.items())
    assert (nested["transform.LayerNorm.weight"] == 4).all()   # no dim is preferred


def test_the_words_are_learned_from_both_ends():
    """The embedding of words is input and output at once: one parameter, with the gradient of both."""
    made, (inputs, target) = model(), batch()
    names = [name for name, value in made.named_parameters() if len(value) == VOCABULARY]
    assert names == ["bias", "encoder.embeddings.word_embeddings.weight"]
    made(inputs, target)[1].sum().backward()
    absent = sorted(set(range(VOCABULARY)) - set(inputs.tokens.ids.flatten().tolist()))
    assert made.words.grad[absent].abs().min() > 0   # words that were not read are still told apart


def test_an_embedding_is_the_pooled_transform():
    made, (inputs, _) = model(dims=(8, 32)), batch()
    mask = torch.ones(4, 12, dtype=torch.bool)
    mask[1, 5:] = False
    with torch.no_grad():
        z = made.embed(Tokens(inputs.tokens.ids, mask))
        each = made.transform(made.encoder.hidden(Tokens(inputs.tokens.ids, mask)))
    assert z.shape == (4, 32)
    torch.testing.assert_close(z[1], each[1, :5].mean(0)[:32].float())


def test_an_encoder_without_words_is_named():
    with pytest.raises(RecipeError, match=r"an encoder with a word embedding.*got ConvNet.*encoder.dim 0"):
        MaskedModel(ConvNet(16), Nesting([16]))
