"""After training: a map keeps every logit and every prefix and whitens as promised, and heads are averaged."""

import numpy as np
import pytest
import torch

from matryo.data import array_dataset
from matryo.encoders import Projected
from matryo.errors import RecipeError
from matryo.export.parts import parts_of
from matryo.inference import load
from matryo.nesting import Nesting
from matryo.training import train
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override
from matryo.training.run.checkpoint import load_weights
from matryo.training.whitening import Moments

SMALL = {
    "data.test": "test", "data.size": "16", "encoder.dim": "16", "loop.batch": "16", "loop.epochs": "2",
    "head.dims": "4,8,16", "optim.lr": "0.05", "loop.device": "cpu", "loop.precision": "fp32",
}  # fmt: skip


def recipe(**changes):
    fields = {name.replace("__", "."): str(value) for name, value in changes.items()}
    return override(Recipe(name="small"), {**SMALL, **fields})


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    labels = np.arange(64) % 4
    images = rng.integers(0, 100, (64, 16, 16, 3), dtype=np.uint8)
    images[..., 0] += (30 * labels).astype(np.uint8)[:, None, None]
    return array_dataset({"train": (images, labels), "test": (images[:16], labels[:16])})


@pytest.fixture(scope="module")
def plain(tmp_path_factory, data):
    return load(train(recipe(), data, tmp_path_factory.mktemp("runs") / "plain", progress=False), device="cpu")


def vectors(model, data, split="train"):
    z = torch.cat([torch.from_numpy(z) for z, _ in model.embed(data.split(split))])
    return z, torch.from_numpy(data.split(split).labels)


# --- the map ---


@pytest.mark.parametrize(
    ("kind", "fields"),
    [("centre", {}), ("within", {}), ("within", {"encoder__neck": "layer"}), ("within", {"optim__ema": 0.5})],
)
def test_whitening_keeps_every_logit_and_every_prefix(tmp_path, data, kind, fields):
    before = load(train(recipe(**fields), data, tmp_path / "before", progress=False), device="cpu")
    after = load(train(recipe(encoder__whiten=kind, **fields), data, tmp_path / "after", progress=False), device="cpu")
    (z, _), (mapped, _) = vectors(before, data), vectors(after, data)
    assert not torch.allclose(z, mapped, atol=0.1)
    torch.testing.assert_close(after.head.logits(mapped), before.head.logits(z), atol=2e-4, rtol=1e-4)
    for dim in (4, 8, 16):   # the first m columns are an affine map of the first m columns
        left = torch.cat([z[:, :dim], torch.ones(len(z), 1)], 1).double()
        solved = torch.linalg.lstsq(left, mapped[:, :dim].double()).solution
        torch.testing.assert_close(left @ solved, mapped[:, :dim].double(), atol=1e-3, rtol=1e-3)
    assert mapped.mean(0).abs().max() < 1e-3 * max(1, mapped.abs().max())


def test_the_map_makes_the_shrunk_covariance_within_classes_the_identity():
    torch.manual_seed(0)
    labels = torch.randint(0, 5, (400,))
    z = torch.randn(400, 6) @ torch.randn(6, 6) + 3 * torch.randn(5, 6)[labels] + 7
    moments = Moments.of([(z[:150], labels[:150]), (z[150:], labels[150:])], classes=5)
    residuals = torch.stack([row - z[labels == label].mean(0) for row, label in zip(z, labels, strict=True)]).double()
    within = residuals.T @ residuals / 400
    torch.testing.assert_close(moments.mean, z.double().mean(0))
    torch.testing.assert_close(moments.within, within, atol=1e-4, rtol=1e-5)
    weight, bias = moments.map("within", 0.3)
    shrunk = 0.7 * within + 0.3 * within.diagonal().mean() * torch.eye(6)
    torch.testing.assert_close(weight @ shrunk @ weight.T, torch.eye(6).double(), atol=1e-4, rtol=0)
    assert torch.equal(weight, weight.tril())
    torch.testing.assert_close(weight @ moments.mean, -bias)
    weight, bias = moments.map("centre")
    assert torch.equal(weight, torch.eye(6).double())
    assert torch.equal(bias, -moments.mean)


def test_vectors_without_any_spread_are_only_centred():
    weight, _ = Moments.of([(torch.ones(8, 3), torch.zeros(8, dtype=torch.int64))], classes=2).map("within")
    assert torch.equal(weight, torch.eye(3).double())


# --- the run ---


