"""The model: seeds decide its weights and nothing else, freezing is exact, and the mirrored embedding is a mean."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from matryo.encoders import Tokens, build_encoder
from matryo.errors import NestingError, RecipeError, RunError
from matryo.training.model import build_model, freeze_before, start_from
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override

SMALL = {"encoder.name": "resnet18"}


def recipe(**changes):
    return override(Recipe(), {**SMALL, **{name.replace("__", "."): str(value) for name, value in changes.items()}})


def trained(encoder):
    return {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}


# --- building ---


def test_the_seed_decides_every_weight():
    a, b, c = (build_model(recipe(loop__seed=seed), classes=5).state_dict() for seed in (0, 0, 1))
    assert a.keys() == b.keys() == c.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    drawn = [name for name in a if "conv" in name or name.startswith("head.")]
    assert len(drawn) > 15
    assert not any(torch.equal(a[name], c[name]) for name in drawn)


def test_building_leaves_the_random_state_alone():
    torch.manual_seed(123)
    before = torch.get_rng_state()
    build_model(recipe(), classes=5)
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_do_not_depend_on_the_random_state():
    torch.manual_seed(1)
    a = build_model(recipe(), classes=5).state_dict()
    torch.manual_seed(2)
    b = build_model(recipe(), classes=5).state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_classifier_trains_as_its_recipe_says():
    fields = {"head__dims": "8,16,512", "head__smoothing": "0,0.1,0.2", "head__self_distil": 0.5}
    model = build_model(recipe(encoder__stem="small", encoder__neck="batch", **fields), classes=5)
    images, target = torch.randn(4, 3, 32, 32), torch.arange(4)
    z, losses = model(images, target)
    logits = model.head.logits(z)
    hard = [F.cross_entropy(own, target, label_smoothing=e) for own, e in zip(logits, (0, 0.1, 0.2), strict=True)]
    soft = [F.cross_entropy(own, logits[-1].softmax(-1)) for own in logits[:-1]]
    right = [(a + b) / 2 for a, b in zip(hard[:-1], soft, strict=True)] + hard[-1:]
    torch.testing.assert_close(losses, torch.stack(right))
    assert z.mean(0).abs().max() < 1e-5   # the neck


@pytest.mark.parametrize(
    ("kind", "weight", "bias"),
    [("separate", (5, 8 + 512), (2, 5)), ("tied", (5, 512), (5,)), ("fixed", (5, 8), (1, 5))],
)
def test_the_head_is_the_recipes(kind, weight, bias):
    dims = "8" if kind == "fixed" else "8,512"
    head = build_model(recipe(head__kind=kind, head__dims=dims), classes=5).head
    assert head.weight.shape == weight
    assert head.bias.shape == bias
    assert build_model(recipe(head__kind=kind, head__dims=dims, head__bias="no"), classes=5).head.bias is None


def test_a_nesting_wider_than_the_encoder_is_named():
    with pytest.raises(NestingError, match="must not exceed the 512 dimensions"):
        build_model(recipe(head__dims="8,1024"), classes=5)


def test_the_forward_pass_is_encoder_then_smoothed_losses():
    model = build_model(recipe(head__dims="8,32,512", optim__label_smoothing=0.2), classes=5).eval()
    images, target = torch.randn(3, 3, 16, 16), torch.tensor([0, 4, 2])
    with torch.no_grad():
        z, losses = model(images, target)
        assert torch.equal(z, model.encoder(images))
        for dim, loss in zip((8, 32, 512), losses, strict=True):
            logits = z[:, :dim] @ model.head.weight_at(dim).T + model.head.bias_at(dim)
            torch.testing.assert_close(loss, F.cross_entropy(logits, target, label_smoothing=0.2))


# --- embedding ---


def test_the_mirrored_embedding_is_the_mean_of_both():
    model = build_model(recipe(head__dims="8,512"), classes=5).eval()
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        plain, mirrored = model.embed(images), model.embed(images.flip(3))
        both = model.embed(images, flip=True)
        assert not torch.allclose(plain, mirrored)
        torch.testing.assert_close(both, (plain + mirrored) / 2)
        symmetric = images + images.flip(3)
        # A sum would double the logits and so sharpen every softmax.
        torch.testing.assert_close(model.embed(symmetric, flip=True), model.embed(symmetric))


def test_an_embedding_has_the_columns_the_nesting_trains_in_float32():
    model = build_model(recipe(head__kind="fixed", head__dims="64"), classes=5).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        z = model.embed(torch.randn(2, 3, 16, 16))
    assert z.shape == (2, 64)
    assert z.dtype == torch.float32


# --- freezing ---


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_everything_before_the_named_layer_is_frozen(name):
    encoder = build_encoder(name)
    frozen = freeze_before(encoder, "layer4.1.conv2")
    wanted = {"layer4.1.conv2.weight", "layer4.1.bn2.weight", "layer4.1.bn2.bias"}
    if name == "resnet50":
        rest = ("layer4.1.conv3", "layer4.1.bn3", "layer4.2.")
        wanted |= {key for key, _ in encoder.named_parameters() if key.startswith(rest)}
        assert len(wanted) == 3 + 3 + 9
    assert trained(encoder) == wanted
    norms = {key for key, module in encoder.named_modules() if isinstance(module, nn.BatchNorm2d)}
    kept = {key for key, module in encoder.named_modules() if any(module is part for part in frozen)}
    assert norms & kept == {key for key in norms if f"{key}.weight" not in wanted}
    assert norms - kept == {key for key in norms if f"{key}.weight" in wanted}


def test_a_block_can_be_named():
    encoder = build_encoder("resnet18")
    freeze_before(encoder, "layer4.1")
    assert trained(encoder) == {key for key, _ in encoder.named_parameters() if key.startswith("layer4.1.")}


def test_none_freezes_the_whole_encoder_and_an_empty_name_nothing():
    encoder = build_encoder("resnet18")
    everything = trained(encoder)
    assert freeze_before(encoder, "") == []
    assert trained(encoder) == everything
    frozen = freeze_before(encoder, "none")
    assert trained(encoder) == set()
    assert {id(m) for m in encoder.modules() if isinstance(m, nn.BatchNorm2d)} <= {id(m) for m in frozen}


def test_freezing_can_be_changed():
    encoder = build_encoder("resnet18")
    freeze_before(encoder, "none")
    freeze_before(encoder, "layer4.1.conv2")
    assert "layer4.1.conv2.weight" in trained(encoder)


@pytest.mark.parametrize("name", ["convnet", "resnet18"])
def test_training_leaves_no_trace_in_a_frozen_encoder(name):
    """Batch norms without parameters (the convnet ends in one) have running statistics too."""
    model = build_model(override(recipe(), {"encoder.name": name, "encoder.dim": "16"}), classes=3)
    frozen = freeze_before(model.encoder, "projection" if name == "resnet18" else "none")
    model.train()
    for module in frozen:
        module.eval()
    before = {key: value.clone() for key, value in model.encoder.state_dict().items()}
    _, losses = model(torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 0]))
    losses.sum().backward()
    assert all(torch.equal(value, before[key]) for key, value in model.encoder.state_dict().items())
    with_gradient = {key for key, p in model.named_parameters() if p.grad is not None}
    expected = {"encoder.projection.weight", "encoder.projection.bias"} if name == "resnet18" else set()
    assert with_gradient == {"head.weight", "head.bias"} | expected


@pytest.mark.parametrize("changes", [{"encoder__name": "vit-ti8", "encoder__drop_path": 0.9},
                                     {"encoder__name": "bert-tiny", "encoder__dropout": 0.9}])  # fmt: skip
def test_a_frozen_transformer_drops_nothing(changes):
    """Attention and blocks drop by themselves, without a layer that does."""
    model = build_model(recipe(head__dims=8, text__length=16, **changes), classes=3, vocabulary=30)
    model.train()
    for module in freeze_before(model.encoder, "none"):
        module.eval()
    inputs = Tokens(torch.arange(12)[None]) if "bert" in changes["encoder__name"] else torch.randn(2, 3, 32, 32)
    assert torch.equal(model.encoder(inputs), model.encoder(inputs))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [("blocks.12.norm1.weight", 1, True), ("blocks.0.ls1.gamma", 0, True), ("blocks.0.ls1.bias", 0, False),
     ("head.weight", 1, False)],
)  # fmt: skip
def test_weights_that_have_no_place_are_named_unless_they_do_not_matter(name, value, told, tmp_path):
    encoder = build_encoder("vit-ti8", size=32)
    save_file({**encoder.state_dict(), name: torch.full((4,), float(value))}, tmp_path / "w.safetensors")
    if told:
        with pytest.raises(RunError, match=r"only weights of this encoder \(got 1 .*the first is " + name):
            start_from(encoder, tmp_path / "w.safetensors")
    else:
        start_from(encoder, tmp_path / "w.safetensors")


class Transformer(nn.Module):
    """What a vision transformer looks like: the root owns parameters of its own."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.zeros(4))
        self.first = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
        self.last = nn.Sequential(nn.Linear(4, 4), nn.Dropout())


def test_layers_after_the_named_one_stay_in_training_mode():
    encoder = Transformer().train()
    for module in freeze_before(encoder, "last"):
        module.eval()
    assert trained(encoder) == {"last.0.weight", "last.0.bias"}
    assert not encoder.first[0].training
    assert all(module.training for module in encoder.last)


@pytest.mark.parametrize("name", ["layer5", "layer4.2", "relu", "layer1.0.downsample"])
def test_an_unknown_layer_is_named_with_some_that_exist(name):
    encoder = build_encoder("resnet18")
    with pytest.raises(RecipeError, match=rf"unfreeze must be a module.*got '{name}'.*use none, or.*layer4.1.bn2"):
        freeze_before(encoder, name)
    assert len(trained(encoder)) == len(list(encoder.parameters())), "a mistake freezes nothing"
