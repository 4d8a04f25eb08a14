import numpy as np
from retrieval_tables import Shortlists, adaptive_plans, funnel_plans

from matryo import EmbeddingSet, Nesting, Plan
from matryo.retrieve import execute

NESTING = Nesting([4, 8, 16, 32])


def test_plans_find_what_executing_them_finds():
    rng = np.random.default_rng(0)
    sets = [EmbeddingSet.of(rng.standard_normal((count, 32)) / np.arange(1, 33) ** 0.5,
                            labels=rng.integers(5, size=count), nesting=NESTING) for count in (400, 30)]  # fmt: skip
    shortlists = Shortlists(*sets, dict.fromkeys(NESTING.dims, 50))
    plans = [Plan.single(8), Plan.adaptive(4, 32, keep=50), Plan.of([(4, 50), (8, 25), (16, 12), (32, 10)])]
    for plan in plans:
        wanted, _ = execute(shortlists.blocks, sets[1].vectors, plan, plan.stages[-1].keep, "cosine")
        np.testing.assert_array_equal(shortlists.run(plan), wanted)
    entry = shortlists.graded(Plan.single(32))
    assert entry["recall@10"] == 1 and entry["mflops"] == 400 * 32 / 1e6


def test_the_tables_have_the_papers_form():
    paper = Nesting.halving(2048)
    assert len(adaptive_plans(paper)) == 36
    plans = {plan.stages[0].keep: plan for plan in funnel_plans(paper) if plan.stages[0].dim == 16}
    assert [(stage.dim, stage.keep) for stage in plans[200].stages] == [
        (16, 200), (32, 100), (64, 50), (128, 25), (256, 10), (2048, 10)]  # fmt: skip
    assert round(plans[800].mflops(1_281_167, reuse=False), 1) == 20.6   # its table says 20.61
