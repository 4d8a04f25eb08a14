"""The schedule against numpy's interpolation, the parameter groups against the modules, the average against a loop."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from matryo.encoders import build_encoder
from matryo.training.model import build_model, freeze_before
from matryo.training.optim import learning_rate, make_optimizer, moving_average
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import load_recipe, override


def recipe(**changes):
    return override(Recipe(), {name.replace("__", "."): str(value) for name, value in changes.items()})


def rates(made, steps, batch=256):
    return np.array([learning_rate(made, step, steps, batch) for step in range(made.loop.epochs * steps)])


# --- the learning rate ---


@pytest.mark.parametrize("peak", [0, 1, 2.5, 4, 9.99])
@pytest.mark.parametrize("steps", [1, 7, 100])
def test_the_triangle_is_two_straight_lines(peak, steps):
    made = recipe(optim__lr=0.3, optim__peak=peak, loop__epochs=10)
    total = 10 * steps
    # Zero one step before the first, the top at the peak, zero one step after the last.
    wanted = np.interp(np.arange(total), [-1, peak * steps, total], [0, 0.3, 0])
    if total - peak * steps >= 1:
        np.testing.assert_allclose(rates(made, steps), wanted, rtol=1e-12)
    assert (rates(made, steps) > 0).all()
    assert (rates(made, steps) <= 0.3).all()


@pytest.mark.parametrize("schedule", ["triangular", "cosine"])
@pytest.mark.parametrize(("epochs", "peak"), [(1, 0.5), (3, 3), (2, 5), (30, 2)])
def test_the_rate_is_never_negative_and_the_last_step_counts(schedule, epochs, peak):
    made = recipe(optim__lr=0.3, optim__schedule=schedule, optim__peak=peak, loop__epochs=epochs)
    found = rates(made, 9)
    assert (found > 0).all()
    assert (found <= 0.3).all()
    if peak < epochs:
        assert found[-1] == found[int(9 * peak) :].min() < 0.25 * found.max()


def test_the_cosine_falls_from_the_peak_to_zero_in_half_a_wave():
    made = recipe(optim__lr=0.2, optim__schedule="cosine", optim__peak=2, loop__epochs=12)
    found, total, peak = rates(made, 10), 120, 20
    np.testing.assert_allclose(found[:peak], np.interp(np.arange(peak), [-1, peak], [0, 0.2]))
    for step in range(peak, total):
        angle = math.pi * (step - peak) / (total - peak)
        assert found[step] == pytest.approx(0.2 * (1 + math.cos(angle)) / 2)
    assert found[peak] == pytest.approx(0.2)
    assert found[70] == pytest.approx(0.1)   # half way


def test_the_rate_scales_with_the_global_batch():
    made = load_recipe("imagenet-rn50-mrl")
    steps = 1_281_167 // 512
    top = max(learning_rate(made, step, steps, 512) for step in (2 * steps - 1, 2 * steps))
    assert top == pytest.approx(0.475)
    for step in (0, 1000, 2 * steps, 30 * steps):
        one = learning_rate(made, step, steps, 512)
        assert learning_rate(made, step, steps, 2048) == pytest.approx(4 * one)   # the eight GPUs of FFCV: 1.9
        assert learning_rate(made, step, steps, 256) == pytest.approx(one / 2)
    unscaled = recipe(optim__lr=0.3)
    assert learning_rate(unscaled, 5, 10, 64) == learning_rate(unscaled, 5, 10, 4096)


# --- parameter groups ---

NORMS = ("BatchNorm", "GroupNorm", "LayerNorm")


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("encoder", ["convnet", "resnet18"])
def test_norm_layers_do_not_decay_and_everything_else_does(encoder, norm, name):
    made = recipe(encoder__name=encoder, encoder__norm=norm, optim__weight_decay=0.02, optim__name=name)
    model = build_model(made, classes=3)
    decay = {}
    for group in make_optimizer(model, made).param_groups:
        for parameter in group["params"]:
            assert id(parameter) not in decay
            decay[id(parameter)] = group["weight_decay"]
    count = 0
    for path, module in model.named_modules():
        is_norm = type(module).__name__.startswith(NORMS)
        for key, parameter in module.named_parameters(recurse=False):
            assert decay[id(parameter)] == (0.0 if is_norm else 0.02), f"{path}.{key}"
            count += 1
    assert count == len(decay) == len(list(model.parameters()))
    assert set(decay.values()) == {0.0, 0.02}


def test_layer_norms_do_not_decay():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    groups = make_optimizer(model, recipe()).param_groups
    for part, group in zip(model, groups, strict=True):
        assert [id(p) for p in group["params"]] == [id(p) for p in part.parameters()]
    assert groups[1]["weight_decay"] == 0


def test_matrices_decay_whatever_libraries_call_them():
    parts = {"attention": nn.MultiheadAttention(4, 2), "words": nn.Embedding(3, 4), "norm": nn.RMSNorm(4)}
    model = nn.ModuleDict(parts)
    model.text_projection, model.pos_embed = nn.Parameter(torch.zeros(4, 4)), nn.Parameter(torch.zeros(1, 9, 4))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = make_optimizer(model, recipe(optim__weight_decay=0.1, optim__decay="matrices")).param_groups
    decayed = {names[id(one)] for group in groups if group["weight_decay"] for one in group["params"]}
    assert decayed == {"attention.in_proj_weight", "attention.out_proj.weight", "text_projection"}
    most = make_optimizer(nn.RMSNorm(4), recipe(optim__weight_decay=0.1)).param_groups
    assert [group["weight_decay"] for group in most] == [0]


def test_frozen_parameters_are_left_out():
    model = build_model(recipe(encoder__name="resnet18"), classes=3)
    freeze_before(model.encoder, "layer4.1.conv2")
    given = {id(p) for group in make_optimizer(model, recipe()).param_groups for p in group["params"]}
    wanted = [model.encoder.layer4[1].conv2, model.encoder.layer4[1].bn2, model.head]
    assert given == {id(p) for module in wanted for p in module.parameters()}


def test_the_options_of_the_recipe_arrive():
    model = build_encoder("convnet")
    sgd = make_optimizer(model, recipe(optim__momentum=0.8, optim__nesterov="true"))
    assert isinstance(sgd, torch.optim.SGD)
    assert all(group["momentum"] == 0.8 and group["nesterov"] for group in sgd.param_groups)
    adam = make_optimizer(model, recipe(optim__name="adamw", optim__momentum=0.85, optim__beta2=0.98))
    assert isinstance(adam, torch.optim.AdamW)
    assert all(group["betas"] == (0.85, 0.98) for group in adam.param_groups)


def test_a_step_of_sgd_is_the_formula():
    """v ← 0.9 v + (g + w λ); w ← w − lr v, where norms have λ = 0."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4)).double()
    optimizer = make_optimizer(model, recipe(optim__lr=0.1, optim__momentum=0.9, optim__weight_decay=0.5))
    weights = [p.detach().clone() for p in model.parameters()]
    speeds = [torch.zeros_like(w) for w in weights]
    rng = torch.Generator().manual_seed(0)
    for _ in range(3):
        for i, (parameter, decay) in enumerate(zip(model.parameters(), (0.5, 0.0, 0.0), strict=True)):
            parameter.grad = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
            speeds[i] = 0.9 * speeds[i] + parameter.grad + decay * weights[i]
            weights[i] = weights[i] - 0.1 * speeds[i]
        optimizer.step()
    for parameter, wanted in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(parameter.detach(), wanted)


