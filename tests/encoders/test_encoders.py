"""Encoders against what is published of them, and against their layers written out."""

import importlib.util
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from matryo.encoders import ConvNet, Projected, build_encoder, encoder_names, from_timm
from matryo.encoders.layers import BlurConv2d, Layers
from matryo.errors import InputError, MissingExtra

resnet18, resnet34, resnet50 = (partial(build_encoder, name) for name in ("resnet18", "resnet34", "resnet50"))
PUBLISHED = {resnet18: 11_176_512, resnet34: 21_284_672, resnet50: 23_508_032}   # torchvision's, without the classifier
OWN_DIM = {"convnet": 256, "resnet18": 512, "resnet34": 512, "resnet50": 2048}


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("name", OWN_DIM)
def test_an_encoder_gives_one_vector_an_image(name, size):
    encoder = build_encoder(name, stem="small" if size == 32 else "imagenet").eval()
    with torch.no_grad():
        z = encoder(torch.randn(2, 3, size, size))
    assert z.shape == (2, OWN_DIM[name])
    assert encoder.dim == OWN_DIM[name]
    assert z.isfinite().all()
    assert z.std() > 0


def test_every_name_builds():
    with torch.device("meta"):
        dims = {name: build_encoder(name).dim for name in encoder_names()}
    assert {name: dim for name, dim in dims.items() if not name.startswith(("vit", "bert"))} == OWN_DIM
    assert {dims[f"vit-{size}{patch}"] for size in ("ti", "s", "b", "l") for patch in (4, 8, 16, 32)} == {
        192, 384, 768, 1024,
    }  # fmt: skip
    assert [dims[f"bert-{size}"] for size in ("tiny", "mini", "small", "medium", "base", "large")] == [
        128, 256, 512, 512, 768, 1024,
    ]  # fmt: skip


@pytest.mark.parametrize(("make", "count"), PUBLISHED.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_resnets_have_the_published_number_of_parameters(make, count):
    with torch.device("meta"):
        encoder = make()
    assert sum(parameter.numel() for parameter in encoder.parameters()) == count


def test_resnets_name_their_parameters_as_torchvision_does():
    with torch.device("meta"):
        small, large = resnet18().state_dict(), resnet50().state_dict()
    for key, shape in {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_mean": (64,),
        "bn1.num_batches_tracked": (),
        "layer1.0.conv1.weight": (64, 64, 3, 3),
        "layer2.0.downsample.0.weight": (128, 64, 1, 1),
        "layer2.0.downsample.1.running_var": (128,),
        "layer4.1.bn2.bias": (512,),
    }.items():
        assert small[key].shape == shape, key
    for key, shape in {
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.conv3.weight": (256, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer3.5.bn3.weight": (1024,),
        "layer4.0.conv2.weight": (512, 512, 3, 3),
        "layer4.2.conv3.weight": (2048, 512, 1, 1),
    }.items():
        assert large[key].shape == shape, key
    # torchvision's state dicts have 122 and 320 entries, of which two are the classifier.
    assert (len(small), len(large)) == (120, 318)
    assert not any(key.startswith("fc.") for key in (*small, *large))


def test_a_bottleneck_strides_in_its_3x3_convolution():
    """As torchvision's (version 1.5) does, and not in the first 1×1 as the first paper had it."""
    with torch.device("meta"):
        block = resnet50().layer2[0]
    strides = [layer.stride[0] for layer in (block.conv1, block.conv2, block.conv3, block.downsample[0])]
    assert strides == [1, 2, 1, 2]


def test_resnet18_is_its_layers_written_out():
    torch.manual_seed(0)
    encoder = resnet18().double().eval()
    weights = encoder.state_dict()

    def conv(x, name, stride=1, padding=1):
        return F.conv2d(x, weights[f"{name}.weight"], stride=stride, padding=padding)

    def norm(x, name):
        names = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *(weights[f"{name}.{key}"] for key in names))

    for name, value in weights.items():   # statistics, scales and shifts that do something
        if name.endswith(("running_mean", "bias")):
            value.copy_(0.1 * torch.randn_like(value))
        elif name.endswith("running_var") or ("bn" in name and name.endswith("weight")):
            value.copy_(torch.rand_like(value) + 0.5)
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    x = F.max_pool2d(norm(conv(images, "conv1", 2, 3), "bn1").relu(), 3, 2, 1)
    for stage in range(1, 5):
        for index in range(2):
            name, stride = f"layer{stage}.{index}", 2 if stage > 1 and index == 0 else 1
            y = norm(conv(x, f"{name}.conv1", stride), f"{name}.bn1").relu()
            y = norm(conv(y, f"{name}.conv2"), f"{name}.bn2")
            if stride > 1:
                x = norm(conv(x, f"{name}.downsample.0", 2, 0), f"{name}.downsample.1")
            x = (x + y).relu()
    assert (x > 0).float().mean() > 0.1
    with torch.no_grad():
        torch.testing.assert_close(encoder(images), x.mean((2, 3)))


