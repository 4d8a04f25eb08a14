"""What the engines compute, against the formulas of their contract written out in float64 over all scores."""

import importlib
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from matryo import Nesting
from matryo.errors import InputError
from matryo.losses.engines import choose, chunked
from matryo.losses.engines.contract import ScoreGradient, Scores
from matryo.losses.engines.targets import scores_shared

# Triton's interpreter computes what lies beyond the last column, too, and numpy warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning")

NEEDS_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
MODULES = {"chunked": "matryo.losses.engines.chunked", "triton": "matryo.losses.engines.triton.engine"}
KINDS = [
    {},
    {"bias": True, "smooth": True},
    {"tied": False, "bias": True},
    {"tied": False, "smooth": True},
    {"scaled": True, "over_rows": True},
    {"scaled": True, "bias": True, "smooth": True, "over_rows": True},
]


def make(dims, rows, columns, seed, device, dtype, *, tied=True, bias=False, scaled=False):
    draw = torch.Generator().manual_seed(seed)
    wide = torch.promote_types(dtype, torch.float32)
    new = lambda *shape, to=dtype: torch.randn(*shape, generator=draw, dtype=torch.float64).to(device, to)  # noqa: E731
    nesting, count = Nesting(dims), len(dims)
    return Scores(
        new(rows, dims[-1] + 3) / dims[-1] ** 0.5,
        new(columns, dims[-1] + 5 if tied else sum(dims)),
        nesting,
        tied,
        (new(columns, to=wide) if tied else new(count, columns, to=wide)) if bias else None,
        new(count, rows, to=wide).abs() + 0.5 if scaled else None,
        new(count, columns, to=wide).abs() + 0.5 if scaled else None,
    )


def oracle_products(scores):
    """Left · right · ⟨x, y⟩, [dims, rows, columns] in float64, one dim at a time."""
    found = []
    for i, (dim, start) in enumerate(zip(scores.nesting.dims, scores.starts, strict=True)):
        product = scores.x[:, :dim].double() @ scores.y[:, start : start + dim].double().T
        if scores.left is not None:
            product = product * scores.left[i, :, None].double() * scores.right[i].double()
        found.append(product)
    return torch.stack(found)


def oracle_bias(scores):
    if scores.bias is None:
        return 0.0
    return scores.bias.double() if scores.tied else scores.bias.double()[:, None]


def oracle_score_gradient(score, grad):
    grads = grad.row_coef.double()[:, :, None] * (score - grad.row_lse.double()[:, :, None]).exp()
    if grad.column_lse is not None:
        grads += grad.column_coef.double()[:, None] * (score - grad.column_lse.double()[:, None]).exp()
    for row, target in enumerate(grad.target.tolist()):
        if target >= 0:
            grads[:, row, target] -= grad.target_coef[:, row].double()
    if grad.share_coef is not None:
        grads -= grad.share_coef.double()[:, :, None] * grad.share.double()
    return grads


def oracle_gradients(scores, grads, product):
    x, y = torch.zeros_like(scores.x, dtype=torch.float64), torch.zeros_like(scores.y, dtype=torch.float64)
    for i, (dim, start) in enumerate(zip(scores.nesting.dims, scores.starts, strict=True)):
        scaled = grads[i]
        if scores.left is not None:
            scaled = scaled * scores.left[i, :, None].double() * scores.right[i].double()
        x[:, :dim] += scaled @ scores.y[:, start : start + dim].double()
        y[:, start : start + dim] += scaled.T @ scores.x[:, :dim].double()
    return x, y, grads.sum((0, 1) if scores.tied else 1), (grads * product).sum(2), (grads * product).sum(1)


def make_target(scores, seed):
    draw = torch.Generator().manual_seed(seed + 1)
    return torch.randint(-1, scores.columns, (scores.rows,), generator=draw).to(scores.x.device)


def make_score_gradient(scores, target, row_lse, own, column_lse, seed, *, smooth=False):
    draw, (dims, rows), columns = torch.Generator().manual_seed(seed), row_lse.shape, scores.columns
    new = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64).to(row_lse)  # noqa: E731
    sign = new(dims, 1).sign()   # one sign per dim, that of the upstream gradient
    row_coef = new(dims, rows).abs() * sign
    row_coef[:, ::3] = 0   # ignored rows
    return ScoreGradient(
        row_lse, row_coef, new(dims, rows), target, own,
        column_lse, None if column_lse is None else new(dims, columns).abs() * sign,
        new(dims, rows) if smooth else None, new(columns) if smooth else None,
    )  # fmt: skip