# --- the average of the weights ---


def test_the_average_equals_a_plain_loop_and_integers_are_copied():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).double()
    average = moving_average(model, decay=0.7)
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    for step in range(40):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        model(torch.randn(2, 3, 5, 5, dtype=torch.float64))   # moves the running statistics
        average.update_parameters(model)
        decay = min(0.7, (1 + step) / (10 + step))
        for name, value in model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                plain[name] = value.clone()
            else:
                plain[name] = decay * plain[name] + (1 - decay) * value
    assert average.module.state_dict().keys() == model.state_dict().keys()
    assert int(average.module.state_dict()["1.num_batches_tracked"]) == 40
    assert average.module.state_dict()["1.num_batches_tracked"].dtype == torch.int64
    for name, value in plain.items():
        torch.testing.assert_close(average.module.state_dict()[name], value)
    assert not torch.equal(average.module.state_dict()["1.running_mean"], model[1].running_mean)


def test_the_average_lives_apart_from_the_model():
    model = nn.Linear(3, 3)
    average = moving_average(model, decay=0.9)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model.weight.zero_()
    assert torch.equal(average.module.state_dict()["weight"], before["weight"])
    average.update_parameters(model)
    assert torch.equal(model.weight, torch.zeros(3, 3)), "updating the average leaves the model alone"
    assert not any(value.requires_grad for value in average.module.state_dict().values())


