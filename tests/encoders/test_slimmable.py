"""A slimmable network against the plain networks it holds: their outputs, their statistics and their gradients."""

import copy

import pytest
import torch
from torch.nn import functional as F

from matryo.encoders import ResNet, SlimmableLinear, SlimmableResNet, build_encoder, widths_dims
from matryo.encoders.layers import Layers
from matryo.encoders.resnet import Basic, Bottleneck
from matryo.errors import InputError
from matryo.heads import NestedLinear
from matryo.nesting import Nesting

WIDTHS = (0.25, 0.5, 1.0)
CHANNELS = 8


def slimmable(block=Basic, depths=(1, 2, 1, 1), *, seed=0, **options):
    """A small one in float64 whose norms all differ."""
    torch.manual_seed(seed)
    net = SlimmableResNet(block, depths, widths=WIDTHS, channels=CHANNELS, **options).double()
    for name, value in net.state_dict().items():
        if name.endswith(("running_mean", "bias")):
            value.copy_(0.1 * torch.randn_like(value))
        elif "running_var" in name or value.ndim == 1:
            value.copy_(torch.rand_like(value) + 0.5)
    return net


def by_hand(net, width, block=Basic, depths=(1, 2, 1, 1), **options):
    """A plain network of that width, with the first channels of each weight and that width's norms."""
    plain = ResNet(block, depths, channels=int(width * CHANNELS), **options).double()
    shared, state = net.state_dict(), plain.state_dict()
    for name, value in state.items():
        if name in shared:
            out, into = value.shape[:2]
            state[name] = shared[name][:out, :into]
        else:
            layer, _, leaf = name.rpartition(".")
            channels = len(state[f"{layer}.weight"])
            state[name] = shared[f"{layer}.{channels}.{leaf}"]
    plain.load_state_dict(state)
    return plain.train(net.training)


