"""Tables of adaptive retrieval: pairs of dims, funnels, lengths of the shortlist; on known and on unseen classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.reproduce import models
from matryo.reproduce.measures.found import Found
from matryo.reproduce.measures.neighbours import unseen_sides
from matryo.reproduce.paper.derived import ALONE
from matryo.reproduce.plans import LENGTHS, Shortlists, adaptive_plans, funnel_plans, most_kept
from matryo.retrieve.plan.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matryo.embeddings import EmbeddingSet
    from matryo.nesting import Nesting
    from matryo.reproduce.runs import Workshop
    from matryo.reproduce.table import Label

    Sides = Callable[[Workshop, int], tuple[EmbeddingSet, EmbeddingSet]]

_SHORT = 16   # the first dim whose shortlist is made longer


def known_sides(shop: Workshop, seed: int) -> tuple[EmbeddingSet, EmbeddingSet]:
    """The training split as a database, and the test split as queries."""
    model = models.nested(shop)
    return shop.embeddings(model, seed, "train"), shop.embeddings(model, seed, shop.scale.query)


def adaptive(shop: Workshop, seed: int, *, unseen: bool = False) -> Found:
    """Every pair of a first and a second dim, with a shortlist of 200."""
    sides = _sides(shop, seed, unseen)
    plans: dict[Label, Plan] = {
        f"{plan.stages[0].dim} → {plan.stages[-1].dim}": plan for plan in adaptive_plans(sides[0].nesting)
    }
    return _measured(*sides, plans)


def funnel(shop: Workshop, seed: int, *, unseen: bool = False) -> Found:
    """The paper's three cascades of shortlists, from each dim that leaves room for them."""
    database, queries = _sides(shop, seed, unseen)
    plans: dict[Label, Plan] = {
        f"{plan.stages[0].dim}, {plan.stages[0].keep} → …": plan for plan in _funnels(database.nesting)
    }
    return _measured(database, queries, plans)


def shortlist(shop: Workshop, seed: int, *, unseen: bool = False) -> Found:
    """Shortlists of other lengths, from 16 dims to all."""
    database, queries = _sides(shop, seed, unseen)
    lengths = [length for length in LENGTHS if length <= len(database)]
    plans: dict[Label, Plan] = {keep: Plan.adaptive(_SHORT, database.nesting.dim, keep=keep, k=10) for keep in lengths}
    found = _measured(database, queries, plans)
    return {column: by for column, by in found.items() if not column.startswith(ALONE)}


def _sides(shop: Workshop, seed: int, unseen: bool) -> tuple[EmbeddingSet, EmbeddingSet]:
    return (unseen_sides if unseen else known_sides)(shop, seed)


def _funnels(nesting: Nesting) -> list[Plan]:
    """The paper's funnels; from small dims that are too near the full one for five stages, shorter ones."""
    plans = funnel_plans(nesting)
    there = {plan.stages[0].dim for plan in plans}
    lows = [dim for dim in nesting.dims[:3] if dim not in there and dim < nesting.dim]
    return plans + [Plan.funnel(low, nesting.dim, keep=keep, k=10) for low in lows for keep in (200, 400, 800)]


def _measured(database: EmbeddingSet, queries: EmbeddingSet, plans: Mapping[Label, Plan]) -> Found:
    dims = database.nesting.dims
    single = {dim: Plan.single(dim, k=10) for dim in dims}
    fitting = {label: plan for label, plan in plans.items() if plan.stages[0].keep <= len(database)}
    shortlists = Shortlists(database, queries, most_kept([*single.values(), *fitting.values()], dims))
    found: Found = {name: {} for name in ("Top-1", "mAP@10", "MFLOPs", f"{ALONE}Top-1", f"{ALONE}mAP@10")}
    for dim, plan in single.items():
        found[f"{ALONE}Top-1"][dim], found[f"{ALONE}mAP@10"][dim] = shortlists.outcomes(plan)
    for label, plan in fitting.items():
        found["Top-1"][label], found["mAP@10"][label] = shortlists.outcomes(plan)
        found["MFLOPs"][label] = plan.mflops(len(database), reuse=False)
    return found