def test_a_constant_model_is_its_own_average():
    model = nn.Linear(3, 3)
    average = moving_average(model, decay=0.99)
    for _ in range(5):
        average.update_parameters(model)
    assert torch.equal(average.module.state_dict()["weight"], model.weight)


# --- texts: warm-up in steps, and what does not decay ---


def test_warm_up_and_length_can_be_counted_in_steps():
    made = recipe(optim__lr=0.4, optim__warmup=10, loop__steps=50, loop__epochs=3, optim__peak=7)
    found = [learning_rate(made, step, 20, 256) for step in range(50)]
    np.testing.assert_allclose(found, np.interp(np.arange(50), [-1, 10, 50], [0, 0.4, 0]), rtol=1e-12)


def text_model(**changes):
    return build_model(recipe(encoder__name="bert-tiny", head__dims="8,128", **changes), 3, vocabulary=40)


def decays(model, made):
    return {id(p): group["weight_decay"] for group in make_optimizer(model, made).param_groups for p in group["params"]}


def test_matrices_decay_and_nothing_else():
    model = text_model()
    made = recipe(optim__name="adamw", optim__weight_decay=0.1, optim__decay="matrices")
    decay = decays(model, made)
    for name, parameter in model.named_parameters():
        spared = "bias" in name or "LayerNorm" in name or "embeddings" in name
        assert decay[id(parameter)] == (0.0 if spared else 0.1), name
    image = build_model(recipe(encoder__name="vit-ti16", data__size=32), 3)
    decay = decays(image, made)
    for name in ("encoder.cls_token", "encoder.pos_embed", "encoder.blocks.0.attn.qkv.bias"):
        assert decay[id(image.get_parameter(name))] == 0.0
    assert decay[id(image.get_parameter("encoder.patch_embed.proj.weight"))] == 0.1
    assert decay[id(image.head.weight)] == 0.1


def test_the_encoder_may_learn_more_slowly():
    model, made = text_model(), recipe(optim__name="adamw", optim__encoder_share=0.1)
    groups = make_optimizer(model, made).param_groups
    share = {id(p): group["share"] for group in groups for p in group["params"]}
    assert sorted(share) == sorted(id(p) for p in model.parameters())
    assert {share[id(p)] for p in model.encoder.parameters()} == {0.1}
    assert {share[id(p)] for p in model.head.parameters()} == {1.0}


@pytest.mark.parametrize("name", ["sgd", "adamw", "adafactor", "muon"])
def test_every_optimiser_goes_down_and_through_a_checkpoint(tmp_path, name):
    from matryo.training.run.checkpoint import load_checkpoint, save_checkpoint

    def made():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4))
        return model, make_optimizer(model, recipe(optim__name=name, optim__lr=0.1))

    def step(model, optimizer, number):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    model, optimizer = made()
    losses = [step(model, optimizer, number) for number in range(10)]
    assert losses[-1] < losses[0]
    save_checkpoint(tmp_path / "c.safetensors", model, optimizer, None, {})
    again, other = made()
    load_checkpoint(tmp_path / "c.safetensors", again, other, None)
    assert step(model, optimizer, 11) == step(again, other, 11)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