def test_the_small_stem_keeps_the_resolution():
    images, maps = torch.randn(1, 3, 32, 32), {}
    for stem in ("small", "imagenet"):
        encoder = resnet18(stem=stem).eval()
        encoder.layer1.register_forward_pre_hook(lambda _, given, stem=stem: maps.update({stem: given[0].shape}))
        encoder(images)
    assert maps == {"small": (1, 64, 32, 32), "imagenet": (1, 64, 8, 8)}


# --- blurpool ---


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (1, 2), (3, 1)])
def test_a_blurred_convolution_is_blur_then_convolution(kernel, stride):
    layer = BlurConv2d(16, 8, kernel, stride, kernel // 2).double()
    x = torch.randn(2, 16, 9, 9, dtype=torch.float64)
    padded = F.pad(x, (1, 1, 1, 1))
    taps = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64) / 4
    smooth = torch.zeros_like(x)
    for i in range(3):
        for j in range(3):
            smooth += taps[i] * taps[j] * padded[:, :, i : i + 9, j : j + 9]
    wanted = F.conv2d(smooth, layer.weight, stride=stride, padding=kernel // 2)
    torch.testing.assert_close(layer(x), wanted)


@pytest.mark.parametrize(("make", "strided"), [(resnet18, "conv1"), (resnet50, "conv2")])
def test_only_strided_convolutions_of_many_channels_are_blurred(make, strided):
    with torch.device("meta"):
        blurred, plain = make(blurpool=True), make()
    found = {name for name, module in blurred.named_modules() if isinstance(module, BlurConv2d)}
    assert found == {f"layer{stage}.0.{part}" for stage in (2, 3, 4) for part in (strided, "downsample.0")}
    assert blurred.conv1.stride == (2, 2), "strided too, but of three channels"
    assert not any(isinstance(module, BlurConv2d) for module in plain.modules())
    assert blurred.state_dict().keys() == plain.state_dict().keys(), "the blur is no weight: public weights load"


def test_a_blurred_resnet_still_learns_and_differs():
    torch.manual_seed(0)
    plain, blurred = resnet18().eval(), resnet18(blurpool=True).eval()
    blurred.load_state_dict(plain.state_dict())
    images = torch.randn(1, 3, 64, 64)
    assert not torch.allclose(plain(images), blurred(images))
    blurred(images).sum().backward()
    assert all(parameter.grad is not None for parameter in blurred.parameters())


# --- norms ---


@pytest.mark.parametrize("name", ["convnet", "resnet18"])
def test_with_group_norm_an_image_does_not_see_its_batch(name):
    torch.manual_seed(0)
    encoder = build_encoder(name, norm="group").double().train()
    for parameter in encoder.parameters():   # the blocks of the convnet begin as shortcuts alone
        nn.init.normal_(parameter, std=0.1)
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        together = encoder(images)
        assert together.std(0).max() > 1e-3, "the images differ"
        for index in range(4):
            torch.testing.assert_close(encoder(images[index : index + 1])[0], together[index])
        batched = build_encoder(name).train()
        assert not torch.allclose(batched(images[:2].float())[0], batched(images[[0, 3]].float())[0])


def test_group_norm_takes_any_number_of_channels():
    for channels in (8, 24, 32, 48, 64, 100):
        norm = Layers(norm="group").make_norm(channels).double()
        x = torch.randn(2, channels, 5, 5, dtype=torch.float64) * 3 + 1
        groups = norm.num_groups
        assert groups <= 32
        y = norm(x).view(2, groups, -1)
        torch.testing.assert_close(y.mean(-1), torch.zeros_like(y[..., 0]), atol=1e-6, rtol=0)
        torch.testing.assert_close(y.var(-1, unbiased=False), torch.ones_like(y[..., 0]), atol=1e-4, rtol=0)


# --- the convnet ---


def test_the_convnets_dimensions_all_have_the_same_spread():
    torch.manual_seed(0)
    encoder = ConvNet(dim=24).train()
    with torch.no_grad():
        z = encoder(torch.randn(64, 3, 32, 32))
    torch.testing.assert_close(z.mean(0), torch.zeros(24), atol=1e-5, rtol=0)
    torch.testing.assert_close(z.var(0, unbiased=False), torch.ones(24), atol=1e-2, rtol=0)


def test_the_convnet_sees_where_a_part_lies():
    torch.manual_seed(0)
    encoder = ConvNet(dim=24, norm="group").eval()
    images = torch.zeros(2, 3, 32, 32)
    images[0, :, 4:12, 4:12] = 1
    images[1, :, 20:28, 20:28] = 1
    with torch.no_grad():
        left, right = encoder(images)
    assert (left - right).norm() > 0.1 * left.norm()


# --- dimensions and mistakes ---


def test_another_dim_is_a_projection():
    encoder = build_encoder("resnet18", dim=48).eval()
    images = torch.randn(2, 3, 32, 32)
    assert encoder.dim == 48
    with torch.no_grad():
        z = encoder(images)
        torch.testing.assert_close(z, encoder.encoder(images) @ encoder.projection.weight.T + encoder.projection.bias)
    assert z.shape == (2, 48)
    assert type(build_encoder("resnet18", dim=512)) is type(build_encoder("resnet18")), "its own dim needs none"
    convnet = build_encoder("convnet", dim=40)
    assert (type(convnet), convnet.dim) == (ConvNet, 40)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "resnet81"}, r"unknown encoder \(got 'resnet81'\): did you mean resnet18"),
        ({"name": "vgg"}, "choose convnet, resnet18, resnet34, resnet50, vit-ti4 … vit-l32, bert-tiny,.* timm:MODEL"),
        ({"name": "keras:vgg"}, r"unknown encoder \(got 'keras:vgg'\)"),
        ({"name": "resnet18", "stem": "tiny"}, r"unknown stem \(got 'tiny'\): choose one of imagenet, small"),
        ({"name": "resnet18", "norm": "layer"}, r"unknown norm \(got 'layer'\): choose one of batch, group"),
        ({"name": "convnet", "norm": "layer"}, "unknown norm"),
        ({"name": "resnet50", "pretrained": True}, r"needs a timm model \(got 'resnet50'\): use timm:resnet50"),
        ({"name": "convnet", "pretrained": True}, "needs a timm model"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(InputError, match=message):
        build_encoder(**options)


# --- timm ---


def test_without_timm_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)   # what a missing package looks like to import
    for make in (lambda: from_timm("resnet18"), lambda: build_encoder("timm:resnet18")):
        with pytest.raises(MissingExtra, match=r"this needs timm: pip install 'matryo\[timm\]'"):
            make()


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
def test_a_timm_model_is_an_encoder():
    encoder = build_encoder("timm:mobilenetv3_small_050").eval()   # its features are wider than its maps
    with torch.no_grad():
        assert encoder(torch.randn(2, 3, 64, 64)).shape == (2, encoder.dim)
    projected = build_encoder("timm:resnet10t", dim=32).eval()
    with torch.no_grad():
        assert projected(torch.randn(2, 3, 64, 64)).shape == (2, 32)
    with pytest.raises(InputError, match=r"unknown timm model \(got 'resnet_none'\)"):
        build_encoder("timm:resnet_none")


