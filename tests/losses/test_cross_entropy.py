"""The functional losses against plain loops in float64, whatever the engine."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from matryo import Nesting
from matryo.errors import InputError, NestingError
from matryo.heads import NestedLinear
from matryo.losses import cross_entropy_by_dim, nested_cross_entropy, prefix_logits
from matryo.losses.cross_entropy import weighed

HALVES = [torch.bfloat16, torch.float16]


def plain(z, weight, target, nesting, bias=None, class_weight=None, **options):
    loss = 0
    for dim, c in zip(nesting.dims, nesting.weights, strict=True):
        logits = z[:, :dim] @ weight[:, :dim].T
        logits = logits if bias is None else logits + bias
        loss = loss + c * F.cross_entropy(logits, target, weight=class_weight, **options)
    return loss


def draw(dims, batch, classes, seed, device, dtype, *, bias=True, ignored=False, weighted=False):
    """The arguments of a loss, and the same in float64; all numbers are those that ``dtype`` has."""
    source = torch.Generator().manual_seed(seed)
    nesting = Nesting(dims, torch.rand(len(dims), generator=source).add(0.1).tolist())
    shapes = [(batch, dims[-1] + 1), (classes, dims[-1] + 1), *([(classes,)] if bias else [])]
    tensors = [torch.randn(*shape, generator=source, dtype=torch.float64).to(device, dtype) for shape in shapes]
    target = torch.randint(classes, (batch,), generator=source).to(device)
    if ignored and batch > 1:
        target[0] = -100
    wide = torch.promote_types(dtype, torch.float32)
    shares = (torch.rand(classes, generator=source, dtype=torch.float64) + 0.1).to(device, wide) if weighted else None
    given = [one.requires_grad_() for one in tensors]
    exact = [one.detach().double().requires_grad_() for one in tensors]
    return nesting, target, given, exact, shares


def compare(engine, nesting, target, given, exact, shares=None, close=None, **options):
    call = lambda loss, tensors, how: loss(  # noqa: E731
        tensors[0], tensors[1], target, nesting, *tensors[2:], **options, **how
    )
    mine = call(nested_cross_entropy, given, {"engine": engine, "class_weight": shares})
    theirs = call(plain, exact, {"class_weight": None if shares is None else shares.double()})
    close = {"check_dtype": False, **(close or {})}
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
    classes=st.integers(1, 13),
    smoothing=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 1000),
    bias=st.booleans(),
    weighted=st.booleans(),
    ignored=st.booleans(),
)
def test_value_and_all_gradients(device, exact_engine, dims, batch, classes, smoothing, seed, **kind):
    drawn = draw(dims, batch, classes, seed, device, torch.float64, **kind)
    compare(exact_engine, *drawn, label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dims", [(5,), (1, 3, 7), (8, 16, 40)])
def test_single_precision(engine, device, dims, smoothing):
    drawn = draw(dims, 6, 37, 3, device, torch.float32, ignored=True, weighted=smoothing > 0)
    compare(engine, *drawn, label_smoothing=smoothing, close={"rtol": 1e-4, "atol": 1e-5})


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision(engine, device, dtype):
    drawn = draw((8, 24, 64), 33, 101, 4, device, dtype, ignored=True, weighted=True)
    compare(engine, *drawn, label_smoothing=0.1, close={"rtol": 2e-2, "atol": 2e-2})


def test_half_precision_is_summed_in_single(engine, device):
    torch.manual_seed(0)
    z, weight = (torch.randn(n, 256, device=device) for n in (64, 50))
    z, weight = z.bfloat16(), (weight / 16).bfloat16()
    target, nesting = torch.randint(50, (64,), device=device), Nesting([8, 16, 32, 64, 128, 256])
    exact = plain(z.double(), weight.double(), target, nesting)
    half = nested_cross_entropy(z, weight, target, nesting, engine=engine)
    assert half.dtype == torch.float32
    # Plain rounds the product of each block to half precision; the others round nothing.
    assert abs(float(half - exact)) / float(exact) < (5e-3 if engine == "plain" else 1e-5)


@pytest.mark.parametrize("frozen", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 1, 2}])
def test_only_some_inputs_need_gradients(engine, device, frozen, precise):
    dtype, close = precise(engine)
    nesting, target, given, exact, _ = draw((3, 8), 4, 5, 0, device, dtype)
    for i in frozen:
        given[i].requires_grad_(False)
    loss = nested_cross_entropy(given[0], given[1], target, nesting, given[2], engine=engine)
    assert loss.requires_grad == (len(frozen) < 3)
    learned = [i for i in range(3) if i not in frozen]
    if learned:
        wanted = torch.autograd.grad(plain(exact[0], exact[1], target, nesting, exact[2]), [exact[i] for i in learned])
        for a, b in zip(torch.autograd.grad(loss, [given[i] for i in learned]), wanted, strict=True):
            torch.testing.assert_close(a, b, check_dtype=False, **close)


def test_autocast_multiplies_in_half_precision_and_gradients_stay_single(engine, device):
    nesting, target, given, exact, _ = draw((4, 16), 4, 5, 0, device, torch.float32)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = nested_cross_entropy(given[0], given[1], target, nesting, given[2], engine=engine)
    assert loss.dtype == torch.float32
    wanted = plain(exact[0], exact[1], target, nesting, exact[2])
    torch.testing.assert_close(loss, wanted, rtol=2e-2, atol=2e-2, check_dtype=False)
    for a, b in zip(torch.autograd.grad(loss, given), torch.autograd.grad(wanted, exact), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=5e-2, atol=2e-2, check_dtype=False)


def test_autocast_rounds_the_vectors_and_nothing_else(device):
    nesting, target, given, _, _ = draw((4, 16), 4, 5, 0, device, torch.float32)
    options = {"label_smoothing": 0.3, "engine": "chunked"}
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = nested_cross_entropy(given[0], given[1], target, nesting, given[2], **options)
    rounded = [one.bfloat16().float() for one in given[:2]]
    torch.testing.assert_close(loss, nested_cross_entropy(*rounded, target, nesting, given[2], **options))


def test_a_second_derivative_is_refused(lean, device):
    nesting, target, given, _, _ = draw((4, 16), 4, 5, 0, device, torch.float32, bias=False)
    loss = nested_cross_entropy(*given, target, nesting, engine=lean)
    first = torch.autograd.grad(loss, given[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="reduce_backward"):
        first.sum().backward()


def test_it_is_refused_after_a_first_one_too(lean, device):
    nesting, target, given, _, _ = draw((4, 16), 4, 5, 0, device, torch.float32, bias=False)
    loss = nested_cross_entropy(*given, target, nesting, engine=lean)
    loss.backward(retain_graph=True)
    first = torch.autograd.grad(loss, given[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="reduce_backward"):
        first.sum().backward()


def test_what_is_only_traced_leaves_nothing_behind(device):
    nesting = Nesting([2, 4], [0.25, 7.0])
    with FakeTensorMode():
        weighed(torch.randn(2, device=device), nesting)
    assert weighed(torch.ones(2, device=device), nesting) == 7.25


def test_gradients_accumulate_over_two_batches(engine, device, precise):
    dtype, close = precise(engine)
    weights, wanted = [], []
    for seed in (0, 1):
        nesting, target, given, exact, _ = draw((3, 8), 4, 5, seed, device, dtype, bias=False)
        weights, wanted = weights or [given[1]], wanted or [exact[1]]
        nested_cross_entropy(given[0], weights[0], target, nesting, engine=engine).backward()
        plain(exact[0], wanted[0], target, nesting).backward()
    torch.testing.assert_close(weights[0].grad, wanted[0].grad, check_dtype=False, **close)


def test_a_compiled_model_has_it_in_one_graph(engine, device, precise):
    dtype, close = precise(engine)
    nesting, target, given, exact, _ = draw((3, 8), 4, 5, 0, device, dtype)
    function = torch.compile(
        lambda z, w, b: nested_cross_entropy(z, w, target, nesting, b, label_smoothing=0.1, engine=engine),
        fullgraph=True,
        backend="aot_eager",
    )
    mine = function(*given)
    theirs = plain(exact[0], exact[1], target, nesting, exact[2], label_smoothing=0.1)
    torch.testing.assert_close(mine, theirs, check_dtype=False, **close)
    for a, b in zip(torch.autograd.grad(mine, given), torch.autograd.grad(theirs, exact), strict=True):
        torch.testing.assert_close(a, b, check_dtype=False, **close)


def test_any_integer_is_a_target(engine, device, precise):
    nesting, target, given, _, _ = draw((3, 8), 4, 5, 0, device, precise(engine)[0], bias=False)
    one, other = (nested_cross_entropy(*given, to, nesting, engine=engine) for to in (target, target.int()))
    torch.testing.assert_close(one, other)


def test_per_dim_losses_are_unweighted():
    logits, target = torch.randn(3, 5, 7, dtype=torch.float64), torch.randint(7, (5,))
    losses = cross_entropy_by_dim(logits, target)
    torch.testing.assert_close(losses, torch.stack([F.cross_entropy(part, target) for part in logits]))


def test_all_ignored_is_nan_as_in_torch(engine, device):
    z, weight, target = torch.randn(3, 4, device=device), torch.randn(5, 4, device=device), torch.tensor([-100] * 3)
    assert nested_cross_entropy(z, weight, target.to(device), Nesting([2, 4]), engine=engine).isnan()


def test_a_list_of_dims_is_a_nesting(engine, device):
    z, weight, target = torch.randn(2, 4).to(device), torch.randn(3, 4).to(device), torch.tensor([0, 1]).to(device)
    dims = [2, 4]
    assert nested_cross_entropy(z, weight, target, dims, engine=engine) == nested_cross_entropy(
        z, weight, target, Nesting(dims), engine=engine
    )
    assert torch.equal(prefix_logits(z, weight, dims), prefix_logits(z, weight, Nesting(dims)))


def test_bad_input_is_named(engine):
    z, weight, target, nesting = torch.randn(2, 4), torch.randn(3, 4), torch.tensor([0, 1]), Nesting([2, 4])
    with pytest.raises(NestingError, match="must not exceed the 4 dimensions"):
        nested_cross_entropy(z, torch.randn(3, 8), target, Nesting([8]), engine=engine)
    with pytest.raises(InputError, match=r"logits must be \[dims, batch, classes\] \(got shape \(2, 3\)\)"):
        cross_entropy_by_dim(z @ weight.T, target)
    for wrong, message in [
        ((z[None], weight, target), r"must be \[batch, d\] and \[classes, d\] \(got shapes \(1, 2, 4\)"),
        ((z, weight.half(), target), r"same dtype \(got torch.float32 and torch.float16\): .*or use torch.autocast"),
        ((z.double(), weight, target), r"got torch.float64 and torch.float32\): convert one with .to\(\)$"),
        ((z.long(), weight.long(), target), r"must be floating-point numbers \(got torch.int64 and torch.int64\)"),
        ((z, weight[:, :2], target), r"weight must have at least 4 columns, the largest dim \(got shape \(3, 2\)\)"),
        ((z, weight.to("meta"), target), r"on one device \(got cpu and meta\): move one with"),
        ((z, weight, target.to("meta")), r"target must be on the device of the embeddings \(got meta and cpu\)"),
        ((z, weight, target[:1]), r"2 class indices, one per embedding \(got torch.int64 of shape \(1,\)"),
        ((z, weight, torch.rand(2)), r"2 class indices.*got torch.float32"),
        ((z, weight, torch.tensor([0, 3])), r"must be between 0 and 2 \(got 3\)"),
        ((z, weight, torch.tensor([-1, 1])), r"must be between 0 and 2 \(got -1\)"),
    ]:
        with pytest.raises(InputError, match=message):
            nested_cross_entropy(*wrong, nesting, engine=engine)
    for options, message in [
        ({"bias": torch.rand(4)}, r"bias must have one value per class .*\(got shape \(4,\)\): pass shape \(3,\)"),
        ({"bias": torch.rand(3, device="meta")}, r"bias must be on the device of the embeddings"),
        ({"class_weight": torch.rand(2)}, r"class_weight must have one value per class"),
        ({"label_smoothing": 1.5}, r"label_smoothing must be between 0 and 1 \(got 1.5\)"),
        ({"engine": "cuda"}, "engine must be one of"),
    ]:
        with pytest.raises(InputError, match=message):
            nested_cross_entropy(z, weight, target, nesting, **{"engine": engine, **options})


def test_a_batch_of_none_is_nan_whatever_the_engine(engine, device):
    z, weight = torch.zeros(0, 8, device=device), torch.randn(5, 8, device=device, requires_grad=True)
    none = torch.zeros(0, dtype=torch.long, device=device)
    loss = nested_cross_entropy(z, weight, none, Nesting([4, 8]), engine=engine)
    loss.backward()
    assert loss.isnan()
    assert not weight.grad.any()


def test_a_bias_of_another_shape_and_a_negative_class_weight_are_refused():
    z, weight, target = torch.randn(2, 8), torch.randn(5, 8), torch.tensor([0, 1])
    with pytest.raises(InputError, match=r"bias must have one value per class \(5 classes\)"):
        nested_cross_entropy(z, weight, target, Nesting([8]), bias=torch.zeros(1, 5))
    with pytest.raises(InputError, match="class weights must not be negative"):
        nested_cross_entropy(z, weight, target, Nesting([8]), class_weight=torch.tensor([1.0, 1, -1, 1, 1]))


def test_separate_heads_in_half_precision_have_one_dtype_whatever_the_engine(lean, device):
    head = NestedLinear(Nesting([4, 8]), 5).to(device, torch.bfloat16)
    z, target = torch.randn(3, 8, device=device, dtype=torch.bfloat16), torch.tensor([0, 1, 2], device=device)
    assert head.losses(z, target, engine="plain").dtype == head.losses(z, target, engine=lean).dtype == torch.float32
