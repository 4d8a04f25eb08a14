"""The nested contrastive loss against a loop over truncated vectors in float64, whatever the engine."""

import importlib
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from matryo import Nesting, truncate
from matryo.errors import InputError, NestingError
from matryo.losses import SelfDistil, nested_contrastive

NEEDS_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
# Triton's interpreter computes what lies beyond the last column, too, and numpy warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning")


def plain(a, b, nesting, temperature, *, symmetric=False, negatives=None):
    target = torch.arange(len(a), device=a.device)
    candidates = b if negatives is None else torch.cat([b, negatives])
    loss = 0
    for dim, c in zip(nesting.dims, nesting.weights, strict=True):
        one = F.cross_entropy(truncate(a, dim) @ truncate(candidates, dim).T / temperature, target)
        if symmetric:
            one = (one + F.cross_entropy(truncate(b, dim) @ truncate(a, dim).T / temperature, target)) / 2
        loss = loss + c * one
    return loss


def draw(dims, batch, hard, seed, device, dtype):
    """Queries, positives, negatives and a temperature, and the same in float64."""
    source = torch.Generator().manual_seed(seed)
    nesting = Nesting(dims, torch.rand(len(dims), generator=source).add(0.1).tolist())
    new = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64).to(device, dtype)  # noqa: E731
    a = new(batch, dims[-1] + 1)
    tensors = [a, a + new(batch, dims[-1] + 1), *([new(hard, dims[-1] + 1)] if hard else [])]
    tensors.append(torch.tensor(0.3, dtype=torch.promote_types(dtype, torch.float32), device=device))
    given = [one.requires_grad_() for one in tensors]
    return nesting, given, [one.detach().double().requires_grad_() for one in tensors]


def call(loss, nesting, tensors, **options):
    a, b, *negatives, temperature = tensors
    return loss(a, b, nesting, temperature, negatives=negatives[0] if negatives else None, **options)


def compare(engine, nesting, given, exact, symmetric=False, close=None):
    close = {"check_dtype": False, **(close or {})}
    mine = call(nested_contrastive, nesting, given, symmetric=symmetric, engine=engine)
    theirs = call(plain, nesting, exact, symmetric=symmetric)
    torch.testing.assert_close(mine, theirs, **close)
    for a, b in zip(torch.autograd.grad(mine, given), torch.autograd.grad(theirs, exact), strict=True):
        torch.testing.assert_close(a, b, **close)


@pytest.mark.parametrize("exact_engine", ["plain", "chunked"])
@settings(max_examples=30, deadline=None)
@given(
    dims=st.one_of(
        st.lists(st.integers(1, 40), min_size=1, max_size=12, unique=True).map(sorted),
        st.integers(13, 64).map(lambda count: list(range(1, count + 1))),
    ),
    batch=st.integers(1, 9),
    hard=st.integers(0, 5),
    seed=st.integers(0, 1000),
    symmetric=st.booleans(),
)
def test_value_and_all_gradients(device, exact_engine, dims, batch, hard, seed, symmetric):
    # Where a cosine is ±1 at a dim of 1, its gradient is the difference of large numbers.
    drawn = draw(dims, batch, hard, seed, device, torch.float64)
    compare(exact_engine, *drawn, symmetric=symmetric, close={"rtol": 1e-7, "atol": 1e-7})


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("hard", [0, 3])
def test_single_precision(engine, device, hard, symmetric):
    drawn = draw((5, 8, 40), 7, hard, 1, device, torch.float32)
    compare(engine, *drawn, symmetric=symmetric, close={"rtol": 2e-4, "atol": 2e-5})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(engine, device, dtype):
    drawn = draw((8, 24, 64), 33, 5, 2, device, dtype)
    compare(engine, *drawn, symmetric=True, close={"rtol": 3e-2, "atol": 2e-2})


def test_autocast_multiplies_in_half_precision_and_gradients_stay_single(engine, device):
    nesting, given, exact = draw((8, 24), 9, 0, 3, device, torch.float32)
    with torch.autocast(device, dtype=torch.bfloat16):
        mine = call(nested_contrastive, nesting, given, engine=engine)
    assert mine.dtype == torch.float32
    theirs = call(plain, nesting, exact)
    torch.testing.assert_close(mine, theirs, rtol=3e-2, atol=2e-2, check_dtype=False)
    for a, b in zip(torch.autograd.grad(mine, given), torch.autograd.grad(theirs, exact), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=5e-2, atol=3e-2, check_dtype=False)


