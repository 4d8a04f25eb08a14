"""One finding per page of results: the sentence that a reader should take away, computed from the stored rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean

from matryo.results import Row
from pages import (
    cluster,
    compress,
    engines,
    feed,
    filters,
    layers,
    migration,
    paper,
    promises,
    retrofit,
    serve,
    settings,
    shift,
    unseen,
    unseen_plans,
    updates,
)
from pages.best import comparisons, verdict
from pages.models import METRICS, ByColumn, kind_of, last_of_column, seeds_by_column, tuned

__all__ = ["finding"]


def finding(page: str, rows: list[Row]) -> str:
    """The finding of a page; nothing for a page without one, or whose rows lack what the finding compares."""
    try:
        return FINDINGS[page](rows)
    except (LookupError, ValueError):
        return ""


def _of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    return [row for row in rows if row.kind == kind]


def _cascade(rows: list[Row]) -> str:
    promises = [row.figures for row in _of_kind(rows, "cascade-promise")]
    kept, tried = (sum(figures[name] for figures in promises) for name in ("kept", "resamples"))
    share = fmean(figures["expected_dim"] / figures["full_dim"] for figures in promises)
    return (
        f"A cascade that promises a bounded loss of accuracy at 95 % confidence kept its promise in {kept:,} of "
        f"{tried:,} resamples, and read {100 * share:.0f} % of the dims on average."
    )


def _demo(rows: list[Row]) -> str:
    evaluated = [row for row in _of_kind(rows, "evaluate") if row.figures["split"] == "twemoji"]
    by_column = seeds_by_column(evaluated, METRICS[1][2])
    nested, fixed = by_column["demo-nested"], by_column["demo-fixed"]
    smallest = min(nested)
    return (
        f"At {smallest} of {max(nested)} dims the nested model finds the right emoji in a new style in "
        f"{fmean(nested[smallest]):.1f} % of cases (1-NN); the fixed model truncated to {smallest} dims finds "
        f"{fmean(fixed[smallest]):.1f} %. At full dim they reach {fmean(nested[max(nested)]):.1f} and "
        f"{fmean(fixed[max(nested)]):.1f} %."
    )


def _fused_losses(rows: list[Row]) -> str:
    large = [row.figures for row in rows if row.figures["columns"] == 131072 and "nested eager" in row.figures]
    figures = large[-1]
    loop, fused, single = (figures[name]["p50"] for name in ("nested eager", "fused", "single eager"))
    memory = figures["fused"]["extra_bytes"] / figures["single eager"]["extra_bytes"]
    return (
        f"With {figures['columns']:,} classes and {len(figures['dims'])} dims, the fused nested loss takes "
        f"{fused / single:.2f} × the time of one ordinary loss at full dim; a loop over the dims takes "
        f"{loop / single:.1f} ×. It needs {100 * memory:.0f} % of the ordinary loss's extra memory."
    )


def _generator(rows: list[Row]) -> str:
    figures = rows[-1].figures
    real = figures["real"]["map@10"]
    gap = max(abs(real[dim] - drawn["map@10"][dim]) for dim in real for drawn in figures["drawn"])
    return f"Generated embeddings match the mAP@10 of the real ones within {100 * gap:.1f} points at every dim."


def _image_text(rows: list[Row]) -> str:
    figures: ByColumn = {}
    for row in _of_kind(rows, "pairs"):
        if row.subject.startswith("flickr8k") and row.figures["split"] == "test":
            place = row.figures["ks"].index(10)
            by_dim = figures.setdefault(row.figures["model"].rsplit(" ", 1)[1], {})
            for dim, values in zip(row.figures["dims"], row.figures["ndcg"][0], strict=True):
                by_dim.setdefault(dim, []).append(100 * values[place])
    low, high = min(figures["nested"]), max(figures["nested"])
    nested, fixed = ({dim: fmean(figures[kind][dim]) for dim in (low, high)} for kind in ("nested", "fixed"))
    return (
        f"On Flickr8k, images find their captions with an nDCG@10 of {nested[low]:.1f} % at {low} dims when trained "
        f"nested, and {fixed[low]:.1f} % when a model of {high} dims is truncated; at {high} dims the figures are "
        f"{nested[high]:.1f} and {fixed[high]:.1f} %."
    )


def _planner(rows: list[Row]) -> str:
    kept, draws = (sum(row.figures[name] for row in rows) for name in ("kept", "draws"))
    timed = [row.figures for row in rows if "milliseconds" in row.figures]
    faster = [figures["exact_milliseconds"] / figures["milliseconds"] for figures in timed]
    speed = f" They were {min(faster):.0f} × faster than exact search of the same index." if faster else ""
    return f"Plans kept the recall they promised, at 95 % confidence, in {kept} of {draws} draws of queries.{speed}"


def _gpu(rows: list[Row]) -> str:
    figures = rows[-1].figures
    exact = figures["plans"]["exact"]
    ours = {name: plan for name, plan in figures["plans"].items() if name != "exact" and "torch" not in name}
    good = {name: plan for name, plan in ours.items() if plan["recall"] >= 0.95}
    if not good:
        return f"Exact search of {figures['count']:,} vectors takes {exact['ms_1']:.2f} ms for one query on an H200."
    name = max(good, key=lambda plan: good[plan]["faster_1"])
    return (
        f"On an H200, the plan “{name}” answers one query over {figures['count']:,} vectors "
        f"{good[name]['faster_1']:.1f} × faster than exact search, with a recall@10 of {good[name]['recall']:.3f}."
    )


def _search_speed(rows: list[Row]) -> str:
    figures = rows[-1].figures
    seconds = {name: value["p50"] for name, value in figures["seconds"].items()}
    cost = seconds["all dims"] / seconds["one dim"]
    return (
        f"Exact neighbours at {len(figures['dims'])} dims in one pass cost {cost:.2f} × "
        f"one search at full dim; plain numpy takes {seconds['all dims, numpy'] / seconds['all dims']:.1f} × as long."
    )


def _search_core(rows: list[Row]) -> str:
    row = next(row for row in reversed(rows) if "before" in row.figures["microseconds"])
    now, before = next(iter(row.figures["microseconds"].values())), row.figures["microseconds"]["before"]
    return (
        f"On {row.figures['rows']:,} × {row.figures['dim']} vectors, the first `matryo search` after an installation "
        f"takes {now['first'] / 1e6:.2f} s; when kernels were compiled on first use, it took "
        f"{before['first'] / 1e6:.0f} s."
    )


def _sentence_loss(rows: list[Row]) -> str:
    faster = [
        row.figures["variants"]["matryoshka"]["p50"] / row.figures["variants"]["nested"]["p50"]
        for row in rows
        if "matryoshka" in row.figures["variants"]
    ]
    return (
        f"`NestedRankingLoss` is {min(faster):.1f} to {max(faster):.0f} × faster than sentence-transformers' "
        "`MatryoshkaLoss`, over nine batch sizes and dims."
    )


def _step_cost(rows: list[Row]) -> str:
    figures = rows[-1].figures
    separate, loop = (100 * (figures[name]["ratio"] - 1) for name in ("separate", "loop"))
    return f"Nested heads add {separate:.1f} % to a training step; a plain loop over heads adds {loop:.1f} %."


def _text_finetune(rows: list[Row]) -> str:
    arms: dict[str, dict[int, list[float]]] = {}
    for row in _of_kind(rows, "text-finetune"):
        of_arm = arms.setdefault(row.figures["arm"], {})
        for dim, value in zip(row.figures["dims"], row.figures["scifact"]["ndcg@10"], strict=True):
            of_arm.setdefault(dim, []).append(value)
    if not {"nested", "plain"} <= arms.keys():
        return ""
    low = 48
    return (
        f"Fine-tuned nested, all-MiniLM-L6-v2 keeps an nDCG@10 of {100 * fmean(arms['nested'][low]):.1f} % on SciFact "
        f"at {low} of 384 dims; fine-tuned at full dim only and truncated, {100 * fmean(arms['plain'][low]):.1f} %."
    )


def _against_fixed(rows: list[Row], split: str, figure: str = "top1") -> str:
    """The largest and the smallest gap between the nested model and one model per dim."""
    values: dict[str, dict[int, list[float]]] = {"separate": {}, "tied": {}, "fixed": {}}
    for row in rows:
        if kind_of(row) in values:
            for dim, value in row.figures[figure].get(split, {}).items():
                values[kind_of(row)].setdefault(int(dim), []).append(value)
    nested = values["separate"] or values["tied"]
    gaps = {dim: 100 * (fmean(nested[dim]) - fmean(values["fixed"][dim])) for dim in nested if dim in values["fixed"]}
    if not gaps:
        return ""
    best, worst = max(gaps, key=lambda dim: gaps[dim]), min(gaps, key=lambda dim: gaps[dim])
    return (
        f"one nested model differs from one model per dim by {gaps[worst]:+.1f} points (at {worst} dims) "
        f"to {gaps[best]:+.1f} points (at {best} dims)."
    )


def _tiny_imagenet(rows: list[Row]) -> str:
    trained = [
        row for row in _of_kind(rows, "train")
        if row.subject.startswith("tiny-imagenet-rn18 ")
        and not row.figures.get("novel") and not row.figures.get("validate")
        and (kind_of(row) == "fixed" or not tuned(row))
    ]  # fmt: skip
    latest = [row for row in trained if tuned(row) == tuned(last_of_column(trained, row))]
    return " ".join(["ResNet18, top-1: " + _against_fixed(latest, "val"), *_best(rows)])


def _best(rows: list[Row]) -> list[str]:
    """For each metric, where the recipe tiny-imagenet-rn18-best reaches the best fixed model, and where not."""
    return [
        f"Recipe {best}, {title}: {verdict(nested, rivals)}"
        for best, split, title, nested, rivals in comparisons(rows)
        if best == "tiny-imagenet-rn18-best" and split == "val"
    ]


def _mlm(rows: list[Row]) -> str:
    longest = next(
        (chosen for steps in ("12000", "4000")
         if len(chosen := [row for row in rows if row.figures.get("changed") == {"loop.steps": steps}]) > 1), []
    )  # fmt: skip
    sentence = _against_fixed(longest, "test", "masked_top1")
    seeds = len({row.seed for row in longest})
    return f"Share of masked words predicted, {seeds} seed(s): {sentence}" if sentence else ""


def _vit(rows: list[Row]) -> str:
    small = [row for row in rows if row.figures.get("changed", {}).get("loop.epochs") == "30"]
    told = _against_fixed(small, "val")
    return f"ViT-Ti/4 after 30 epochs, one seed: {told}" if told else ""


def _retrieval(rows: list[Row]) -> str:
    """Queries per second against HNSW at one recall, on the largest real database."""
    real = [row for row in _of_kind(rows, "retrieval") if "generated" not in row.subject]
    subject = max(real, key=lambda row: row.figures["count"] * row.figures["dim"]).subject
    good = [row.figures for row in real if row.subject == subject and row.figures["recall@10"] >= 0.95]
    fastest: dict[str, float] = {}
    for figures in good:
        engine = "matryo" if figures["engine"].startswith("matryo") else figures["engine"]
        fastest[engine] = max(fastest.get(engine, 0), figures["qps"])
    if "matryo" not in fastest or len(fastest) < 2:
        return ""
    ours = fastest.pop("matryo")
    peer = max(fastest, key=lambda engine: fastest[engine])
    return (
        f"On {subject}, one query at a time on one thread, matryo answers {ours:,.0f} queries per second at a "
        f"recall@10 of at least 0.95; the fastest other library, {peer}, answers {fastest[peer]:,.0f}."
    )


def _tables(rows: list[Row]) -> str:
    """The best adaptive plan against exact search at full dim, of the largest model."""
    subject = rows[-1].subject
    tables = {row.figures["table"]: row.figures["entries"] for row in rows if row.subject == subject}
    exact = max(tables["single"], key=lambda entry: entry["plan"]["stages"][0]["dim"])
    as_good = [entry for entry in tables["adaptive"] if entry["top1"] >= exact["top1"] - 0.001]
    if not as_good:
        return ""
    plan = min(as_good, key=lambda entry: entry["mflops"])
    short, full = (stage["dim"] for stage in plan["plan"]["stages"])
    return (
        f"A shortlist of 200 at {short} dims, re-ranked at {full}, keeps the top-1 of exact search at full dim "
        f"({100 * plan['top1']:.1f} and {100 * exact['top1']:.1f} %) for 1/{exact['mflops'] / plan['mflops']:.0f} "
        "of the multiply-adds."
    )


FINDINGS: dict[str, Callable[[list[Row]], str]] = {
    "cascade": _cascade,
    "demo": _demo,
    "compress": compress.finding,
    "cluster": cluster.finding,
    "demo-settings": settings.finding,
    "engines": engines.finding,
    "filters": filters.finding,
    "fused-losses": _fused_losses,
    "generator": _generator,
    "image-feed": feed.finding,
    "image-text": _image_text,
    "layers": layers.finding,
    "mlm": _mlm,
    "paper": paper.finding,
    "planner": _planner,
    "retrieval": _retrieval,
    "retrieval-gpu": _gpu,
    "retrieval-tables": _tables,
    "search-core": _search_core,
    "search-speed": _search_speed,
    "sentence-loss": _sentence_loss,
    "serve": serve.finding,
    "soak": promises.finding,
    "step-cost": _step_cost,
    "text-finetune": _text_finetune,
    "tiny-imagenet": _tiny_imagenet,
    "shift": shift.finding,
    "unseen": unseen.finding,
    "unseen-plans": unseen_plans.finding,
    "migration": migration.finding,
    "retrofit": retrofit.finding,
    "updates": updates.finding,
    "vit": _vit,
}
