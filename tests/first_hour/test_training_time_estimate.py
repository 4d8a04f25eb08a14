"""Before a long training on a CPU starts, one line says how long it takes and what is quicker."""

import pytest

pytest.importorskip("torch")

import torch

from matryo.training.distributed import Group
from matryo.training.estimate import estimated_step, too_slow
from matryo.training.interrupt import stopping_text
from matryo.training.model import build_model
from matryo.training.optim import make_optimizer
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override
from matryo.training.step import make_step


def recipe(**changes):
    return override(Recipe(), {name.replace("__", "."): str(value) for name, value in changes.items()})


def test_the_line_gives_the_time_and_smaller_choices():
    made = recipe(encoder__name="resnet18")
    assert too_slow(20.0, 1740, made, reads_texts=False) == (
        "this CPU needs about 9.7 hours for 1,740 steps of 20 s; for a shorter training use --encoder.name convnet, "
        "fewer --loop.epochs or a smaller --data.size, or train on a GPU"
    )
    assert too_slow(1.0, 1740, made, reads_texts=False) == ""
    text = too_slow(2.0, 2000, recipe(encoder__name="bert-tiny", loop__steps=2000), reads_texts=True)
    assert "67 minutes" in text
    assert "use fewer --loop.steps or a smaller --text.length" in text


def test_timing_a_step_leaves_the_model_unchanged():
    made = recipe(encoder__dim=8, data__size=8)
    model = build_model(made, 3).train()
    step = make_step(model, make_optimizer(model, made), made, Group(0, 1, torch.device("cpu")))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = torch.randn(32, 3, 8, 8)
    random = torch.get_rng_state()
    seconds = estimated_step(step, images, torch.zeros(32, dtype=torch.int64))
    assert seconds > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert not step.optimizer.state


def test_ctrl_c_says_how_long_the_running_step_takes():
    assert stopping_text(19.6) == (
        "stopping after this step (about 20 s) and saving; press Ctrl-C again to stop now without saving"
    )
    assert stopping_text(0).startswith("stopping after this step and saving")
