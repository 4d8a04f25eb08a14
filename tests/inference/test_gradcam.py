"""Grad-CAM against closed forms: class activation maps, finite differences, and images whose place is known."""

import dataclasses
import importlib.util

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from matryo.data import array_dataset
from matryo.errors import InputError, NestingError
from matryo.heads import NestedLinear
from matryo.inference import load
from matryo.inference.gradcam import gradcam, overlay
from matryo.inference.items import GivenImages
from matryo.inference.model import TrainedModel
from matryo.nesting import Nesting
from matryo.training import train
from matryo.training.batches.open import ordered_batches as batches_of  # pytest would collect the other name
from matryo.training.model import build_model
from matryo.training.objectives.classify import Classifier
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override

CLASSES = ("a", "b", "c", "d", "e")


def untrained(**changes):
    """A model with random weights whose norms and heads do something."""
    fields = {"loop.precision": "fp32", "data.size": "32", **{k.replace("__", "."): v for k, v in changes.items()}}
    recipe = override(Recipe(), fields)
    torch.manual_seed(0)
    network = build_model(recipe, len(CLASSES)).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    return TrainedModel(network, recipe, CLASSES, torch.device("cpu"), "0" * 64)


def resnet(**changes):
    return untrained(encoder__name="resnet18", encoder__stem="small", **changes)


