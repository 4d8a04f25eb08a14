"""What a planner promises holds on queries it never saw; its figures are those of plain loops."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tqdm import tqdm

from matryo.errors import EmbeddingsError, InputError
from matryo.nesting import Nesting
from matryo.retrieve.engines.execute import Hits, execute
from matryo.retrieve.plan.candidates import Candidates
from matryo.retrieve.plan.choice import Choice
from matryo.retrieve.plan.guided import GuidedPlans
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.plan.planner import choose, choose_each, fewest_queries
from matryo.retrieve.plan.searcher import openings
from matryo.retrieve.plan.trials import Goal, Trials, widened
from matryo.retrieve.plan.workload import Workload
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import METRICS, Metric

if TYPE_CHECKING:
    from collections.abc import Sequence

K, COUNT = 5, 800
NESTING = Nesting([4, 8, 16, 32])


def made(seed: int, count: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(count, 32)) * np.linspace(2, 0.2, 32)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class BlocksSearcher:
    """A searcher over bare blocks; ids are row numbers."""

    blocks: Blocks
    metric: Metric = "cosine"

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.blocks.count

    @property
    def nesting(self) -> Nesting:
        """The nesting of the blocks."""
        return self.blocks.nesting

    @property
    def dtype(self) -> str:
        """The dtype of the blocks."""
        return self.blocks.dtype

    @property
    def openings(self) -> Sequence[Plan]:
        """Every dim in full precision, and the dims with int8 copies."""
        return openings(self.nesting, int8=[self.nesting.dims[number] for number in self.blocks.int8])

    def search(self, queries: np.ndarray, k: int, plan: Plan | None = None) -> Hits:
        """The best ``k`` rows per query."""
        full = Plan.single(self.nesting.dim, k=k)
        return Hits(*execute(self.blocks, queries, plan or full, k, self.metric))

    def sample(self, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers and vectors of ``count`` random rows."""
        rows = np.sort(np.random.default_rng(seed).choice(self.count, count, replace=False))
        return rows, self.blocks.rows(rows, self.nesting.dim)


VECTORS, QUERIES = made(0, COUNT), made(1, 3000)
BLOCKS = Blocks.of(VECTORS, NESTING, int8_up_to=16)
SEARCHER = BlocksSearcher(BLOCKS)


def recalls(found: np.ndarray, true: np.ndarray) -> list[float]:
    return [len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), true.tolist(), strict=True)]


def unseen_of(count: int, tuned: int, seed: int = 0) -> np.ndarray:
    """The queries that test, as the planner draws them."""
    return np.random.default_rng(seed).permutation(count)[tuned:]


@cache
def usual() -> Choice:
    return plan()


def plan(searcher: Any = SEARCHER, queries: Any = QUERIES[:200], **more: Any) -> Any:
    return choose(searcher, queries, **{"recall": 0.9, "k": K, "cost": "bytes", "progress": False, **more})


# ── the promise ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_promise_holds_on_queries_it_never_saw() -> None:
    true, kept, found = SEARCHER.search(QUERIES, K).ids, 0, {}
    for turn in range(8):
        drawn = np.random.default_rng([0, turn]).choice(len(QUERIES), 150, replace=False)
        chosen = plan(queries=QUERIES[drawn], seed=turn).plan
        if chosen not in found:
            found[chosen] = np.array(recalls(SEARCHER.search(QUERIES, K, chosen).ids, true))
        kept += np.delete(found[chosen], drawn).mean() >= 0.9
    assert kept >= 7


@pytest.mark.parametrize("metric", METRICS)
def test_the_frontier_is_what_plain_loops_count(metric: Metric) -> None:
    searcher = BlocksSearcher(BLOCKS, metric)
    choice = plan(searcher)
    assert (choice.tuned_on, choice.tested_on) == (50, 150)
    unseen = QUERIES[:200][unseen_of(200, 50)]
    true, _ = execute(BLOCKS, unseen, Plan.single(32), K, metric)
    assert choice.frontier[0].plan == Plan.single(32, k=K)
    for point in choice.frontier:
        rows, _ = execute(BLOCKS, unseen, point.plan, K, metric)
        assert point.recall == pytest.approx(np.mean(recalls(rows, true)))
        assert point.latency is None
        if all(stage.margin is None for stage in point.plan.stages):
            assert (point.bytes, point.mflops) == (point.plan.bytes(COUNT), point.plan.mflops(COUNT))
        else:   # in the mean it keeps fewer than it may
            assert point.bytes <= point.plan.bytes(COUNT)
    assert choice.point.bytes < choice.frontier[0].bytes / 2