def test_a_fixed_model_keeps_the_columns_beyond_its_dim(tmp_path, data):
    fields = {"head__kind": "fixed", "head__dims": 8}
    before = load(train(recipe(**fields), data, tmp_path / "before", progress=False), device="cpu")
    after = load(train(recipe(encoder__whiten="within", **fields), data, tmp_path / "a", progress=False), device="cpu")
    (z, _), (mapped, _) = vectors(before, data), vectors(after, data)
    assert mapped.shape == z.shape == (64, 8)
    torch.testing.assert_close(after.head.logits(mapped), before.head.logits(z), atol=2e-4, rtol=1e-4)
    whole = [model.network.encoder(torch.zeros(2, 3, 16, 16))[:, 8:] for model in (before, after)]
    torch.testing.assert_close(*whole)


def test_a_run_killed_after_its_last_checkpoint_ends_with_the_same_bits(tmp_path, data):
    made = recipe(encoder__whiten="within", head__blend=0.5)
    run = train(made, data, tmp_path / "run", progress=False)
    first = load_weights(run / "model.safetensors")
    (run / "run.json").unlink()
    (run / "model.safetensors").unlink()
    second = load_weights(train(made, data, run, progress=False) / "model.safetensors")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_longer_run_continues_from_the_model_before_the_map(tmp_path, data):
    made = recipe(encoder__whiten="within", head__blend=0.5)
    longer = recipe(encoder__whiten="within", head__blend=0.5, loop__epochs=3)
    train(made, data, tmp_path / "a", progress=False)
    assert load(train(longer, data, tmp_path / "a", extend=True, progress=False)).predict(data.split("test").image(0))


@pytest.mark.parametrize("neck", ["none", "linear+batch"])
def test_a_whitened_run_is_a_start_for_finetuning_and_its_export_is_one_linear_map(tmp_path, data, neck):
    run = train(recipe(encoder__whiten="within", encoder__neck=neck), data, tmp_path / "run", progress=False)
    model = load(run, device="cpu")
    images = torch.rand(4, 3, 16, 16)
    start = {"finetune__start": run, "finetune__unfreeze": "none", "loop__epochs": 1, "encoder__neck": neck}
    tuned = load(train(recipe(**start), data, tmp_path / "tuned", progress=False), device="cpu")
    before = model.network.encoder.encoder   # the encoder without the map
    torch.testing.assert_close(tuned.network.embed(images), before(images))
    parts = parts_of(model)
    assert isinstance(before, Projected) == (neck != "none")
    assert not isinstance(parts.encoder, Projected)
    one = parts.encoder(images) @ parts.weight.T + parts.bias
    torch.testing.assert_close(one, model.network.embed(images), atol=1e-4, rtol=1e-4)


# --- blended heads ---


def test_a_blended_head_is_the_mean_of_the_logits_of_smaller_dims(tmp_path, data, plain):
    after = load(train(recipe(head__blend=0.25), data, tmp_path / "run", progress=False), device="cpu")
    z, _ = vectors(plain, data)
    torch.testing.assert_close(vectors(after, data)[0], z)
    logits = plain.head.logits(z)
    for number in range(3):
        mixed = 0.75 * logits[number] + 0.25 * logits[: number + 1].mean(0)
        torch.testing.assert_close(after.head.logits(z)[number], mixed, atol=1e-5, rtol=1e-5)


# --- weights that act on the encoder alone ---


def test_head_weigh_encoder_scales_the_gradient_of_the_encoder_only():
    from matryo.heads import NestedLinear

    nesting = Nesting([4, 8, 16], [0.2, 0.1, 1])
    weighed, alone = NestedLinear(nesting, 5), NestedLinear([4, 8, 16], 5)
    alone.load_state_dict(weighed.state_dict())
    weighed.weigh_encoder_only()
    z, target = torch.randn(32, 16, requires_grad=True), torch.randint(0, 5, (32,))
    weighed.loss(z, target).backward()
    alone.loss(z, target).backward(inputs=[alone.weight, alone.bias])
    torch.testing.assert_close(weighed.weight.grad, alone.weight.grad)
    torch.testing.assert_close(weighed.bias.grad, alone.bias.grad)
    [right] = torch.autograd.grad((alone.losses(z, target) * torch.tensor(nesting.weights)).sum(), z)
    torch.testing.assert_close(z.grad, right)


# --- refusals ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder__whiten": "within", "head__kind": "tied"}, "encoder.whiten needs separate or fixed heads"),
        ({"encoder__whiten": "centre", "head__bias": "no"}, "with a bias"),
        ({"head__blend": 0.5, "head__kind": "tied"}, "head.blend needs separate heads"),
        ({"head__blend": 2}, "head.blend must be in"),
        ({"head__weigh": "encoder", "head__kind": "tied"}, "head.weigh encoder needs separate heads"),
    ],
)
def test_a_recipe_that_cannot_be_finished_is_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        recipe(**changes)