def close_by_norm(mine, theirs):
    """Half precision rounds the grads: an element may be small by cancellation, a whole gradient is not."""
    assert ((mine.double() - theirs).norm() / theirs.norm()) < 8e-3


def check(engine, scores, seed=0, *, over_rows=False, smooth=False, by_norm=False, **close):
    """Sums of scores are float32 at least, whatever the dtype; ``close`` is for gradients, which are stored in it."""
    module = importlib.import_module(MODULES[engine])
    product = oracle_products(scores)
    score = product + oracle_bias(scores)
    target = make_target(scores, seed)
    row_lse, own, column_lse = module.reductions(scores, target, over_rows)
    close = {"check_dtype": False, **close}
    exact = {"check_dtype": False} if scores.x.dtype == torch.float64 else {**close, "rtol": 2e-4, "atol": 1e-4}
    assert row_lse.dtype == torch.promote_types(scores.x.dtype, torch.float32)
    torch.testing.assert_close(row_lse, score.logsumexp(2), **exact)
    assert (column_lse is None) == (not over_rows)
    if over_rows:
        torch.testing.assert_close(column_lse, score.logsumexp(1), **exact)
    torch.testing.assert_close(own, at_target(score, target), **exact)
    grad = make_score_gradient(scores, target, row_lse, own, column_lse, seed, smooth=smooth)
    wanted = oracle_gradients(scores, oracle_score_gradient(score, grad), product)
    got = module.gradients(scores, grad, bias=True)
    same = close_by_norm if by_norm else partial(torch.testing.assert_close, **close)
    for mine, theirs in zip((got.x, got.y, got.bias), wanted[:3], strict=True):
        same(mine, theirs)
    assert (got.x.dtype, got.y.dtype) == (scores.x.dtype, scores.y.dtype)
    for mine, theirs in zip((got.left, got.right), wanted[3:], strict=True):
        if scores.left is None:
            assert mine is None
        else:
            same(mine, theirs)
    if smooth and scores.left is None:
        torch.testing.assert_close(scores_shared(scores, grad.share), score @ grad.share.double(), **exact)


def at_target(score, target):
    picked = score[:, torch.arange(len(target), device=target.device), target.clamp_min(0)]
    return picked * (target >= 0)


@settings(max_examples=40, deadline=None)
@given(
    dims=st.one_of(
        st.lists(st.integers(1, 40), min_size=1, max_size=9, unique=True).map(sorted),
        st.integers(1, 64).map(lambda count: list(range(1, count + 1))),
    ),
    rows=st.integers(1, 9),
    columns=st.integers(1, 13),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(KINDS),
    tile=st.sampled_from([(1, 1), (2, 40), (5, 400), (1024, 1 << 22)]),
)
def test_chunked_is_exact_whatever_the_tiles(device, dims, rows, columns, seed, kind, tile):
    how = {name: kind.get(name, False) for name in ("over_rows", "smooth")}
    scores = make(dims, rows, columns, seed, device, torch.float64, **{k: v for k, v in kind.items() if k not in how})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "_ROWS", tile[0])
        patch.setattr(chunked, "_TILE", tile[1])
        check("chunked", scores, seed, **how)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind) or "plain")
@pytest.mark.parametrize("dims", [(7,), (3, 8, 21), (16, 32, 96)])
def test_single_precision(lean, device, dims, kind):
    how = {name: kind.get(name, False) for name in ("over_rows", "smooth")}
    scores = make(dims, 5, 19, 1, device, torch.float32, **{k: v for k, v in kind.items() if k not in how})
    check(lean, scores, rtol=2e-4, atol=2e-5, **how)


@NEEDS_TRITON
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "tied" not in kind], ids="-".join)
@pytest.mark.parametrize("dims", [range(32, 416, 32), (20, 28, *range(60, 400, 32)), range(5, 82, 7)], ids=str)
def test_many_dims_are_met_on_the_way_down(monkeypatch, device, kind, dims):
    fused = importlib.import_module(MODULES["triton"])
    monkeypatch.setattr(fused, "_SMALL_DIM", 0)
    launched, launch = [], fused.launch
    monkeypatch.setattr(fused, "launch", lambda *given, **how: (launched.append(how), launch(*given, **how)))
    how = {name: kind.get(name, False) for name in ("over_rows", "smooth")}
    scores = make(tuple(dims), 5, 70, 6, device, torch.float32, **{k: v for k, v in kind.items() if k not in how})
    check("triton", scores, rtol=2e-4, atol=5e-5, **how)
    assert [one["DOWN"] for one in launched if "DOWN" in one] == [True]