def test_the_cheapest_before_the_first_failure_is_chosen() -> None:
    choice = plan(cost="mflops")
    held = [point.held for point in choice.frontier]
    assert held == sorted(held, reverse=True)
    assert 1 < sum(held) < len(held)
    for point, before in zip(choice.frontier[1:], choice.frontier, strict=False):
        assert point.held == (before.held and point.lower >= 0.9)
        assert point.lower < point.recall
    assert choice.point.mflops == min(point.mflops for point in choice.frontier if point.held)


def test_the_same_seed_gives_the_same_choice_and_nothing_is_changed() -> None:
    before = QUERIES.copy()
    assert plan() == usual()
    assert plan(seed=1) != usual()
    assert (before == QUERIES).all()


def test_a_higher_recall_costs_more() -> None:
    low, high = (plan(queries=QUERIES[:500], recall=recall).point.bytes for recall in (0.7, 0.99))
    assert low < high


def test_latency_is_measured_where_it_is_asked_for() -> None:
    choice = plan(BlocksSearcher(Blocks.of(VECTORS, Nesting([8, 32]))), QUERIES[:100], cost="latency")
    assert all(point.latency > 0 for point in choice.frontier)
    assert choice.point.latency == min(point.latency for point in choice.frontier if point.held)


def test_where_nothing_is_cheaper_exact_search_is_the_plan() -> None:
    choice = plan(BlocksSearcher(Blocks.of(VECTORS, Nesting([32]))))
    assert choice.plan == Plan.single(32, k=K)
    assert choice.met
    assert "no plan cheaper than exact search" in choice.message


def test_a_budget_is_a_ceiling() -> None:
    free = usual()
    cost = free.point.bytes
    assert plan(budget=cost).plan == free.plan
    short = plan(budget=cost - 1)
    assert (short.plan, short.met, short.cheapest) == (None, False, free.point)
    assert "within the budget, the best is" in short.message


# ── which plans are tried ─────────────────────────────────────────────────────────────────────────────────────────


def candidates(tuning: int) -> Candidates:
    with tqdm(total=0, disable=True) as bar:
        return Candidates(Trials(Workload(SEARCHER, QUERIES[:100], None, K, None), tuning, "bytes", bar))


def test_a_guess_is_at_most_what_the_plan_finds_and_exact_for_two_stages() -> None:
    tuning = 60
    guesses = list(candidates(tuning).guesses())
    assert len(guesses) > 500
    kinds = {(len(plan.stages), plan.stages[0].precision, plan.stages[0].margin is None) for plan, _ in guesses}
    assert len(kinds) == 12   # one, two, three and four stages, in both precisions, with and without a margin
    assert {Plan.funnel(4, 32, keep=40, k=K), Plan.adaptive(8, 16, keep=20, k=K)} <= {plan for plan, _ in guesses}
    true, _ = execute(BLOCKS, QUERIES[:tuning], Plan.single(32), K)
    for plan, guess in guesses[::17]:
        found = np.mean(recalls(execute(BLOCKS, QUERIES[:tuning], plan, K)[0], true))
        assert guess <= found + 1e-9
        if len(plan.stages) == 2 and plan.dim == 32:
            assert guess == pytest.approx(found)


def test_a_margin_costs_what_it_keeps_in_the_mean() -> None:
    tuning = 40
    look = candidates(tuning).looks[Plan((Stage(8, 1),))]
    _, scores = execute(BLOCKS, QUERIES[:tuning], Plan.single(8), COUNT)
    for stage in (stage for stage, _ in look.cuts() if stage.margin is not None):
        near = [sum(score >= row[K - 1] - stage.margin for score in row) for row in scores.astype(float)]
        if max(near) < look.gaps.shape[1]:   # all was seen
            assert look.kept(stage) == round(np.mean([min(count, stage.keep) for count in near]))
    # Where more may be near than was looked at, the most is counted.
    assert look.kept(Stage(8, 700, margin=9.0)) == 700