def pictures(count=3, size=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def pixels_of(model, images):
    (pixels, _), *_ = batches_of(GivenImages(images), model.recipe, model.device)
    return pixels


def finished(maps, size=32):
    """Unfinished maps [n, h, w] as Grad-CAM promises them: ReLU, as large as the image, the largest 1."""
    large = F.interpolate(maps.relu()[:, None], size=(size, size), mode="bilinear", align_corners=False)[:, 0]
    peak = large.flatten(1).amax(1)[:, None, None]
    return np.where(peak > 0, large / peak.clamp(min=1e-30), 0)


def last_maps(encoder, pixels):
    x = encoder.maxpool(encoder.relu(encoder.bn1(encoder.conv1(pixels))))
    return encoder.layer4(encoder.layer3(encoder.layer2(encoder.layer1(x))))


# --- the maps ---


@pytest.mark.parametrize("kind", ["separate", "tied"])
def test_before_average_pooling_it_is_the_class_activation_map(kind):
    """logit_m = Σ_k w_k mean(A_k) + b, so the map at dim m is ReLU(Σ_{k ≤ m} w_k A_k) / (h · w)."""
    model, images = resnet(head__kind=kind, head__dims="8,64,512"), pictures()
    seen = gradcam(model, images)
    assert (seen.dims, seen.layer) == ((8, 64, 512), "layer4")
    assert seen.maps.shape == (3, 3, 32, 32)
    head = model.network.head
    with torch.no_grad():
        maps = last_maps(model.network.encoder, pixels_of(model, images))
        assert maps.shape[2:] == (4, 4)
        for i, dim in enumerate(seen.dims):
            weight, bias = head.weight_at(dim), head.bias_at(dim)
            logits = maps.mean((2, 3))[:, :dim] @ weight.T + bias
            said = logits.argmax(1)
            np.testing.assert_array_equal(seen.predicted[:, i], said)
            np.testing.assert_allclose(seen.probability[:, i], logits.softmax(1).amax(1), rtol=1e-4)
            cam = torch.einsum("nk,nkhw->nhw", weight[said], maps[:, :dim])
            np.testing.assert_allclose(seen.maps[:, i], finished(cam), atol=2e-4)
    assert np.abs(seen.maps[:, 0] - seen.maps[:, 2]).mean() > 0.01, "the dims look at different places"


def test_any_class_can_be_explained():
    model, images = resnet(head__dims="8,512"), pictures()
    maps = last_maps(model.network.encoder, pixels_of(model, images)).detach()
    said = gradcam(model, images)
    for classes in (2, [2, 2, 2], [[2, 2]] * 3, np.full((3, 2), 2)):
        seen = gradcam(model, images, classes=classes)
        for i, dim in enumerate((8, 512)):
            cam = torch.einsum("k,nkhw->nhw", model.network.head.weight_at(dim)[2].detach(), maps[:, :dim])
            np.testing.assert_allclose(seen.maps[:, i], finished(cam), atol=2e-4)
        np.testing.assert_array_equal(seen.predicted, said.predicted)
    mixed = gradcam(model, images, classes=said.predicted)
    np.testing.assert_array_equal(mixed.maps, said.maps)


def test_the_weights_of_the_channels_are_derivatives():
    """Σ over places of ∂logit/∂A_k is what a small rise of the whole channel k does to the logit."""
    model, images, step = untrained(encoder__dim="16", head__dims="8,16"), pictures(), 1e-5
    seen = gradcam(model, images, classes=1, layer="blocks.1")
    network = model.network.double()
    encoder, head = network.encoder, network.head

    def logits(maps):   # what comes after the layer, written out
        z = encoder.projection(encoder.blocks[2](maps).flatten(1))
        z = (z - encoder.spread.running_mean) / (encoder.spread.running_var + encoder.spread.eps).sqrt()
        return torch.stack([z[:, :dim] @ head.weight_at(dim)[1] + head.bias_at(dim)[1] for dim in seen.dims])

    with torch.no_grad():
        maps = encoder.blocks[:2](encoder.stem(pixels_of(model, images).double()))
        channels, height, width = maps.shape[1:]
        assert (height, width) == (8, 8)
        rises = step * torch.eye(channels, dtype=torch.float64)[:, :, None, None]
        for n in range(len(images)):
            alphas = (logits(maps[n] + rises) - logits(maps[n] - rises)) / (2 * step) / (height * width)
            cams = torch.einsum("dk,khw->dhw", alphas, maps[n])
            np.testing.assert_allclose(seen.maps[n], finished(cams), atol=1e-4)
    assert seen.maps.any((2, 3)).mean() > 0.3, "most are more than zeros"


def test_a_map_against_which_everything_speaks_stays_zero():
    model, images = resnet(head__kind="tied", head__dims="8,512"), pictures()
    with torch.no_grad():
        model.network.head.weight[3] = -1.0   # the channels are never negative, so nothing speaks for this class
    seen = gradcam(model, images, classes=3)
    assert not seen.maps.any()
    assert np.isfinite(seen.probability).all()


def test_a_mirrored_encoding_is_explained_by_both_halves():
    """With test_flip the embedding is the mean of image and mirror image: so is the map, mirrored back."""
    plain, images = resnet(head__dims="8,512"), pictures()
    both = dataclasses.replace(plain, recipe=override(plain.recipe, {"data.test_flip": "yes"}))
    seen = gradcam(both, images, classes=1)
    with torch.no_grad():
        pixels = pixels_of(plain, images)
        here, there = (last_maps(plain.network.encoder, x) for x in (pixels, pixels.flip(-1)))
        for i, dim in enumerate((8, 512)):
            weight = plain.network.head.weight_at(dim)
            cam = torch.einsum("k,nkhw->nhw", weight[1], here[:, :dim] + there[:, :dim].flip(-1))
            np.testing.assert_allclose(seen.maps[:, i], finished(cam), atol=2e-4)
            z = (here + there).mean((2, 3))[:, :dim] / 2
            logits = z @ weight.T + plain.network.head.bias_at(dim)
            np.testing.assert_array_equal(seen.predicted[:, i], logits.argmax(1))


def test_in_bfloat16_it_is_nearly_the_same():
    half, full = (gradcam(resnet(loop__precision=p), pictures(), classes=1) for p in ("bf16", "fp32"))
    assert half.maps.dtype == half.probability.dtype == np.float32
    assert 0 < np.abs(half.maps - full.maps).mean() < 0.05


def test_it_changes_nothing():
    model, images = resnet(encoder__dim="16"), pictures()
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    vectors = model.encode(images)
    gradcam(model, images)
    with pytest.raises(InputError, match=r"with a map .*got \[3, 16\] from projection.*a transformer has none"):
        gradcam(model, images, layer="projection")
    assert all(torch.equal(value, before[name]) for name, value in model.network.state_dict().items())
    assert all(parameter.grad is None for parameter in model.network.parameters())
    assert not any(module._forward_hooks for module in model.network.modules())
    np.testing.assert_array_equal(model.encode(images), vectors)


# --- what is looked at ---


def squares(count, seed):
    """A bright square in one corner of a dark noisy image; its colour is the class."""
    rng = np.random.default_rng(seed)
    labels, corners = rng.integers(3, size=count), rng.integers(2, size=(count, 2))
    labels[:3] = np.arange(3)
    images = rng.integers(0, 60, (count, 32, 32, 3), dtype=np.uint8)
    for image, label, (row, column) in zip(images, labels, corners, strict=True):
        image[16 * row + 3 : 16 * row + 13, 16 * column + 3 : 16 * column + 13, label] += 180
    return images, labels, corners


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A ConvNet that learned in a few steps to tell squares by their colour."""
    images, labels, _ = squares(64, seed=0)
    fields = {
        "encoder.dim": "16", "augment.crop": "none", "augment.flip": "no", "loop.batch": "16", "loop.epochs": "12",
        "optim.lr": "0.05", "optim.peak": "0.5", "loop.device": "cpu", "loop.precision": "fp32",
    }  # fmt: skip
    data = array_dataset({"train": (images, labels)}, ["red", "green", "blue"])
    run = train(override(Recipe(), fields), data, tmp_path_factory.mktemp("gradcam") / "run", progress=False)
    return load(run, device="cpu")


def test_a_trained_model_looks_at_the_thing(trained):
    images, labels, corners = squares(24, seed=1)
    seen = gradcam(trained, images)
    assert (seen.dims, seen.layer) == ((8, 16), "blocks.2")
    assert (seen.predicted == labels[:, None]).mean() > 0.9
    inside = np.zeros((24, 32, 32), bool)
    for mask, (row, column) in zip(inside, corners, strict=True):
        mask[16 * row : 16 * row + 16, 16 * column : 16 * column + 16] = True
    heat = seen.maps[:, 1]
    share = (heat * inside).sum((1, 2)) / heat.sum((1, 2)).clip(1e-9)
    assert np.median(share) > 0.5, "a quarter of the image holds most of the heat"


def test_images_of_any_kind_come_back_as_the_network_saw_them(trained):
    image = pictures(1)[0]
    wide = np.concatenate([np.zeros((32, 8, 3), np.uint8), image, np.zeros((32, 8, 3), np.uint8)], 1)
    for given in ([image], image, [wide]):   # of a wide one the middle is seen
        seen = gradcam(trained, given, dims=[8])
        np.testing.assert_array_equal(seen.images, image[None])
    many, classes = pictures(35), np.arange(35) % 3   # more than a batch
    seen = gradcam(trained, many, dims=[8], classes=classes)
    np.testing.assert_array_equal(seen.images, many)
    for n in (15, 16, 34):
        alone = gradcam(trained, many[n], dims=[8], classes=classes[n])
        np.testing.assert_allclose(seen.maps[n], alone.maps[0], atol=1e-4)


# --- the layer ---


@pytest.mark.parametrize(
    ("changes", "layer"),
    [
        ({"encoder__name": "resnet18", "encoder__stem": "small"}, "layer4"),   # maps of 4 × 4
        ({"encoder__name": "resnet18"}, "layer2"),   # layer4 has 1 × 1
        ({"encoder__name": "resnet18", "encoder__dim": "16"}, "encoder.layer2"),
        ({"encoder__name": "resnet18", "data__size": "8"}, "layer1"),   # none is fine
        ({"encoder__dim": "16"}, "blocks.2"),
    ],
)
def test_the_layer_is_the_last_one_that_is_not_too_coarse(changes, layer):
    model = untrained(**changes)
    seen = gradcam(model, pictures(1, size=model.recipe.data.size), dims=[8])
    assert seen.layer == layer


def test_a_tied_head_is_explained_at_any_dim():
    seen = gradcam(resnet(head__kind="tied", head__dims="8,512"), pictures(), dims=(3, 100))
    assert seen.dims == (3, 100)
    assert seen.maps.shape == (3, 2, 32, 32)


class Mean(nn.Module):
    """An encoder of no known kind."""

    dim = 3

    def __init__(self):
        super().__init__()
        self.conv, self.unused = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)

    def forward(self, x):
        return self.conv(x).relu_().mean((2, 3))


def test_an_unknown_encoder_needs_a_layer():
    base = resnet()
    network = Classifier(Mean(), NestedLinear(Nesting([3]), len(CLASSES)))
    model = TrainedModel(network, base.recipe, CLASSES, base.device, "")
    with pytest.raises(InputError, match=r"does not know the stages.*got Mean.*convolutional layers"):
        gradcam(model, pictures())
    with pytest.raises(InputError, match=r"run once per image \(got unused, run 0 times\)"):
        gradcam(model, pictures(), layer="unused")
    seen = gradcam(model, pictures(), layer="conv")   # what follows changes the map in place
    with torch.no_grad():
        maps = network.encoder.conv(pixels_of(model, pictures()))
        slopes = (maps > 0).double().mean((2, 3)) * network.head.weight_at(3)[seen.predicted[:, 0]]
        cam = torch.einsum("nk,nkhw->nhw", slopes, maps.double())
    np.testing.assert_allclose(seen.maps[:, 0], finished(cam), atol=1e-4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layer": "layer9"}, InputError, r"module of the encoder \(got 'layer9'\): try layer1, layer2, layer3"),
        ({"layer": ""}, InputError, "a module of the encoder"),
        ({"layer": "layer1.0.relu"}, InputError, r"once per image \(got layer1.0.relu, run 2 times\)"),
        ({"dims": (8, 12)}, NestingError, r"only at the dims they were trained for \(got 12\): use dim 8, 16"),
        ({"dims": (8, 1024)}, NestingError, "must not exceed the 512 dimensions"),
        ({"classes": 5}, InputError, r"integers in \[0, 5\).*got int64 \[\]: \[5\]"),
        ({"classes": [0, 1]}, InputError, "one, one per image, or one per image and dim"),
        ({"classes": [0.5, 1, 2]}, InputError, "classes must be integers"),
        ({"classes": [-1, 1, 2]}, InputError, "classes must be integers"),
    ],
)
def test_mistakes_are_named(options, error, message):
    with pytest.raises(error, match=message):
        gradcam(resnet(), pictures(), **options)


def test_no_images_are_named():
    with pytest.raises(InputError, match=r"at least one image \(got 0\)"):
        gradcam(resnet(), [])


# --- timm ---


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
def test_a_timm_convnet_is_explained_and_a_transformer_is_not():
    images = pictures(2, size=64)
    seen = gradcam(untrained(encoder__name="timm:resnet10t", data__size="64"), images, dims=[8])
    assert seen.layer == "model.layer3"
    assert seen.maps.shape == (2, 1, 64, 64)
    for name in ("vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"):
        with pytest.raises(InputError, match=r"with a map .*a transformer has none"):
            gradcam(untrained(encoder__name=f"timm:{name}", data__size="224"), pictures(1, size=224))


# --- pictures ---


def test_an_overlay_is_lighter_where_the_heat_is():
    heat = np.linspace(0, 1, 256)[None].repeat(2, 0)
    drawn = overlay(np.full((2, 256, 3), 128, np.uint8), heat)
    assert (drawn.dtype, drawn.shape) == (np.uint8, (2, 256, 3))
    linear = np.where(drawn / 255 <= 0.04045, drawn / 255 / 12.92, ((drawn / 255 + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(luminance) >= -1e-3).all()
    assert luminance[0, -1] > 5 * luminance[0, 0]
    # Black and white stay apart under any heat.
    black, white = (overlay(np.full((2, 256, 3), value, np.uint8), heat).astype(int) for value in (0, 255))
    assert (white - black >= 100).all()


@pytest.mark.parametrize(("image", "heat"), [((4, 4, 3), (4, 5)), ((4, 4), (4, 4)), ((4, 4, 4), (4, 4))])
def test_an_overlay_of_other_sizes_is_named(image, heat):
    with pytest.raises(InputError, match=r"uint8 image \[height, width, 3\] and its map"):
        overlay(np.zeros(image, np.uint8), np.zeros(heat))
    with pytest.raises(InputError, match="got float64"):
        overlay(np.zeros((4, 4, 3)), np.zeros((4, 4)))
