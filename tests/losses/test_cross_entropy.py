"""The functional losses against plain loops in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from matryo import Nesting
from matryo.errors import NestingError
from matryo.losses import cross_entropy_by_dim, nested_cross_entropy


def plain(z, weight, target, nesting, bias=None, class_weight=None, **options):
    loss = 0
    for dim, c in zip(nesting.dims, nesting.weights, strict=True):
        logits = z[:, :dim] @ weight[:, :dim].T
        logits = logits if bias is None else logits + bias
        loss = loss + c * F.cross_entropy(logits, target, weight=class_weight, **options)
    return loss


@settings(max_examples=40, deadline=None)
@given(
    dims=st.lists(st.integers(1, 40), min_size=1, max_size=12, unique=True).map(sorted),
    batch=st.integers(1, 9),
    classes=st.integers(2, 13),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 1000),
    with_bias=st.booleans(),
    weighted=st.booleans(),
    ignore=st.booleans(),
)
def test_value_and_all_gradients(dims, batch, classes, smoothing, seed, with_bias, weighted, ignore):
    draw = torch.Generator().manual_seed(seed)
    nesting = Nesting(dims, torch.rand(len(dims), generator=draw).add(0.1).tolist())
    new = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64).requires_grad_()  # noqa: E731
    z, weight, bias = new(batch, dims[-1] + 1), new(classes, dims[-1] + 1), new(classes) if with_bias else None
    target = torch.randint(classes, (batch,), generator=draw)
    if ignore and batch > 1:
        target[0] = -100
    options = {"label_smoothing": smoothing}
    if weighted:
        options["class_weight"] = torch.rand(classes, generator=draw, dtype=torch.float64) + 0.1
    inputs = [t for t in (z, weight, bias) if t is not None]
    mine = nested_cross_entropy(z, weight, target, nesting, bias, **options)
    theirs = plain(z, weight, target, nesting, bias, **options)
    torch.testing.assert_close(mine, theirs)
    for a, b in zip(torch.autograd.grad(mine, inputs), torch.autograd.grad(theirs, inputs), strict=True):
        torch.testing.assert_close(a, b)


def test_bfloat16_logits_are_summed_in_float32():
    torch.manual_seed(0)
    z, weight, target = torch.randn(64, 256), torch.randn(50, 256) / 16, torch.randint(50, (64,))
    nesting = Nesting([8, 16, 32, 64, 128, 256])
    exact = nested_cross_entropy(z.double(), weight.double(), target, nesting)
    half = nested_cross_entropy(z.bfloat16(), weight.bfloat16(), target, nesting)
    assert half.dtype == torch.float32
    assert abs(float(half - exact)) / float(exact) < 5e-3


def test_works_under_autocast():
    z, weight, target = torch.randn(4, 16), torch.randn(5, 16), torch.tensor([0, 1, 2, 3])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nested_cross_entropy(z, weight, target, Nesting([4, 16]))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, plain(z, weight, target, Nesting([4, 16])), rtol=2e-2, atol=2e-2)


def test_per_dim_losses_are_unweighted():
    logits, target = torch.randn(3, 5, 7, dtype=torch.float64), torch.randint(7, (5,))
    losses = cross_entropy_by_dim(logits, target)
    torch.testing.assert_close(losses, torch.stack([F.cross_entropy(part, target) for part in logits]))


def test_all_ignored_is_nan_as_in_torch():
    logits, target = torch.randn(2, 3, 4), torch.full((3,), -100)
    assert cross_entropy_by_dim(logits, target).isnan().all()


def test_a_nesting_too_wide_is_named():
    with pytest.raises(NestingError, match="must not exceed the 4 dimensions"):
        nested_cross_entropy(torch.randn(2, 4), torch.randn(3, 8), torch.tensor([0, 1]), Nesting([8]))
