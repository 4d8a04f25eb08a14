"""The model of pairs against the loss written out; one encoder or two, a temperature that may be learned, a teacher."""

import math

import pytest
import torch
from torch.nn import functional as F

from matryo import Nesting, truncate
from matryo.encoders import Bert, BertConfig, ConvNet, Dual, Tokens
from matryo.losses.distil import distil_by_dim
from matryo.training.model import build_model, freeze_before
from matryo.training.objectives.base import embed_side
from matryo.training.objectives.pairs import DistilledModel, PairModel
from matryo.training.recipe.fields import Objective

NESTING = Nesting([8, 32, 128])


def bert(seed=0):
    torch.manual_seed(seed)
    return Bert(BertConfig.named("bert-tiny", vocab_size=50, max_position_embeddings=16)).eval()


def dual(seed=0):
    torch.manual_seed(seed)
    return Dual(ConvNet(24), bert(), 128, temperature=0.1).eval()


def tokens(count, seed=0):
    return Tokens(torch.randint(50, (count, 9), generator=torch.Generator().manual_seed(seed)))


def images(count):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("towers", ["one", "two"])
def test_the_loss_is_cross_entropy_of_cosines_at_every_dim(towers, symmetric):
    encoder = bert() if towers == "one" else dual()
    model = PairModel(encoder, NESTING, Objective(kind="pairs", temperature=0.1, symmetric=symmetric))
    asked, found = (tokens(4) if towers == "one" else images(4)), tokens(4 + 6, seed=1)   # with six hard negatives
    with torch.no_grad():
        z, losses = model((asked, found), torch.arange(4))
        a, b = embed_side(encoder, asked), encoder(found) if towers == "one" else encoder.candidates(found)
        assert torch.equal(z, torch.stack([a, b[:4]]))
        for dim, loss, right in zip(NESTING.dims, losses, model.hits(z, torch.arange(4)), strict=True):
            cosines = truncate(a, dim) @ truncate(b, dim).T / 0.1
            wanted = F.cross_entropy(cosines, torch.arange(4))
            if symmetric:
                wanted = (wanted + F.cross_entropy(cosines[:, :4].T, torch.arange(4))) / 2
            torch.testing.assert_close(loss, wanted, atol=1e-5, rtol=1e-5)
            assert right == (cosines[:, :4].argmax(1) == torch.arange(4)).float().mean()


@pytest.mark.parametrize("make", [bert, dual])
@pytest.mark.parametrize("learned", [False, True])
def test_the_temperature_is_learned_if_asked_for_however_much_is_frozen(make, learned):
    model = PairModel(make(), NESTING, Objective(kind="pairs", temperature=0.1, learn_temperature=learned))
    assert model.temperature.item() == pytest.approx(0.1)
    freeze_before(model.encoder, "none")
    for parameter in model.always_trained():
        parameter.requires_grad_(True)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert {name.rpartition(".")[2] for name in trained} == ({"logit_scale"} if learned else set())
    inputs = tokens(4) if make is bert else images(4)
    if learned:
        _, losses = model((inputs, tokens(4, seed=1)), torch.arange(4))
        model.weigh(losses).backward()
        (scale,) = (value for value in model.parameters() if value.requires_grad)
        assert scale.grad is not None


def test_a_mirrored_image_is_averaged_and_a_text_has_no_mirror():
    model = PairModel(dual(), Nesting([8, 64]), Objective(kind="pairs"))
    with torch.no_grad():
        plain, mirrored = model.embed(images(3)), model.embed(images(3).flip(-1))
        torch.testing.assert_close(model.embed(images(3), flip=True), (plain + mirrored) / 2)
        assert torch.equal(model.embed(tokens(3), flip=True), model.embed(tokens(3)))
    assert plain.shape == (3, 64)


class Counted:
    """A teacher that counts how often it is asked."""

    def __init__(self, encoder):
        self.encoder, self.asked = encoder, 0

    def __call__(self, inputs):
        self.asked += 1
        with torch.no_grad():
            return self.encoder(inputs)


def test_a_teacher_is_asked_once_a_batch_and_is_no_part_of_the_model():
    objective = Objective(kind="distil", teacher="x", temperature=0.1)
    model, teacher = DistilledModel(bert(), NESTING, objective), Counted(bert(1))
    before = set(model.state_dict())
    model.taught_by = (teacher,)
    assert set(model.state_dict()) == before
    z, losses = model(tokens(5), torch.zeros(5))
    assert teacher.asked == 1
    torch.testing.assert_close(losses, distil_by_dim(z, teacher(tokens(5)), NESTING, 0.1))
    teacher.asked = 0
    a, losses = model((tokens(5), tokens(7, seed=1)), torch.zeros(5))
    assert teacher.asked == 2   # once a side
    b, known = model.encoder(tokens(7, seed=1)), teacher(tokens(7, seed=1))
    wanted = distil_by_dim(a, teacher(tokens(5)), NESTING, 0.1, candidates=b, teacher_candidates=known)
    torch.testing.assert_close(losses, wanted)
    assert len(model.hits(a, torch.zeros(5))) == 0


def test_the_teacher_adds_to_the_pairs_by_its_weight():
    parts = []
    for weight in (0.0, 2.0):
        model = PairModel(bert(), NESTING, Objective(kind="pairs", teacher="x", distil=weight))
        model.taught_by = (Counted(bert(1)),)
        parts.append(model((tokens(5), tokens(5, seed=1)), torch.arange(5))[1])
    own = DistilledModel(bert(), NESTING, Objective(kind="distil", teacher="x"))
    own.taught_by = (Counted(bert(1)),)
    torch.testing.assert_close(parts[1] - parts[0], 2 * own((tokens(5), tokens(5, seed=1)), torch.arange(5))[1])


def test_a_student_that_is_its_teacher_has_no_loss():
    model = DistilledModel(bert(), Nesting([128]), Objective(kind="distil", teacher="x"))
    model.taught_by = (Counted(bert()),)
    _, losses = model(tokens(6), torch.zeros(6))
    assert losses.abs().max() < 1e-5


def test_the_recipe_says_which_model_is_built():
    from texts_made import recipe

    kinds = {
        "Classifier": {},
        "MaskedModel": {"objective__kind": "masked", "head__kind": "tied"},
        "PairModel": {"objective__kind": "pairs"},
        "DistilledModel": {"objective__kind": "distil", "objective__teacher": "x"},
    }
    for name, changes in kinds.items():
        made = build_model(recipe(**changes), 3, vocabulary=50)
        assert type(made).__name__ == name
        assert made.nesting.dims == (8, 32, 128)
        assert len(made.encoder.words) == 50
    two = build_model(recipe(objective__kind="pairs", text__encoder="bert-tiny", encoder__name="convnet",
                             encoder__dim=128), vocabulary=50)  # fmt: skip
    assert isinstance(two.encoder, Dual)
    assert math.isclose(two.temperature.item(), 0.05, rel_tol=1e-5)