def test_widening_keeps_the_rules_of_plans() -> None:
    wide = widened(Plan((Stage(4, 100, "int8", 0.5), Stage(8, 7), Stage(32, 5)), ef=120), 1.4, 1.4)
    assert wide == Plan((Stage(4, 140, "int8", 0.7), Stage(8, 10), Stage(32, 5)), ef=168)
    assert widened(Plan.single(8, probe=0.4), 4, 1).probe == 1
    narrow = widened(Plan((Stage(4, 12), Stage(32, 5)), ef=14), 0.1, 0.1)
    assert narrow == Plan((Stage(4, 5), Stage(32, 5)), ef=5)


SEEDS = VECTORS[::25]   # the means of 32 cells
CELLS = (VECTORS @ SEEDS.T - np.square(SEEDS).sum(1) / 2).argmax(1)


@dataclass(frozen=True, eq=False)
class Guided(BlocksSearcher):
    """Rows in cells; a query visits the nearest cells, which hold about the share ``probe`` of the rows."""

    guides: tuple[Plan, ...] = (Plan((Stage(8, 1),), probe=1.0),)

    @property
    def openings(self) -> Sequence[Plan]:
        return (*openings(self.nesting), *self.guides)

    def search(self, queries: Any, k: int, plan: Plan | None = None) -> Hits:
        share = None if plan is None else plan.probe if plan.ef is None else plan.ef / COUNT
        if share is None:
            time.sleep(0.005)   # as in a large database
            return super().search(queries, k, plan)
        plain, far = replace(plan, probe=None, ef=None), np.square(SEEDS).sum(1) / 2 - queries @ SEEDS.T
        cells = np.sort(np.argsort(far)[:, : max(1, round(share * len(SEEDS)))])
        ids, scores = np.empty((len(queries), k), np.int64), np.empty((len(queries), k))
        for visited in np.unique(cells, axis=0):
            here, allowed = (cells == visited).all(1), np.isin(CELLS, visited)
            ids[here], scores[here] = execute(self.blocks, queries[here], plain, k, self.metric, allowed=allowed)
        return Hits(ids, scores)


@pytest.mark.parametrize("guide", [Plan((Stage(8, 1),), probe=1.0), Plan((Stage(8, 1),), ef=1)], ids=["probe", "ef"])
def test_guides_are_tried_and_held_to_the_promise(guide: Plan) -> None:
    searcher = Guided(BLOCKS, guides=(guide,))
    choice = plan(searcher, cost="latency")
    assert all(point.plan.probe or point.plan.ef for point in choice.frontier[1:])
    assert len(choice.frontier) > 3
    true = SEARCHER.search(QUERIES[1000:], K).ids
    assert np.mean(recalls(searcher.search(QUERIES[1000:], K, choice.plan).ids, true)) >= 0.9


def test_the_effort_is_the_least_that_is_expected_to_pass() -> None:
    searcher, tuning = Guided(BLOCKS), 100
    workload = Workload(searcher, QUERIES[:400], None, K, None)
    goal = Goal(0.9, 0.95, workload.base, np.zeros(400, int), tuning)
    with tqdm(total=0, disable=True) as bar:
        trials = Trials(workload, tuning, "bytes", bar)
        (guided,) = (GuidedPlans(opening, trials) for opening in searcher.guides)
        best, chain = guided.chain(goal)
    assert goal.expected(best.worth) >= 0.9
    true = SEARCHER.search(QUERIES[:tuning], K).ids
    assert best.worth == pytest.approx(np.array(recalls(searcher.search(QUERIES[:tuning], K, best.plan).ids, true)))
    less = replace(best.plan, probe=best.plan.probe / 1.1)   # a cell is 3 % of the rows
    assert goal.expected(trials.worth(less)) < 0.9
    efforts = [plan.probe for plan in chain]
    assert efforts == sorted(efforts, reverse=True)
    assert best.plan.probe in efforts and efforts[0] > 1.5 * best.plan.probe > efforts[-1]