def test_the_length_of_vectors_does_not_matter(engine, device, precise):
    dtype, close = precise(engine)
    nesting, (a, b, _), _ = draw((3, 8), 5, 0, 0, device, dtype)
    one, other = (nested_contrastive(a * k, b / k, nesting, 0.1, engine=engine) for k in (1, 7))
    torch.testing.assert_close(one, other, **close)


def test_a_prefix_of_zeros_is_like_nothing_and_learns_nothing_at_its_dim(engine, device, precise):
    dtype, close = precise(engine)
    nesting, (a, b, temperature), _ = draw((3, 8), 5, 0, 0, device, dtype)
    a, b = a.detach().clone(), b.detach().clone()
    a[0], b[1, :3] = 0, 0
    want = plain(a.double(), b.double(), nesting, 0.3, symmetric=True)
    given = [a.requires_grad_(), b.requires_grad_(), temperature]
    got = call(nested_contrastive, nesting, given, symmetric=True, engine=engine)
    torch.testing.assert_close(got, want, check_dtype=False, **close)
    gradients = torch.autograd.grad(got, given)
    assert all(one.isfinite().all() for one in gradients)
    assert not gradients[0][0].any()


def test_only_some_inputs_need_gradients(engine, device, precise):
    dtype, close = precise(engine)
    nesting, (a, b, _), (x, y, _) = draw((3, 8), 5, 0, 0, device, dtype)
    (mine,) = torch.autograd.grad(nested_contrastive(a, b.detach(), nesting, 0.3, engine=engine), [a])
    (theirs,) = torch.autograd.grad(plain(x, y.detach(), nesting, 0.3), [x])
    torch.testing.assert_close(mine, theirs, check_dtype=False, **close)
    assert not nested_contrastive(a.detach(), b.detach(), nesting, engine=engine).requires_grad


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")   # what torch.compile does itself
def test_a_compiled_model_has_it_in_one_graph(lean, device, precise):
    dtype, close = precise(lean)
    nesting, given, exact = draw((3, 8), 5, 2, 0, device, dtype)
    function = torch.compile(
        lambda *tensors: call(nested_contrastive, nesting, tensors, symmetric=True, engine=lean),
        fullgraph=True,
        backend="aot_eager",
    )
    mine, theirs = function(*given), call(plain, nesting, exact, symmetric=True)
    torch.testing.assert_close(mine, theirs, check_dtype=False, **close)
    for a, b in zip(torch.autograd.grad(mine, given), torch.autograd.grad(theirs, exact), strict=True):
        torch.testing.assert_close(a, b, check_dtype=False, **close)


def test_one_process_gathers_its_own(engine, device, precise):
    nesting, given, _ = draw((3, 8), 5, 2, 0, device, precise(engine)[0])
    one, other = (call(nested_contrastive, nesting, given, gather=g, engine=engine) for g in (False, True))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("fused", [False, pytest.param(True, marks=NEEDS_TRITON)])
def test_a_second_derivative_of_the_plain_engine(device, monkeypatch, fused):
    """A GPU takes norms by kernels whatever the engine, and kernels have no derivative."""
    if fused:
        rows = importlib.import_module("matryo.losses.engines.triton.rows")
        monkeypatch.setattr("matryo.losses.contrastive._fused_rows", lambda _: rows)
    a, b = (torch.randn(5, 24, generator=torch.Generator().manual_seed(seed)).to(device) for seed in (0, 1))
    a.requires_grad_()
    found = []
    for loss in (
        nested_contrastive(a, b, Nesting([8, 24]), 0.1, engine="plain"),
        sum(F.cross_entropy(truncate(a, m) @ truncate(b, m).T / 0.1, torch.arange(5, device=device)) for m in (8, 24)),
    ):
        (first,) = torch.autograd.grad(loss, a, create_graph=True)
        found.append((first.detach(), *torch.autograd.grad(first.square().sum(), a)))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


