"""A step in parts has the gradient of the whole, whatever the inputs are."""

import pytest
import torch

from matryo.encoders import Tokens
from matryo.training.batches.masking import IGNORED, MaskedText
from matryo.training.distributed import Group
from matryo.training.model import build_model
from matryo.training.optim import make_optimizer
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override
from matryo.training.step import _chunks, make_step

SMALL = {
    "encoder.name": "bert-tiny", "encoder.dropout": "0", "text.length": "16", "head.dims": "8,128", "loop.batch": "8",
    "loop.precision": "fp32", "optim.lr": "0.1", "optim.momentum": "0",
}  # fmt: skip


def inputs(kind):
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(30, (8, 12), generator=source)
    if kind == "classify":
        return Tokens(ids, torch.arange(12) < torch.arange(5, 13)[:, None]), torch.arange(8) % 3
    target = torch.randint(30, (8, 2), generator=source)
    if kind == "uneven":   # the first texts ask for nothing, others for one word or two
        target[:3] = target[5, 1] = IGNORED
    return MaskedText(Tokens(ids), torch.tensor([[1, 5]]).expand(8, -1)), target


@pytest.mark.parametrize("kind", ["classify", "masked", "uneven"])
def test_parts_give_the_step_of_the_whole(kind):
    found, objective = [], "classify" if kind == "classify" else "masked"
    for parts in (1, 4):
        changes = {"objective.kind": objective, "head.kind": "tied", "loop.parts": str(parts)}
        recipe = override(Recipe(), {**SMALL, **changes})
        model = build_model(recipe, 3, vocabulary=30)
        step = make_step(model, make_optimizer(model, recipe), recipe, Group(0, 1, torch.device("cpu")))
        z, losses = step(*inputs(kind), 0.1)
        found.append((z, losses, dict(model.named_parameters())))
    (z, losses, weights), (z_parts, losses_parts, in_parts) = found
    torch.testing.assert_close(z_parts, z, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(losses_parts, losses, atol=1e-5, rtol=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(in_parts[name], value, atol=1e-5, rtol=1e-4)


def test_inputs_are_cut_along_their_first_axis_and_stay_what_they_are():
    text, _ = inputs("masked")
    parts = list(_chunks((text, torch.arange(8), None), 4))
    assert len(parts) == 4
    masked, numbers, nothing = parts[1]
    assert type(masked) is MaskedText
    assert torch.equal(masked.tokens.ids, text.tokens.ids[2:4])
    assert masked.tokens.mask is None
    assert numbers.tolist() == [2, 3]
    assert nothing is None
    assert IGNORED < 0


def test_a_groups_share_multiplies_the_rate():
    recipe = override(Recipe(), {**SMALL, "optim.encoder_share": "0.5"})
    model = build_model(recipe, 3, vocabulary=30)
    optimizer = make_optimizer(model, recipe)
    make_step(model, optimizer, recipe, Group(0, 1, torch.device("cpu")))(*inputs("classify"), 0.2)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [0.1, 0.2]


def test_parts_of_a_slimmable_network_are_put_together():
    changes = {"encoder.name": "resnet18", "head.kind": "slimmable", "head.dims": "", "loop.parts": "4"}
    recipe = override(Recipe(), {**SMALL, **changes})
    model = build_model(recipe, 3)
    step = make_step(model, make_optimizer(model, recipe), recipe, Group(0, 1, torch.device("cpu")))
    target = torch.arange(8) % 3
    z, _ = step(torch.randn(8, 3, 16, 16), target, 0.1)
    assert model.hits(z, target).shape == (len(model.nesting),)


@pytest.mark.parametrize("before", [0, 1])   # the first step fills the buffers of an optimiser
@pytest.mark.parametrize("name", ["sgd", "adamw", "adafactor", "muon"])
@pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
def test_a_step_without_a_finite_gradient_is_as_if_it_had_never_been(name, wrong, before):
    changes = {"optim.clip": "1", "optim.name": name, "optim.momentum": "0.9", "optim.lr": "0.01"}
    recipe = override(Recipe(), {**SMALL, **changes})
    found = []
    for lost in (False, True):
        model = build_model(recipe, 3, vocabulary=30)
        optimizer = make_optimizer(model, recipe)
        step = make_step(model, optimizer, recipe, Group(0, 1, torch.device("cpu")))
        for _ in range(before):
            step(*inputs("classify"), 0.01)
        if lost:
            hook = next(model.parameters()).register_hook(lambda gradient: gradient * wrong)
            step(*inputs("classify"), 0.01)
            hook.remove()
            assert step.skipped_steps() == (1, 1)
        step(*inputs("classify"), 0.01)
        assert step.skipped_steps() == (0, 0)
        found.append((dict(model.named_parameters()), optimizer.state_dict()["state"]))
    (weights, state), (weights_after, state_after) = found
    assert all(torch.equal(weights_after[key], value) for key, value in weights.items())
    for index, parts in state.items():
        assert all(torch.equal(state_after[index][key], value) for key, value in parts.items()), index


def test_no_step_is_left_out_without_clipping_or_with_statistics_that_would_be_lost():
    cases = [({}, False), ({"optim.clip": "1"}, True), ({"encoder.name": "resnet18", "optim.clip": "1"}, False)]
    for changes, expected in cases:
        recipe = override(Recipe(), {**SMALL, "head.dims": "8,16", **changes})
        model = build_model(recipe, 3, vocabulary=30)
        step = make_step(model, make_optimizer(model, recipe), recipe, Group(0, 1, torch.device("cpu")))
        assert step.may_skip is expected