def test_a_plan_is_never_dearer_than_exact_search() -> None:
    choice = plan(Guided(BLOCKS), cost="latency", recall=0.98, queries=QUERIES[:300])
    exact, *others = choice.frontier
    assert exact.plan == Plan.single(32, k=K)
    assert all(point.latency < exact.latency for point in others if point.held)
    assert choice.point.latency <= exact.latency


def test_several_recalls_are_planned_at_once() -> None:
    searcher = Guided(BLOCKS)
    low, high = choose_each(searcher, QUERIES[:300], recalls=[0.8, 0.98], k=K, cost="bytes", progress=False)
    assert (low.target, high.target) == (0.8, 0.98)
    assert low.point.bytes < high.point.bytes
    alone = choose(searcher, QUERIES[:300], recall=0.98, k=K, cost="bytes", progress=False)
    assert (alone.tuned_on, alone.tested_on) == (high.tuned_on, high.tested_on)


# ── groups of queries ─────────────────────────────────────────────────────────────────────────────────────────────

HARD = np.random.default_rng(5).normal(size=(400, 32)).astype(np.float32)   # no short prefix tells their neighbours


def test_a_robust_plan_holds_for_each_group() -> None:
    queries, names = np.concatenate([QUERIES[:400], HARD[:100]]), ["near"] * 400 + ["far"] * 100
    usual, robust = plan(queries=queries), plan(queries=queries, robust=names)
    assert robust.point.bytes > usual.point.bytes
    true = SEARCHER.search(HARD[100:], K).ids
    found = [np.mean(recalls(SEARCHER.search(HARD[100:], K, choice.plan).ids, true)) for choice in (usual, robust)]
    assert found[0] < 0.9 <= found[1]


def test_groups_of_similar_queries_are_found() -> None:
    shift = np.eye(32, dtype=np.float32)[20] * 9
    queries = np.concatenate([QUERIES[:400], HARD[:100] + shift])
    robust = plan(queries=queries, robust=True)
    true = SEARCHER.search(HARD[100:] + shift, K).ids
    assert np.mean(recalls(SEARCHER.search(HARD[100:] + shift, K, robust.plan).ids, true)) >= 0.88
    assert robust.point.bytes >= plan(queries=queries).point.bytes


