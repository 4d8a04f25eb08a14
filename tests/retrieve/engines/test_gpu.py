"""A product in float16 only chooses: whatever it rounds, the hits are those of float64, and ties are in order."""

from __future__ import annotations

import importlib
import importlib.util
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.errors import EmbeddingsError
from matryo.nesting import Nesting
from matryo.retrieve import Blocks, Engine, Plan, Request, execute
from matryo.retrieve.vectors.metric import METRICS, keys

torch = pytest.importorskip("torch")
HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"   # read when a kernel is defined, so before any import of one
HAS_TRITON = importlib.util.find_spec("triton") is not None

from matryo.retrieve.engines.torch import device  # noqa: E402
from matryo.retrieve.engines.torch import engine as gpu  # noqa: E402
from matryo.retrieve.engines.torch import steps as device_steps  # noqa: E402

PLACE = torch.device("cuda" if HAS_GPU else "cpu")
NESTING = Nesting([4, 16])
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")


@pytest.fixture(params=["half", pytest.param("fused", marks=needs_triton)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """What a GPU does, on one if there is one."""
    return gpu._Search(PLACE, half=True, fused=request.param == "fused").engine()


def float64_scores(metric: str, asked: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    asked, vectors = asked.astype(np.float64), vectors.astype(np.float64)
    if metric == "l2":
        return -np.square(asked[:, None] - vectors).sum(2)
    if metric == "cosine":
        norms = np.linalg.norm(vectors, axis=1)
        vectors = vectors / np.where(norms, norms, 1)[:, None]
        asked = asked / np.linalg.norm(asked, axis=1, keepdims=True)
    return asked @ vectors.T


@pytest.fixture
def asked_again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many queries were in doubt, in each turn of a search."""
    seen: list[int] = []
    doubtful = gpu._doubtful
    monkeypatch.setattr(gpu, "_doubtful", lambda down: (seen.append(len(doubtful(down))), doubtful(down))[1])
    return seen


# ── hits ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("share", [None, 0.5])
def test_scores_too_close_for_float16_and_ties_are_told_apart(engine, asked_again, share) -> None:
    """Integers above 2048, which float16 cannot tell apart, but whose inner products are exact in float32."""
    rng = np.random.default_rng(1)
    vectors = 3000 + rng.integers(0, 2, (500, 16))
    asked = rng.integers(1, 4, (6, 16))
    allowed = None if share is None else rng.random(500) < share
    rows, scores = execute(Blocks.of(vectors, NESTING), asked, Plan.single(16), 12, "ip", allowed, engine=engine)
    true = asked @ vectors.T
    for query, one in enumerate(true):
        may = np.arange(500) if allowed is None else np.flatnonzero(allowed)
        order = may[np.lexsort((may, -one[may]))][:12]
        assert rows[query].tolist() == order.tolist()
        assert scores[query].tolist() == one[order].tolist()
    assert asked_again[0] > 0
    assert asked_again[-1] == 0


def test_where_all_rows_are_equal_the_first_are_found(engine) -> None:
    blocks = Blocks.of(np.tile(np.float32([0.1, 0.7, 0.2, 0.3] * 4), (400, 1)), NESTING)
    for metric in METRICS:
        rows, _ = execute(blocks, np.ones((3, 16)), Plan.single(16), 9, metric, engine=engine)
        assert rows.tolist() == [[*range(9)]] * 3


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("spread", [0, 3, 14])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_norms_may_be_huge_or_tiny(engine, metric, spread, dtype) -> None:
    rng = np.random.default_rng(2)
    spread = min(spread, 2) if dtype == "float16" else spread
    size = 10.0 ** rng.uniform(-spread, spread, (500, 1))
    vectors = (rng.standard_normal((500, 16)) * size).astype(dtype)
    asked = (rng.standard_normal((4, 16)) * 10.0 ** rng.uniform(-spread, spread, (4, 1))).astype(np.float32)
    rows, scores = execute(Blocks.of(vectors, NESTING, dtype=dtype), asked, Plan.single(16), 5, metric, engine=engine)
    true = float64_scores(metric, asked, vectors)
    best = -np.sort(-true)[:, :5]
    # Rounding may only change the places of scores that are as good as equal; of distances, as far as norms go.
    longest = np.square(vectors.astype("f8")[rows]).sum(2) + np.square(asked.astype("f8")).sum(1)[:, None]
    near = 1e-6 * (longest if metric == "l2" else np.abs(best))
    assert (np.abs(np.take_along_axis(true, rows, 1) - best) <= near).all()
    assert (np.abs(scores - best) <= near).all()


def test_zeros_are_vectors_too(engine) -> None:
    """A query whose prefix is zero, and rows that are: all cosines of the first stage are 0."""
    vectors = np.zeros((300, 16), np.float32)
    vectors[100:, 4:] = np.random.default_rng(3).standard_normal((200, 12))
    asked = np.zeros((2, 16), np.float32)
    asked[:, 4:] = 1
    exact, short = Plan.single(16), Plan.of([(4, 7), (16, 7)])
    blocks = Blocks.of(vectors, NESTING)
    _, scores = execute(blocks, asked, exact, 7, engine=engine)
    np.testing.assert_allclose(scores, -np.sort(-float64_scores("cosine", asked, vectors))[:, :7], rtol=1e-6)
    assert execute(blocks, asked, short, 7, engine=engine)[0].tolist() == [[*range(7)]] * 2


def test_where_there_are_too_few_rows_the_rest_is_none(engine) -> None:
    blocks = Blocks.of(np.eye(16, dtype="f4")[:3], NESTING)
    rows, scores = execute(blocks, np.ones((1, 16)), Plan.single(16), 5, "ip", [True, False, True], engine=engine)
    assert rows.tolist() == [[0, 2, -1, -1, -1]]
    assert scores.tolist() == [[1, 1, -np.inf, -np.inf, -np.inf]]


@pytest.mark.parametrize("kind", [np.float16, np.float64, np.int32, np.uint16, ">f4", "frozen", "every other"])
def test_queries_may_be_of_any_kind(kind) -> None:
    engine = gpu._Search(PLACE, half=True, fused=False).engine()
    rng = np.random.default_rng(4)
    blocks, asked = Blocks.of(rng.standard_normal((200, 16)), NESTING), rng.integers(0, 99, (3, 16))
    same = execute(blocks, asked.astype(np.float32), Plan.single(16), 5, engine=engine)
    given = asked.astype(kind) if kind not in ("frozen", "every other") else asked.astype(np.float32)
    if kind == "every other":
        given = np.repeat(given, 2, axis=1)[:, ::2]
    given.flags.writeable = kind != "frozen"
    for one, other in zip(execute(blocks, given, Plan.single(16), 5, engine=engine), same, strict=True):
        assert one.tobytes() == other.tobytes()


def test_queries_that_compare_with_nothing_are_named(engine) -> None:
    blocks = Blocks.of(np.eye(16, dtype="f4"), NESTING)
    assert engine.run is not None
    for bad, wrong in ((np.nan, "must be finite"), (1e30, "must be finite"), (0, "must not be all zeros")):
        asked = np.ones((3, 16), np.float32)
        asked[1] = bad
        with pytest.raises(EmbeddingsError, match=rf"(?s){wrong}.*row 1"):
            engine.run(Request(blocks, asked), Plan.single(16))


# ── the bound ─────────────────────────────────────────────────────────────────────────────────────────────────


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6), metric=st.sampled_from(METRICS), dim=st.sampled_from([4, 16]),
    dtype=st.sampled_from(["float32", "float16"]), half=st.booleans(), sparse=st.booleans(),
)  # fmt: skip
def test_no_score_errs_by_more_than_the_bound(seed, metric, dim, dtype, half, sparse) -> None:
    rng = np.random.default_rng(seed)
    vectors = (rng.standard_normal((60, 16)) * 10 ** rng.uniform(-2, 2, (60, 1))).astype(dtype)
    asked = (rng.standard_normal((5, 16)) * 10 ** rng.uniform(-9, 9, (5, 1))).astype(np.float32)
    if sparse:   # most of a vector below what float16 holds beside the rest
        asked[:, 1:] *= np.float32(1e-6)
    blocks, search = Blocks.of(vectors, NESTING, dtype=dtype), gpu._Search(PLACE, half=half, fused=False)
    task = gpu._Task(blocks, Plan.single(dim), metric, 60)
    on = search._asked(task, torch.from_numpy(asked).to(PLACE), rough=True)
    rough = search.copies.rough(blocks, dim, "full", metric)
    product = on.rough.double().cpu().numpy() @ rough.matrix.double().cpu().numpy().T
    near = product * on.by.cpu().numpy()[:, None] * rough.times.cpu().numpy() + rough.plus.cpu().numpy()
    true = float64_scores(metric, asked[:, :dim], vectors[:, :dim])
    assert (true <= near + on.error.cpu().numpy()).all()


@needs_triton
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dims", [[16], [4, 16], [1, 4], [1500]])
@pytest.mark.parametrize("kind", ["f2", "f4"])
def test_a_kernel_makes_of_queries_what_torch_makes(metric, dims, kind) -> None:
    from matryo.retrieve.engines.torch import kernels

    rng = np.random.default_rng(8)
    given = torch.from_numpy((rng.standard_normal((5, max(20, dims[-1]))) * [[1e-3], [1], [7], [0], [99]]).astype(kind))
    given[2, :4] = 0
    matrix, longest = torch.zeros(1, dims[0], dtype=torch.float16), 1 if metric == "cosine" else 7
    rough = device.Rough(matrix, given, given, 3e-4, longest)
    ends = torch.tensor([*dims, given.shape[1]], dtype=torch.int32, device=PLACE)
    for one in (rough, None):
        plain = device_steps.asked(given, dims, metric, one, torch.float64)
        made = kernels.asked(given.to(PLACE), dims, ends, metric, one)
        for name in ("vectors", "lengths", "norms", *(("rough", "by", "error") if one else ())):
            mine, other = getattr(made, name).cpu().double(), getattr(plain, name).double()
            np.testing.assert_allclose(mine, other, rtol=1e-6, err_msg=name)


@given(power=st.integers(-140, 120), part=st.floats(0.5, 1, exclude_max=True))
def test_a_unit_is_a_power_of_two(power: int, part: float) -> None:
    norm = torch.tensor([part * 2.0**power], dtype=torch.float64)
    assert device.to_unit(norm).tolist() == [2.0**-power]
    assert device.to_unit(torch.zeros(2)).tolist() == [1, 1]


# ── the steps ─────────────────────────────────────────────────────────────────────────────────────────────────


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 3000), wanted=st.integers(1, 40), ties=st.booleans())
def test_the_best_lie_in_the_groups_of_the_best(seed: int, count: int, wanted: int, ties: bool) -> None:
    rng, wanted = np.random.default_rng(seed), min(wanted, count)
    scores = rng.integers(0, 9, (3, count)).astype("f4") if ties else rng.standard_normal((3, count), np.float32)
    vectors, ones = torch.eye(3), torch.ones(count)
    rough = device.Rough(torch.from_numpy(scores.T), ones, 0 * ones, 0, 1)
    values, rows = (each.numpy() for each in device_steps.likely(vectors, torch.ones(3), rough, wanted, fused=False))
    np.testing.assert_array_equal(np.sort(values), np.sort(scores)[:, count - wanted :])
    np.testing.assert_array_equal(np.take_along_axis(scores, rows, 1), values)
    assert all(len(set(one)) == wanted for one in rows.tolist())


@needs_triton
@pytest.mark.parametrize(("n", "count", "dim", "group"), [(1, 300, 5, 4), (3, 256, 128, 128), (20, 129, 40, 16),
                                                          (40, 130, 70, 8), (130, 140, 64, 32)])  # fmt: skip
def test_kernels_find_the_best_of_groups_and_their_members(n, count, dim, group) -> None:
    from matryo.retrieve.engines.torch import kernels

    rng = np.random.default_rng(5)
    asked, matrix = (rng.integers(-9, 9, shape).astype("f2") for shape in ((n, dim), (count, dim)))
    by, times, plus = (rng.integers(1, 9, size).astype("f4") for size in (n, count, count))
    plus[::7] = -np.inf
    true = asked.astype("f4") @ matrix.T.astype("f4")
    scores = np.pad(true * times * by[:, None] + plus, ((0, 0), (0, -count % group)), constant_values=-np.inf)
    grouped = scores.reshape(n, -1, group)
    at = rng.integers(0, grouped.shape[1], (n, 3))
    asked_, matrix_, *formula, at_ = (torch.from_numpy(each).to(PLACE) for each in (asked, matrix, by, times, plus, at))
    sums, best = kernels.products(asked_, matrix_, *formula, group)
    np.testing.assert_array_equal(sums.cpu(), true)
    np.testing.assert_array_equal(best.cpu(), grouped.max(2))
    np.testing.assert_array_equal(kernels.best_of_groups(sums, *formula, group).cpu(), grouped.max(2))
    inside = kernels.members(sums, *formula, at_, group).cpu().numpy().reshape(n, 3, group)
    np.testing.assert_array_equal(inside, np.take_along_axis(grouped, at[:, :, None], 1))


@needs_triton
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("columns", [(0, 1), (3, 60), (7, 700), (5, 5)])
def test_a_kernel_makes_keys_of_each_query_with_its_own_rows(metric, columns) -> None:
    from matryo.retrieve.engines.torch.kernels import keys_at

    rng, some = np.random.default_rng(7), slice(*columns)
    vectors, asked = rng.integers(-9, 9, (50, 700)).astype("f2"), rng.integers(-9, 9, (3, 702)).astype("f4")
    rows, before = rng.integers(-1, 50, (3, 45)), rng.integers(-9, 9, (3, 45)).astype("f8")
    norms, lengths = (2.0 ** rng.integers(-3, 3, size) for size in (50, 3))   # exact, so that any order gives the same
    given = (torch.from_numpy(array).to(PLACE) for array in (vectors, rows, asked, *map(np.float32, (norms, lengths))))
    stored, at, queries, *factors = given
    rest = at, queries[:, some], *factors, metric, torch.from_numpy(before).to(PLACE)
    made = keys_at(stored[:, some], *rest)
    sums = np.einsum("nmd,nd->nm", vectors[rows][..., some].astype("f8"), asked[:, some].astype("f8")) + before
    x, q = norms[rows], lengths[:, None]
    scores = {"ip": sums, "cosine": sums * x * q, "l2": 2 * sums - x - q}[metric]
    np.testing.assert_array_equal(made[0].cpu().numpy()[rows >= 0], sums[rows >= 0])
    np.testing.assert_array_equal(made[1].cpu().numpy(), keys(scores.astype("f4"), rows))
    plain = device_steps.keys_at(stored[:, some].float(), *rest, torch.float64)
    np.testing.assert_array_equal(plain[1].cpu().numpy(), made[1].cpu().numpy())
