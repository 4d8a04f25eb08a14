from dataclasses import replace

import pytest
from pages.retrieval import frontier_tables, generator_tables, paper_tables
from pages.retrieval_claim import claims
from pages.retrieval_figures import figures, pareto
from pages.retrieval_promises import memory_tables, promise_tables, thread_tables
from pages.retrieval_rows import best, newest, ratio

from matryo import Plan
from matryo.results import stamp


def row(engine, recall, turns, *, count=1000, run="a", group=0, build=None, ask=None, **figures):
    about = {
        "engine": engine, "build": build or {}, "ask": ask or {}, "recall@10": recall, "map@10": 0.4, "turns": turns,
        "qps": 1e3 / sorted(turns)[len(turns) // 2], "batch_qps": 5.0, "build_seconds": 2.0, "index_bytes": 1e6,
        "held_bytes": 2e6, "bytes_read": 100.0 * count, "count": count, "dim": 64, "queries": 30, "build_threads": 2,
        "run": run, "group": group,
    }  # fmt: skip
    return stamp("retrieval", f"model, {count:,} × 64", about | figures, seed=0)


def table_of(page, title):
    return page.partition(f"**{title}**")[2].partition("**")[0]


def test_each_engine_shows_its_quickest_setting_that_finds_enough():
    rows = [
        row("matryo", 0.96, [1.0, 1.0, 1.0]),
        row("matryo", 0.995, [2.0, 2.0, 2.0]),
        row("peer", 0.90, [0.1, 0.1, 0.1], ask={"ef": 10}),
        row("peer", 0.97, [3.0, 4.0, 5.0], ask={"ef": 20}),
    ]
    page = "\n\n".join(frontier_tables(rows))
    loose, strict = table_of(page, "recall@10 ≥ 0.95"), table_of(page, "recall@10 ≥ 0.99")
    assert "| peer | ef 20 | 0.970 | 40.00 | 250 | 4.00 |" in loose
    assert loose.index("| matryo |") < loose.index("| peer |")
    assert "No setting tried is there: peer." in strict and "| matryo |  | 0.995 | 40.00 | 500 | 1.00 |" in strict


def test_ratios_are_of_one_group():
    ours = [row("matryo", 1.0, [1.0, 2.0, 4.0], group=group) for group in (0, 1)]
    theirs = row("peer", 1.0, [3.0, 8.0, 8.0], group=1)
    assert ratio(theirs, ours, lambda _: True) == 3.0   # the median of 3, 4 and 2
    assert ratio(replace(theirs, figures=theirs.figures | {"run": "b"}), ours, lambda _: True) is None


def test_an_engine_measured_again_forgets_its_last_run():
    old, new = row("peer", 1.0, [1.0]), row("peer", 0.97, [2.0], run="b")
    assert newest([old, row("matryo", 1.0, [1.0]), new])[-1] is new
    assert old not in newest([old, new])


def test_the_papers_protocol_counts_plans_that_fetch_as_many():
    plan = {"stages": [{"dim": 16, "keep": 200, "precision": "int8"}, {"dim": 64, "keep": 10}]}
    rows = [
        row("matryo", 0.9, [1.0, 1.0, 1.0], ask={"plan": plan | {"probe": 0.5}}),
        row("matryo", 0.8, [0.5, 0.5, 0.5], ask={"plan": plan | {"probe": 0.1}}),   # sees 100 of 1,000
        row("faiss HNSW", 1.0, [15.0, 15.0, 15.0], ask={"ef": 200, "shortlist": 200}),
        row("faiss HNSW", 0.95, [6.0, 6.0, 6.0], ask={"ef": 30}, **{"map@10": 0.39}),
    ]
    page = "\n\n".join(frontier_tables(rows))
    figures = "40.00 | 40.00 | 0.900 | 1.000 | 15.000 | 15.0 | 6.0 (ef 30) | 15.0 (ef 200) | 2 |"
    part = table_of(page, "A shortlist of 200")
    assert f"| 16i:200 → 64:10, probe 0.5 | {figures}" in part and "probe 0.1" not in part
    assert f"| model, 1,000 × 64 | adaptive, 16 dims | {figures}" in page.partition("## Engines")[0]


def test_where_no_plan_is_as_good_the_claim_shows_the_best():
    stages = [{"dim": stage.dim, "keep": stage.keep} for stage in Plan.funnel(16, 64, keep=200).stages]
    rows = [
        row("matryo", 0.5, [1.0, 1.0, 1.0], ask={"plan": {"stages": stages, "probe": 0.5}}, **{"map@10": 0.38}),
        row("matryo", 0.6, [2.0, 2.0, 2.0], ask={"plan": {"stages": stages}}, **{"map@10": 0.39}),
        row("faiss HNSW", 1.0, [15.0, 15.0, 15.0], ask={"ef": 200, "shortlist": 200}),
    ]
    assert "| model, 1,000 × 64 | funnel, 16 dims | 39.00 | 40.00 | 0.600 | 2.000 |" in "\n\n".join(claims(rows))


def test_what_was_measured_in_different_runs_is_compared_with_a_warning():
    page = "\n\n".join(frontier_tables([row("matryo", 1.0, [1.0]), row("peer", 1.0, [4.0], run="b")]))
    assert "| peer |  | 1.000 | 40.00 | 250 | ≈ 4.00 |" in page


def test_growth_has_a_column_a_size():
    rows = [row("matryo", 0.96, [count / 1000], count=count) for count in (1000, 2000, 4000)]
    page = "\n\n".join(frontier_tables(rows))
    assert "| matryo | 1.000, 100 kB | 2.000, 200 kB | 4.000, 400 kB |" in page


def test_the_pareto_front_has_no_setting_that_another_beats():
    rows = [row("one", recall, [ms]) for recall, ms in ((0.9, 1.0), (0.95, 2.0), (0.94, 3.0), (0.99, 4.0))]
    assert [f["recall@10"] for f in pareto(rows)] == [0.9, 0.95, 0.99]
    assert best(rows, lambda row: row.figures["recall@10"] >= 0.94).figures["recall@10"] == 0.95


def test_figures_are_drawn():
    pytest.importorskip("matplotlib")
    rows = [row(engine, 0.96, [1.0], count=count) for engine in ("matryo", "peer") for count in (1000, 2000, 4000)]
    drawn = figures(rows)
    assert len(drawn) == 2 and all("peer" in svg for svg in drawn.values())   # the largest, and growth
    assert all(f"]({name})" in "\n".join(frontier_tables(rows)) for name in drawn)


def test_the_papers_tables():
    def entry(dims, top1):
        metrics = [f"{name}@{k}" for name in ("map", "p") for k in (10, 25, 50, 100)] + ["top5", "top10", "recall@10"]
        stages = [{"dim": dim, "keep": 200} for dim in dims]
        return {"plan": {"stages": stages}, "mflops": 1.0, "top1": top1, **dict.fromkeys(metrics, 0.25)}

    tables = {"single": [entry([8], 0.4), entry([64], 0.5)], "adaptive": [entry([8, 64], 0.4995), entry([8, 16], 0.3)]}
    about = {"database": 1000, "queries": 10, "dims": [8, 64]}
    rows = [stamp("retrieval-table", "model", about | {"table": name, "entries": entries}, seed=None)
            for name, entries in tables.items()]  # fmt: skip
    page = "\n\n".join(paper_tables(rows))
    assert "| 8 | 64 | 1.00 | **49.95** | **25.00** | 25.00 |" in page and "| 8 | 16 | 1.00 | 30.00 |" in page


def test_the_generator_beside_the_real_ones():
    figures = {"database": 10, "queries": 5, "classes": 2, "dims": [8], "factors": [0.9], "confused": [0.1, 0.4],
               "real": {"map@10": {"8": 0.3}}, "drawn": [{"map@10": {"8": 0.31}}, {"map@10": {"8": 0.30}}]}  # fmt: skip
    page = "\n\n".join(generator_tables([stamp("generator", "model", figures, seed=0)]))
    assert "| 8 | 30.00 | 31.00 30.00 |" in page and "off by 0.50 points" in page


def test_labels_may_be_served_by_a_prefix():
    rows = [
        row("matryo", 1.0, [1.0, 1.0, 1.0]),
        row("faiss Flat, truncated", 0.6, [0.5, 0.5, 0.5], build={"dim": 64}, **{"map@10": 0.3995}),
        row("faiss Flat, truncated", 0.2, [0.1, 0.1, 0.1], build={"dim": 16}, **{"map@10": 0.37}),
    ]
    part = table_of("\n\n".join(frontier_tables(rows)), "mAP@10 within 0.1 point of exact search, 40.00 %")
    assert "| faiss Flat, truncated | dim 64 | 0.600 | 39.95 | 2,000 | 0.50 |" in part and "dim 16" not in part


def test_each_limit_of_memory_has_a_line():
    plan = {"stages": [{"dim": 16, "keep": 200, "precision": "int8"}, {"dim": 64, "keep": 10}], "probe": 0.1}
    one = {"limit": 1.0, "advice": "default", "present": 1e9, "held": 2e8, "read": 4096.0, "faults": 12.3, "p50": 1.234,
           "p95": 5.0, "recall": 0.97}  # fmt: skip
    figures = {"name": "plan", "plan": plan, "index_bytes": 8e9, "asked": 100}
    old, new = (stamp("retrieval-memory", "model, 9 × 64", figures | {"limits": limits}, seed=0)
                for limits in ([one], [one, one | {"limit": None}]))  # fmt: skip
    page = "\n\n".join(memory_tables([old, new]))
    assert page.count("1 GiB") == 1 and "| none | 1 GB |" in page and "advice" not in page
    assert "| 1 GiB | 1 GB | 200 MB | 0.970 | 1.23 | 5.00 | 4.1 kB | 12 |" in page
    told = "\n\n".join(memory_tables([stamp("m", "s", figures | {"limits": [one | {"advice": "random"}]}, seed=0)]))
    assert "| 1 GiB | random | 1 GB |" in told


def test_threads_are_compared_search_by_search():
    threads = [{"threads": 1, "qps": 1000.0, "faster": 1.0}, {"threads": 2, "qps": 1950.0, "faster": 1.948}]
    figures = {"searches": [{"name": "exact", "queries": 500, "plan": None, "threads": threads}]}
    page = "\n\n".join(thread_tables([stamp("retrieval-threads", "model, 9 × 64", figures, seed=0)]))
    assert "| exact | 500 | 2 | 1,950 | 1.95 |" in page


def test_promises_tell_what_was_cheap():
    old = {"rows": 1000, "target": 0.95, "seen": 50, "draws": 10, "kept": 9, "exact": 1, "recall": 0.97, "least": 0.94,
           "bytes": 2e6, "exact_bytes": 2e8}  # fmt: skip
    new = old | {"searcher": "index", "cost": "latency", "milliseconds": 0.0712, "exact_milliseconds": 6.0}
    page = "\n\n".join(promise_tables([stamp("planner-promise", "model", one, seed=0) for one in (old, new)]))
    assert "| blocks, 1,000 | 0.95 | 50 | 10 | 9 | 1 | 0.9700 | 0.9400 | 2 MB | 200 MB |" in page
    assert "| 0.9400 | 0.071 ms | 6.000 ms |" in page