@NEEDS_TRITON
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind) or "plain")
@pytest.mark.parametrize(("small", "rows", "columns"), [(0, 5, 19), (16, 1, 70), (16, 70, 1)])
def test_large_dims_go_another_way_than_small_ones(monkeypatch, device, kind, small, rows, columns):
    monkeypatch.setattr(importlib.import_module(MODULES["triton"]), "_SMALL_DIM", small)
    how = {name: kind.get(name, False) for name in ("over_rows", "smooth")}
    scores = make((7, 16, 39, 71), rows, columns, 3, device, torch.float32,
                  **{k: v for k, v in kind.items() if k not in how})  # fmt: skip
    check("triton", scores, rtol=2e-4, atol=3e-5, **how)


@pytest.mark.parametrize("small", [0, 128])
def test_low_scores_and_masked_columns_have_finite_gradients(lean, device, monkeypatch, small):
    if lean == "triton":
        monkeypatch.setattr(importlib.import_module(MODULES["triton"]), "_SMALL_DIM", small)
    scores = make((8, 24), 5, 200, 4, device, torch.float32, bias=True)
    scores.bias.sub_(200)   # a row's log-sum-exp is far below 0
    scores.bias[64:128] = -torch.inf   # more than a whole tile, in full precision
    check(lean, scores, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind) or "plain")
@pytest.mark.parametrize("dims", [(8, 24, 64), (12, 160, 192, 320)], ids=str)
def test_half_precision_is_rounded_only_where_it_is_stored(lean, device, dtype, dims, kind):
    how = {name: kind.get(name, False) for name in ("over_rows", "smooth")}
    scores = make(dims, 70, 133, 2, device, dtype, **{k: v for k, v in kind.items() if k not in how})
    check(lean, scores, by_norm=True, **how)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("small", [0, 128])
def test_half_precision_keeps_how_little_is_left_to_learn(lean, device, monkeypatch, small, scaled):
    """A target of probability 0.99 grads by 0.01: rounded before 1 is taken from it, a fifth of that would be lost."""
    if lean == "triton":
        monkeypatch.setattr(importlib.import_module(MODULES["triton"]), "_SMALL_DIM", small)
    module, draw = importlib.import_module(MODULES[lean]), torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (133, 40), generator=draw).to(device, torch.bfloat16) * 2 - 1
    target = torch.randint(0, 133, (70,), generator=draw).to(device)
    scale = torch.full((2, 133), 0.5, device=device) if scaled else None
    x = y[target] * (4 if scaled else 1)
    scores = Scores(x, y, Nesting([24, 40]), left=None if scale is None else scale[:, :70] * 1, right=scale)
    row_lse, own, _ = module.reductions(scores, target)
    one = torch.ones_like(row_lse)
    grad = ScoreGradient(row_lse, one, one, target, own)
    product = oracle_products(scores)
    exact = ScoreGradient(product.logsumexp(2), one, one, target, own)
    wanted = oracle_gradients(scores, oracle_score_gradient(product, exact), product)
    got = module.gradients(scores, grad)
    pairs = [(got.x, wanted[0]), (got.y, wanted[1])]
    if scaled:
        pairs += [(got.left, wanted[3]), (got.right, wanted[4])]
    for mine, theirs in pairs:
        assert ((mine.double() - theirs).norm() / theirs.norm()) < 2e-2


@pytest.fixture
def tf32():
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


@NEEDS_TRITON
@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("small", [0, 128])
def test_tf32_keeps_how_little_is_left_to_learn(device, monkeypatch, small):
    """The score of a target is the one that its row's log-sum-exp has met, whatever a product leaves out."""
    fused = importlib.import_module(MODULES["triton"])
    monkeypatch.setattr(fused, "_SMALL_DIM", small)
    draw = torch.Generator().manual_seed(0)
    y = torch.nn.functional.normalize(torch.randn(64, 64, generator=draw)).to(device)
    target = torch.randperm(64, generator=draw).to(device)
    scores = Scores(y[target] * 14 + 0.05 * torch.randn(64, 64, generator=draw).to(device), y, Nesting([32, 64]))
    row_lse, own, _ = fused.reductions(scores, target)
    one = torch.ones_like(row_lse)
    product = oracle_products(scores)
    exact = ScoreGradient(product.logsumexp(2), one, one, target, own)
    wanted = oracle_gradients(scores, oracle_score_gradient(product, exact), product)
    got = fused.gradients(scores, ScoreGradient(row_lse, one, one, target, own))
    assert at_target((product - exact.row_lse[:, :, None]).exp(), target).median() > 0.98
    for mine, theirs in zip((got.x, got.y), wanted[:2], strict=True):
        assert ((mine.double() - theirs).norm() / theirs.norm()) < 1e-2