@pytest.mark.parametrize("neck", ["batch", "layer", "linear", "linear+batch", "linear+layer"])
@pytest.mark.parametrize("dim", [0, 24])
def test_a_neck_maps_and_normalises(neck, dim):
    torch.manual_seed(0)
    encoder = build_encoder("convnet", dim=32, neck=neck)
    encoder = encoder if not dim else Projected(encoder.encoder, dim, neck=neck)
    images = torch.randn(64, 3, 16, 16)
    z = encoder(images)
    assert z.shape == (64, dim or 32)
    if "batch" in neck:   # in training mode, of the batch
        torch.testing.assert_close(z.mean(0), torch.zeros(z.shape[1]), atol=1e-5, rtol=0)
        torch.testing.assert_close(z.var(0, unbiased=False), torch.ones(z.shape[1]), atol=1e-2, rtol=0)
    if "layer" in neck:
        torch.testing.assert_close(z.mean(1), torch.zeros(64), atol=1e-5, rtol=0)
    if "linear" in neck:
        weight = encoder.projection.weight
        torch.testing.assert_close(weight @ weight.T, torch.eye(len(weight)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("neck", ["none", "batch", "linear", "linear+batch"])
@pytest.mark.parametrize("dim", [24, 32])
def test_an_exported_neck_is_one_linear_map(neck, dim):
    torch.manual_seed(0)
    encoder = Projected(ConvNet(32), dim, neck=neck)
    with torch.no_grad():
        for _ in range(3):
            encoder(torch.randn(64, 3, 16, 16))   # statistics of the norm
        if encoder.norm is not None:
            encoder.norm.weight.uniform_(0.5, 2)
            encoder.norm.bias.normal_()
        encoder.eval()
        images = torch.randn(5, 3, 16, 16)
        weight, bias = encoder.folded()
        torch.testing.assert_close(F.linear(encoder.encoder(images), weight, bias), encoder(images))


def test_a_layer_norm_is_not_exported_as_a_map():
    with pytest.raises(InputError, match=r"layer norm .*neck batch"):
        Projected(ConvNet(32), 32, neck="layer").folded()