def test_bad_input_is_named():
    a, b, nesting = torch.randn(3, 4), torch.randn(3, 4), Nesting([2, 4])
    with pytest.raises(NestingError, match="must not exceed the 4 dimensions"):
        nested_contrastive(a, b, Nesting([8]))
    with pytest.raises(NestingError, match="must not exceed the 2 dimensions"):
        nested_contrastive(a, b, nesting, negatives=torch.randn(5, 2))
    assert nested_contrastive(a, b, (2, 4)) == nested_contrastive(a, b, nesting)
    for wrong, options, message in [
        ((a[0], b), {}, r"a and b must be \[batch, d\] each \(got shapes \(4,\) and \(3, 4\)\)"),
        ((a, b[:2]), {}, r"same number of rows \(got 3 queries and 2 positives\): pass one positive per query"),
        ((a, b.double()), {}, r"a and b must have the same dtype \(got torch.float32 and torch.float64\)"),
        ((a > 0, b > 0), {}, r"a and b must be floating-point numbers \(got torch.bool and torch.bool\): .*float\(\)"),
        ((a, b.to("meta")), {}, r"a and b must be on one device \(got cpu and meta\)"),
        ((a, b), {"negatives": b[0]}, r"a and negatives must be \[batch, d\] and \[n, d\]"),
        ((a, b), {"temperature": 0}, r"temperature must be a positive number or a one-element tensor \(got 0\)"),
        ((a, b), {"temperature": torch.ones(2)}, r"one-element tensor \(got a tensor of shape \(2,\)\)"),
        ((a, b), {"engine": "gpu"}, "engine must be one of"),
    ]:
        with pytest.raises(InputError, match=message):
            nested_contrastive(*wrong, nesting, **options)


def test_long_vectors_in_float16_do_not_overflow(device):
    draw = torch.Generator().manual_seed(0)
    a = (torch.randn(4, 24, generator=draw) * 100).to(device, torch.float16).requires_grad_()
    b = (a.detach() + torch.randn(4, 24, generator=draw).to(device, torch.float16)).requires_grad_()
    nesting = Nesting([8, 24])
    exact = nested_contrastive(a.double(), b.double(), nesting)
    loss = nested_contrastive(a, b, nesting)
    assert abs(float((loss - exact).detach())) < 1e-3
    assert all(torch.isfinite(one).all() for one in torch.autograd.grad(loss, [a, b]))


@pytest.mark.parametrize("how", [SelfDistil(0.5), SelfDistil(0.3, "next", 2.0), SelfDistil(1.0, "full", 0.5)])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("kept", ["plain", "chunked", "small chunks"])
def test_self_distillation_is_that_of_a_loop(kept, symmetric, how, device, monkeypatch):
    if kept == "small chunks":
        monkeypatch.setattr("matryo.losses.engines.chunked._TILE", 64)
        monkeypatch.setattr("matryo.losses.engines.chunked._ROWS", 4)
    nesting, given, exact = draw((3, 8, 20), 7, 4, 1, device, torch.float64)
    options = {"symmetric": symmetric, "self_distil": how, "engine": "plain" if kept == "plain" else "chunked"}
    mine = call(nested_contrastive, nesting, given, **options)
    a, b, negatives, temperature = exact
    theirs, turns = 0, [(a, torch.cat([b, negatives])), (b, a)][: 1 + symmetric]
    for queries, candidates in turns:
        scores = [truncate(queries, m) @ truncate(candidates, m).T / temperature for m in nesting.dims]
        for i, (own, weight) in enumerate(zip(scores, nesting.weights, strict=True)):
            loss = F.cross_entropy(own, torch.arange(7, device=device))
            if i < 2:
                teacher = scores[-1 if how.teacher == "full" else i + 1].detach() / how.temperature
                soft = F.cross_entropy(own / how.temperature, teacher.softmax(-1)) * how.temperature**2
                loss = (1 - how.share) * loss + how.share * soft
            theirs = theirs + weight * loss / len(turns)
    torch.testing.assert_close(mine, theirs)
    for x, y in zip(torch.autograd.grad(mine, given), torch.autograd.grad(theirs, exact), strict=True):
        torch.testing.assert_close(x, y)


def test_the_triton_engine_refuses_what_it_cannot_distil(device):
    nesting, (a, b, temperature), _ = draw((3, 8), 4, 0, 0, device, torch.float32)
    if find_spec("triton") is not None:
        with pytest.raises(InputError, match="cannot distil from larger dims"):
            nested_contrastive(a, b, nesting, temperature, self_distil=0.5, engine="triton")
    one = nested_contrastive(a, b, [8], temperature, self_distil=0.5)
    torch.testing.assert_close(one, nested_contrastive(a, b, [8], temperature))