@pytest.mark.parametrize(
    ("robust", "told"),
    [
        (["a"] * 3, "robust must be True, or name the group of each query"),
        (["a"] * 195 + ["b"] * 5, "each group must have at least 40 queries for recall=0.9"),
    ],
)
def test_groups_that_cannot_be_tested_are_refused(robust: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        plan(robust=robust)
    with pytest.raises(InputError, match="robust=True needs at least two groups of 40 similar queries"):
        plan(queries=QUERIES[:60], robust=True)


# ── rows as queries ───────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_stand_in_for_queries_and_none_finds_itself() -> None:
    choice = plan(queries=None, seed=3)
    assert choice.tuned_on + choice.tested_on == COUNT
    rows, vectors = SEARCHER.sample(COUNT, 3)
    assert (vectors == VECTORS[rows]).all()
    unseen = unseen_of(COUNT, choice.tuned_on, 3)
    for point in choice.frontier[1:]:
        every, _ = execute(BLOCKS, vectors, point.plan, K + 1)
        exact, _ = execute(BLOCKS, vectors, Plan.single(32), K + 1)
        shares = []
        for number in unseen:
            found, true = ([row for row in some[number] if row != rows[number]][:K] for some in (every, exact))
            shares.append(len(set(found) & set(true)) / K)
        assert point.recall == pytest.approx(np.mean(shares))


# ── labels ────────────────────────────────────────────────────────────────────────────────────────────────────────

LABELS = (VECTORS[:, 0] > 0).astype(int) + 2 * (VECTORS[:, 1] > 0)   # all that tells them apart is in two columns
ASKED = (QUERIES[:, 0] > 0).astype(int) + 2 * (QUERIES[:, 1] > 0)


def naive_map(found: np.ndarray, labels: np.ndarray, total: np.ndarray) -> float:
    """Mean average precision, by its definition."""
    every = []
    for rows, label, there in zip(found, labels, total, strict=True):
        right, sum_of = 0, 0.0
        for place, row in enumerate(rows, start=1):
            if LABELS[row] == label:
                right += 1
                sum_of += right / place
        every.append(sum_of / min(K, there))
    return float(np.mean(every))


def test_with_labels_the_plan_keeps_its_share_of_map() -> None:
    choice = plan(labels=(ASKED[:200], LABELS), recall=0.9)
    assert choice.metric == "mAP"
    unseen = unseen_of(200, 50)
    total = np.array([(label == LABELS).sum() for label in ASKED[unseen]])
    exact = naive_map(SEARCHER.search(QUERIES[unseen], K).ids, ASKED[unseen], total)
    for point in choice.frontier[1:]:
        kept = naive_map(SEARCHER.search(QUERIES[unseen], K, point.plan).ids, ASKED[unseen], total)
        assert point.recall == pytest.approx(kept / exact)
    # Few columns tell labels apart, many tell neighbours.
    assert choice.point.bytes < usual().point.bytes


def test_labels_may_be_names_by_id_and_those_no_row_has_are_left_out() -> None:
    names = np.array(["a", "b", "c", "d"])
    by_id = dict(enumerate(names[LABELS].tolist()))
    strange = np.append(names[ASKED[:200]], ["x", "zz"])
    queries = np.concatenate([QUERIES[:200], QUERIES[:2]])
    choice = plan(queries=queries, labels=(strange, by_id))
    assert choice.tuned_on + choice.tested_on == 200
    assert choice.met


def test_rows_that_stand_in_have_their_labels() -> None:
    alone = LABELS.copy()
    alone[7] = 99   # nothing else has it
    choice = plan(BlocksSearcher(BLOCKS), None, labels=(None, alone), recall=0.95)
    assert choice.tuned_on + choice.tested_on == COUNT - 1   # 7 finds nothing that it should
    assert choice.met


def test_rows_of_zeros_do_not_stand_in() -> None:
    vectors = VECTORS.copy()
    vectors[:50] = 0
    choice = plan(BlocksSearcher(Blocks.of(vectors, NESTING)), None)
    assert choice.tuned_on + choice.tested_on == COUNT - 50


# ── refused ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_too_few_queries_are_told_how_many_it_takes() -> None:
    fewest = fewest_queries(0.9)
    plan(queries=QUERIES[:fewest])
    with pytest.raises(InputError, match=f"recall=0.9 with 95% confidence needs at least {fewest} queries"):
        plan(queries=QUERIES[: fewest - 1])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"recall": 1.0}, r"recall must be between 0 and 1 \(got 1.0\): pass recall=0.95; exact=True finds all"),
        ({"recall": 95}, r"recall must be between 0 and 1 \(got 95\): write 95 % as 0.95"),
        ({"confidence": 0.0}, "confidence must be between 0 and 1"),
        ({"cost": "time"}, "cost must be one of latency, bytes, mflops"),
        ({"budget": 0}, "budget must be above 0"),
        ({"k": 0}, "k must be an integer of at least 1"),
        ({"k": True}, "k must be an integer"),
        ({"k": COUNT, "queries": None}, "the index holds 800 vectors, too few to plan for k=800: pass k=799 or less"),
        ({"labels": (ASKED[:5], LABELS)}, "labels must have one entry for each of the 200 queries"),
        ({"labels": (ASKED[:200], LABELS[:9])}, "one for each of the 800 rows"),
        ({"labels": (np.full(200, 4), np.arange(COUNT))}, "exact search must find rows with the labels"),
        ({"labels": (np.full(200, -1), LABELS)}, "needs at least 40 queries"),
        ({"queries": QUERIES[:200, :8]}, "queries must be"),
    ],
    ids=lambda one: str(one)[:30],
)
def test_what_cannot_be_planned_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises((InputError, EmbeddingsError), match=told):
        plan(**wrong)