@pytest.mark.parametrize("dims", [(64, 192), (8, 160, 192, 320, 384), (130, 192, 256, 320, 384, 512)], ids=str)
def test_whole_tiles_and_more_large_dims_than_registers_hold(lean, device, dims):
    check(lean, make(dims, 64, 128, 5, device, torch.bfloat16), by_norm=True)


@NEEDS_TRITON
@pytest.mark.parametrize(("dims", "width"), [((7,), 7), ((3, 8, 131), 140), ((16, 32, 300), 300)])
def test_norms_of_prefixes_and_their_gradients(device, dims, width):
    rows = importlib.import_module("matryo.losses.engines.triton.rows")
    z = torch.randn(19, width, generator=torch.Generator().manual_seed(0)).to(device)
    z[3], z[5, :8] = 0, 0   # a row, and prefixes of another, without a direction
    given = torch.randn(len(dims), 19, generator=torch.Generator().manual_seed(1)).to(device)
    precise = z.double().requires_grad_()
    norms = torch.stack([precise[:, :dim].norm(dim=1) for dim in dims])
    wanted = torch.where(norms > 0, 1 / norms.where(norms > 0, 1), 0)
    (gradient,) = torch.autograd.grad(wanted, precise, given.double())
    gradient = gradient.nan_to_num().float()
    for one in (z, z.T.contiguous().T):   # rows that do not lie together
        inverse = rows.inverse_norms(one, dims)
        torch.testing.assert_close(inverse, wanted.float())
        torch.testing.assert_close(rows.inverse_norms_backward(one, inverse, given, dims), gradient)


class _Largest(TorchDispatchMode):
    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for one in tree_leaves(found):
            if isinstance(one, torch.Tensor):
                self.numbers = max(self.numbers, one.numel())
        return found


def test_chunked_makes_nothing_larger_than_its_inputs_and_a_tile(monkeypatch):
    monkeypatch.setattr(chunked, "_ROWS", 8)
    monkeypatch.setattr(chunked, "_TILE", 8 * 8 * 3)
    scores = make((2, 5, 8), 25, 31, 0, "cpu", torch.float32, bias=True)
    with _Largest() as seen:
        target = make_target(scores, 0)
        reduced = chunked.reductions(scores, target, over_rows=True)
        chunked.gradients(scores, make_score_gradient(scores, target, *reduced, 0, smooth=True), bias=True)
    assert seen.numbers == scores.y.numel() < 25 * 31


@pytest.mark.parametrize("wrong", [6, -2])
def test_a_wrong_target_is_an_error(lean, device, wrong):
    if device == "cuda":
        pytest.skip("a failed assertion ends a process that uses the GPU")
    scores = make((3, 8), 4, 6, 0, device, torch.float32)
    target = torch.tensor([0, 5, wrong, -1])
    if lean == "triton":
        with pytest.raises(RuntimeError, match="targets must be between 0 and 5"):
            importlib.import_module(MODULES[lean]).reductions(scores, target)
    elif wrong >= 0:   # −2 is no target there either; losses refuse both before
        with pytest.raises(IndexError):
            chunked.reductions(scores, target)


@pytest.mark.parametrize("tied", [True, False])
def test_only_what_is_asked_for(lean, device, tied):
    module = importlib.import_module(MODULES[lean])
    scores = make((3, 8), 4, 6, 0, device, torch.float32, tied=tied)
    target = make_target(scores, 0)
    grad = make_score_gradient(scores, target, *module.reductions(scores, target), 0)
    both = module.gradients(scores, grad)
    one, other = module.gradients(scores, grad, y=False), module.gradients(scores, grad, x=False)
    torch.testing.assert_close((one.x, other.y), (both.x, both.y))
    assert one.y is None
    assert other.x is None
    assert both.bias is None