def pictures(batch=4, size=32):
    return torch.randn(batch, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


CASES = {
    "basic": (Basic, {}),
    "bottleneck": (Bottleneck, {}),
    "small stem": (Basic, {"stem": "small"}),
    "blurred": (Basic, {"layers": Layers(blurpool=True)}),
    "group norm": (Bottleneck, {"layers": Layers(norm="group", blurpool=True)}),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("block", "options"), CASES.values(), ids=CASES)
def test_each_width_is_a_plain_network(block, options, training):
    net = slimmable(block, **options).train(training)
    alone = [by_hand(net, width, block, **options) for width in WIDTHS]
    images = pictures()
    with torch.no_grad():
        for got, width, plain in zip(net(images), WIDTHS, alone, strict=True):
            assert plain.dim == int(width * net.dim)
            torch.testing.assert_close(got[:, : plain.dim], plain(images))
            assert not got[:, plain.dim :].any()
    for width, plain in zip(WIDTHS, alone, strict=True):   # a forward pass in training moves the statistics
        for name, value in by_hand(net, width, block, **options).state_dict().items():
            torch.testing.assert_close(value, plain.state_dict()[name])


@pytest.mark.parametrize(("block", "options"), CASES.values(), ids=CASES)
def test_the_network_at_one_width_can_be_taken_out(block, options):
    net = slimmable(block, **options).eval()
    for width in WIDTHS:
        taken, wanted = net.narrow(width), by_hand(net, width, block, **options).state_dict()
        assert type(taken) is ResNet
        assert not taken.training
        assert taken.state_dict().keys() == wanted.keys()
        assert all(torch.equal(value, wanted[name]) for name, value in taken.state_dict().items())
    before = net.conv1.weight.clone()
    taken.conv1.weight.data.zero_()
    assert torch.equal(net.conv1.weight, before), "its weights are copies"


@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_is_the_sum_of_those_of_the_networks_alone(bias):
    net = slimmable()
    head = SlimmableLinear(Nesting(widths_dims(net.dim, WIDTHS), weights=[1, 2, 3]), classes=5, bias=bias).double()
    images, target = pictures(), torch.tensor([0, 4, 2, 2])
    alone = [by_hand(net, width).train() for width in WIDTHS]
    losses = head.losses(net(images), target, label_smoothing=0.1)
    head.weigh(losses).backward()
    weight = head.weight.detach().clone().requires_grad_()
    shared = None if head.bias is None else head.bias.detach().clone().requires_grad_()
    wanted = {name: torch.zeros_like(value) for name, value in net.named_parameters()}
    for width, plain, loss, importance in zip(WIDTHS, alone, losses, (1, 2, 3), strict=True):
        logits = plain(images) @ weight[:, : plain.dim].T + (0 if shared is None else shared)
        own = F.cross_entropy(logits, target, label_smoothing=0.1)
        torch.testing.assert_close(loss, own)
        (importance * own).backward()
        for name, value in plain.named_parameters():
            layer, _, leaf = name.rpartition(".")
            if name in wanted:
                out, into = value.shape[:2]
                wanted[name][:out, :into] += value.grad
            else:
                wanted[f"{layer}.{len(value)}.{leaf}"] += value.grad
        assert width == plain.dim / net.dim
    for name, value in net.named_parameters():
        torch.testing.assert_close(value.grad, wanted[name])
    torch.testing.assert_close(head.weight.grad, weight.grad)
    if shared is not None:
        torch.testing.assert_close(head.bias.grad, shared.grad)


def test_the_head_of_one_width_can_be_taken_out():
    torch.manual_seed(0)
    head = SlimmableLinear(Nesting([4, 8]), classes=3).double()
    z = torch.randn(2, 5, 8, dtype=torch.float64)
    z[0, :, 4:] = 0
    for narrow, whole, columns in zip((head.narrow(4), head.narrow(8)), head.logits(z), (4, 8), strict=True):
        assert type(narrow) is NestedLinear
        assert narrow.nesting.dims == (columns,)
        torch.testing.assert_close(narrow.logits(z[columns // 8, :, :columns])[0], whole)
    assert SlimmableLinear(Nesting([4, 8]), classes=3, bias=False).narrow(4).bias is None


def test_an_update_in_either_memory_layout_is_the_same():
    """The gradient of a slice must lie in memory as the weight does: fused updates walk both side by side."""
    plain = slimmable()
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    results = []
    for net, fused in ((plain, False), (last, True)):
        images = pictures().contiguous(memory_format=torch.channels_last if fused else torch.contiguous_format)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=fused)
        for _ in range(2):
            optimizer.zero_grad()
            net(images).square().sum().backward()
            optimizer.step()
        assert all(value.grad.stride() == value.stride() for value in net.parameters())
        results.append(dict(net.named_parameters()))
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value)
    assert any(not value.is_contiguous() for value in results[1].values())


def test_all_widths_compile_to_one_graph():
    net, graphs = slimmable(depths=(1, 1, 1, 1)).float().train(), []
    wanted = copy.deepcopy(net)(pictures().float())

    def as_it_is(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(net, backend=as_it_is, fullgraph=True)
    torch.testing.assert_close(compiled(pictures().float()), wanted)
    compiled(pictures().float())
    assert len(graphs) == 1


def test_the_widths_share_everything_but_their_norms():
    with torch.device("meta"):
        plain, net = build_encoder("resnet18"), build_encoder("resnet18", widths=(0.25, 0.5, 0.75, 1.0))
    counts = [sum(value.numel() for value in each.parameters()) for each in (plain, net)]
    norms = sum(value.numel() for name, value in plain.named_parameters() if value.ndim == 1)
    assert counts[1] - counts[0] == norms * (0.25 + 0.5 + 0.75)
    assert net.dim == plain.dim == 512
    assert list(net.channels) == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    "widths", [(), (0.5,), (0.5, 0.25, 1.0), (0.5, 0.5, 1.0), (0.0, 1.0), (0.3, 1.0), (0.5, 1.5), (-0.5, 1.0)]
)
def test_widths_must_give_whole_channels(widths):
    with pytest.raises(InputError, match=r"increasing fractions of 64 .* integers, the last one 1 .*use 0.25, 0.5"):
        widths_dims(64, widths)


def test_mistakes_are_named():
    assert widths_dims(2048, (0.25, 0.5, 0.75, 1)) == (512, 1024, 1536, 2048)
    with pytest.raises(InputError, match=r"fractions of 64 that give integers.*got \(0\.3, 1\.0\)"):
        build_encoder("resnet18", widths=(0.3, 1.0))
    with pytest.raises(InputError, match=r"one the network was trained at \(got 0.75\): use one of 0.25, 0.5, 1"):
        slimmable().narrow(0.75)
    for name, dim in (("convnet", 0), ("resnet18", 64), ("timm:resnet18", 0)):
        with pytest.raises(InputError, match=r"only a ResNet with dim 0 .*resnet18 or resnet34 or resnet50 and dim 0"):
            build_encoder(name, dim=dim, widths=WIDTHS)
