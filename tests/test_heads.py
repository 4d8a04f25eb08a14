"""Heads against plain loops in float64, and the properties the paper's definitions imply."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from matryo import Nesting
from matryo.errors import InputError, NestingError
from matryo.heads import NestedLinear

DIMS = [(8,), (1, 2, 3), (5, 7, 31), (8, 16, 32), tuple(range(1, 20))]


def make(dims, classes=11, **options):
    torch.manual_seed(0)
    return NestedLinear(Nesting(dims, options.pop("weights", None)), classes, **options).double()


def oracle_logits(head, z, dim):
    """One head at a time, one output at a time."""
    weight, bias = head.weight_at(dim).detach(), head.bias_at(dim)
    out = torch.zeros(len(z), head.classes, dtype=torch.float64)
    for i in range(len(z)):
        for c in range(head.classes):
            out[i, c] = sum(float(z[i, j]) * float(weight[c, j]) for j in range(dim))
            out[i, c] += 0.0 if bias is None else float(bias.detach()[c])
    return out


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dims", DIMS)
def test_logits_equal_one_head_at_a_time(dims, tied, bias):
    head = make(dims, tied=tied, bias=bias)
    z = torch.randn(3, dims[-1] + 2, dtype=torch.float64)
    logits = head(z)
    assert len(logits) == len(dims)
    for dim, got in zip(dims, logits, strict=True):
        torch.testing.assert_close(got, oracle_logits(head, z, dim))


@pytest.mark.parametrize("dims", DIMS)
def test_both_ways_of_computing_separate_heads_agree(dims):
    head = make(dims)
    z = torch.randn(3, dims[-1] + 2, dtype=torch.float64)
    torch.testing.assert_close(head._batched(z), head._looped(z))


@pytest.mark.parametrize("engine", ["plain", "chunked"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_equal_the_plain_loop(tied, smoothing, engine):
    head = make((5, 8, 30), tied=tied, weights=[2.0, 0.0, 0.5])
    z = torch.randn(6, 30, dtype=torch.float64, requires_grad=True)
    y = torch.randint(11, (6,))
    head.loss(z, y, label_smoothing=smoothing, engine=engine).backward()
    got = [p.grad.clone() for p in (z, head.weight, head.bias)]
    for p in (z, head.weight, head.bias):
        p.grad = None
    plain = 0
    for dim, c in zip(head.nesting.dims, head.nesting.weights, strict=True):
        logits = z[:, :dim] @ head.weight_at(dim).T + head.bias_at(dim)
        plain = plain + c * F.cross_entropy(logits, y, label_smoothing=smoothing)
    plain.backward()
    torch.testing.assert_close(head.loss(z, y, label_smoothing=smoothing, engine=engine), plain)
    for mine, theirs in zip(got, (z.grad, head.weight.grad, head.bias.grad), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("engine", ["plain", "chunked"])
@pytest.mark.parametrize("tied", [True, False])
def test_ignored_targets_and_class_weights_mean_what_they_mean_in_torch(tied, engine):
    head = make((5, 8, 30), tied=tied, weights=[2.0, 0.0, 0.5])
    z, y, rare = torch.randn(6, 30, dtype=torch.float64), torch.tensor([3, -1, 0, 10, -1, 3]), torch.rand(11).double()
    options = {"label_smoothing": 0.1, "ignore_index": -1}
    want = sum(
        c * F.cross_entropy(logits, y, weight=rare, **options)
        for c, logits in zip(head.nesting.weights, head(z), strict=True)
    )
    got = head.loss(z, y, class_weight=rare, engine=engine, **options)
    torch.testing.assert_close(got, want)
    wanted, found = torch.autograd.grad(want, head.weight)[0], torch.autograd.grad(got, head.weight)[0]
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("lead", [(), (0,), (2, 3)])
def test_leading_axes_stay(tied, lead):
    head = make((5, 8), tied=tied)
    z = torch.randn(*lead, 8, dtype=torch.float64)
    for got, want in zip(head(z), head(z.reshape(-1, 8)), strict=True):
        torch.testing.assert_close(got, want.reshape(*lead, 11))


def test_weights_c_m_are_exact_whatever_the_head_is_made_of():
    want = make((4, 8), weights=[0.1, 0.3])
    with torch.device("meta"):
        late = NestedLinear(want.nesting, 11)
    late = late.to_empty(device="cpu").double()   # as those do who load large models: memory first, then its contents
    late.load_state_dict(want.state_dict())
    z, y = torch.randn(5, 8, dtype=torch.float64), torch.randint(11, (5,))
    torch.testing.assert_close(late.loss(z, y), want.loss(z, y))
    half = NestedLinear(want.nesting, 11).bfloat16()
    losses = half.losses(z.bfloat16(), y)
    torch.testing.assert_close(half.weigh(losses), 0.1 * losses[0] + 0.3 * losses[1])


@pytest.mark.parametrize("tied", [True, False])
def test_logits_too_many_to_keep_are_not_kept_and_the_loss_of_each_dim_stays_differentiable(tied, monkeypatch):
    head = make((4, 9), tied=tied)
    z, y = torch.randn(30, 9, dtype=torch.float64, requires_grad=True), torch.randint(11, (30,))
    want = torch.autograd.grad(head.losses(z, y)[0], [z, head.weight, head.bias])
    monkeypatch.setattr("matryo.losses.engines._MAX_STORED", dict.fromkeys(("cpu", "cuda"), 30 * 11 * 2 - 1))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one.numel()) or one, lambda one: one):
        losses = head.losses(z, y)
    assert max(kept) == max(z.numel(), head.weight.numel()) < 30 * 11
    got = torch.autograd.grad(losses[0], [z, head.weight, head.bias])
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_tied_head_at_full_dim_is_a_linear_layer():
    head = make((4, 16), tied=True)
    linear = nn.Linear(16, 11).double()
    linear.load_state_dict(head.state_dict())
    z = torch.randn(5, 16, dtype=torch.float64)
    torch.testing.assert_close(head(z)[-1], linear(z))


@pytest.mark.parametrize("tied", [True, False])
def test_one_dim_is_the_plain_loss_of_a_fixed_head(tied):
    head = make((8,), tied=tied)
    z, y = torch.randn(5, 20, dtype=torch.float64), torch.randint(11, (5,))
    plain = F.cross_entropy(F.linear(z[:, :8], head.weight, head.bias_at(8)), y)
    torch.testing.assert_close(head.loss(z, y), plain)


def test_the_loss_is_linear_in_the_weights():
    z, y = torch.randn(5, 16, dtype=torch.float64), torch.randint(11, (5,))
    a, b, both = (make((4, 16), weights=w).loss(z, y) for w in ([1, 0], [0, 3], [1, 3]))
    torch.testing.assert_close(a + b, both)


def test_separate_heads_start_as_linear_layers_do():
    head = NestedLinear(Nesting([4, 64]), 2000)
    for dim in (4, 64):
        weight = head.weight_at(dim).detach()
        bound = dim**-0.5
        assert weight.abs().max() <= bound
        assert abs(float(weight.std()) - bound / 3**0.5) < 0.02 * bound


def test_a_head_holds_what_the_method_needs_and_no_more():
    separate, tied = NestedLinear(Nesting([8, 16]), 10), NestedLinear(Nesting([8, 16]), 10, tied=True)
    assert sum(p.numel() for p in separate.parameters()) == 10 * (8 + 16) + 2 * 10
    assert sum(p.numel() for p in tied.parameters()) == 10 * 16 + 10


def test_labels_above_2048_and_65535_stay_apart():
    head = NestedLinear(Nesting([2]), 70_000, bias=False).double()
    z = torch.randn(1, 2, dtype=torch.float64)
    logits = head(z)[0]
    for label in (2049, 65_537, 69_999):
        expected = logits.logsumexp(-1) - logits[0, label]
        torch.testing.assert_close(head.loss(z, torch.tensor([label])), expected[0])


def test_bad_input_is_named():
    with pytest.raises(NestingError, match=r"must not exceed the 8 dimensions.*got \(8, 16\).*wider encoder"):
        NestedLinear(Nesting([8, 16]), 3)(torch.randn(2, 8))
    with pytest.raises(InputError, match="classes must be at least 1"):
        NestedLinear(Nesting([8]), 0)
    assert NestedLinear([8, 16], 3).nesting == Nesting([8, 16])
    separate, tied = (NestedLinear(Nesting([4, 8]), 3, tied=one) for one in (False, True))
    for head in (separate, tied):
        with pytest.raises(InputError, match=r"must be \[batch, d\] and \[classes, .*\(got .*\(5, 2, 8\)"):
            head.loss(torch.randn(5, 2, 8), torch.zeros(5, 2, dtype=torch.long))
    for at in (separate.weight_at, separate.bias_at):
        with pytest.raises(NestingError, match=r"only at the dims they were trained for \(got 6\): use dim 4, 8"):
            at(6)
    assert tied.weight_at(6).shape == (3, 6)
    with pytest.raises(NestingError, match=r"must lie in 1 … 8.*got 9"):
        tied.weight_at(9)
    assert "separate" in repr(NestedLinear(Nesting([8]), 2))