def test_no_rows_and_no_columns():
    scores = make((2, 5), 0, 4, 0, "cpu", torch.float32)
    none = torch.empty(0, dtype=torch.long)
    row_lse, own, column_lse = chunked.reductions(scores, none, over_rows=True)
    assert row_lse.shape == (2, 0)
    assert column_lse.isneginf().all()
    assert not chunked.gradients(scores, make_score_gradient(scores, none, row_lse, own, None, 0)).y.any()
    none = torch.full((3,), -1)
    row_lse, _, column_lse = chunked.reductions(make((2, 5), 3, 0, 0, "cpu", torch.float32), none, over_rows=True)
    assert row_lse.isneginf().all()
    assert column_lse.shape == (2, 0)


def test_the_choice():
    small, large = (Scores(torch.empty(n, 2, device="meta"), torch.empty(n, 2), Nesting([1, 2])) for n in (8, 1 << 13))
    assert choose(small) == "plain"
    assert choose(large) == "chunked", "not on a GPU"
    assert choose(small, "chunked") == "chunked"
    assert choose(large, "plain") == "plain"


def test_an_engine_that_cannot_run_is_named(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    scores = make((2,), 2, 2, 0, "cpu", torch.float32)
    with pytest.raises(InputError, match=r"one of auto, plain, chunked, triton \(got 'cuda'\): use engine="):
        choose(scores, "cuda")
    monkeypatch.setattr("matryo.losses.engines.HAS_TRITON", False)
    with pytest.raises(InputError, match="needs the triton package"):
        choose(scores, "triton")
    monkeypatch.setattr("matryo.losses.engines.HAS_TRITON", True)
    with pytest.raises(InputError, match=r"runs on a GPU only \(got vectors on cpu\): move them to cuda"):
        choose(scores, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(InputError, match=r"float32 at most \(got torch.float64\)"):
        choose(make((2,), 2, 2, 0, "cpu", torch.float64), "triton")


@NEEDS_TRITON
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dims", [(12, 24, 48), (5, 6, 7), (8, 16), (3,)])
def test_separate_dims_are_read_from_multiples_of_sixteen_bytes_and_written_where_they_were(dims, dtype, device):
    from matryo.losses.engines.triton.operands import aligned, unaligned

    scores = make(dims, 4, 37, 0, device, dtype, tied=False)
    read = aligned(scores)
    for dim, here, there in zip(dims, scores.starts, read.starts, strict=True):
        assert there * read.y.element_size() % 16 == 0
        torch.testing.assert_close(read.y[:, there : there + dim], scores.y[:, here : here + dim], rtol=0, atol=0)
    torch.testing.assert_close(unaligned(read, read.y), scores.y, rtol=0, atol=0)


@NEEDS_TRITON
@pytest.mark.parametrize("kind", [{}, {"bias": True}, {"tied": False}, {"scaled": True}])
@pytest.mark.parametrize("one_way", [False, True])   # low and high scores, or low ones alone
@pytest.mark.parametrize("largest", [40.0, 70.0, 100.0, 400.0])   # the last two need a maximum
@pytest.mark.filterwarnings("ignore::RuntimeWarning")   # interpreted, NumPy tells of sums that overflow
def test_scores_far_from_zero_have_finite_sums(largest, one_way, kind, device):
    scores = make((8, 20), 6, 40, 0, device, torch.bfloat16, **kind)
    scores.y[:] = -scores.x[0, :20].repeat(1, 2)[:, : scores.y.shape[1]]
    if not one_way:
        scores.y[1::4] *= -1
    scores.x[:] *= largest / oracle_products(scores).abs().amax()
    module = importlib.import_module(MODULES["triton"])
    score = oracle_products(scores) + oracle_bias(scores)
    for over_rows in (False, True) if scores.left is not None else (False,):
        row_lse, _, column_lse = module.reductions(scores, make_target(scores, 0), over_rows)
        torch.testing.assert_close(row_lse.double(), score.logsumexp(2), rtol=1e-4, atol=1e-4)
        if over_rows:
            torch.testing.assert_close(column_lse.double(), score.logsumexp(1), rtol=1e-4, atol=1e-4)


@NEEDS_TRITON
@pytest.mark.parametrize(("rows", "columns"), [(3, 1100), (1100, 3)])   # 18 tiles in full precision
def test_many_tiles_are_combined(rows, columns, device):
    scores = make((8, 20), rows, columns, 0, device, torch.float32, scaled=True)
    score = oracle_products(scores)
    row_lse, _, column_lse = importlib.import_module(MODULES["triton"]).reductions(scores, make_target(scores, 0), True)
    torch.testing.assert_close(row_lse.double(), score.logsumexp(2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(column_lse.double(), score.logsumexp(1), rtol=1e-5, atol=1e-5)
