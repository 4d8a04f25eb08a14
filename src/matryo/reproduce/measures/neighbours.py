"""Tables of nearest neighbours: 1-NN accuracy, and mAP@10 among known, shifted and unseen classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.baselines import DRAWN, baseline
from matryo.reproduce import models
from matryo.reproduce.measures.found import Found, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Array
    from matryo.embeddings import EmbeddingSet
    from matryo.reproduce.runs import Model, Workshop
    from matryo.reproduce.table import Label

_DRAWS = 3   # of random baselines


def one_nearest(shop: Workshop, seed: int) -> Found:
    """1-NN of every model, and of the largest fixed one after a reduction."""
    return {column.removesuffix(" Top-1"): by for column, by in _compared(shop, seed, shop.scale.query).items()
            if column.endswith(" Top-1")}  # fmt: skip


def retrieval(shop: Workshop, seed: int) -> Found:
    """mAP@10 of every model, of nested ones also between the trained dims."""
    found = _compared(shop, seed, shop.scale.query, between=True)
    return {column: by for column, by in found.items() if not column.startswith(("Rand. FS", "JL", "SVD Top-1"))}


def shifted(shop: Workshop, seed: int) -> Found:
    """All models with the queries of another source."""
    split = next(iter(shop.scale.shifted))
    return _own(shop, seed, split)


def unseen(shop: Workshop, seed: int) -> Found:
    """Queries and a database of classes that training did not show."""
    dims = sorted({*shop.scale.dims, *shop.scale.between})
    first, precise = nearest(*unseen_sides(shop, seed), dims)
    return {"MRL Top-1": {**first}, "MRL mAP@10": {**precise}}


def spacing(shop: Workshop, seed: int) -> Found:
    """1-NN of the usual nesting and of one with uniform spacing."""
    both = {"MRL-Log": models.nested(shop), "MRL-Uniform": models.uniform(shop)}
    return {name: {**_sides(shop, model, seed, shop.scale.query, shop.scale.dims)[0]} for name, model in both.items()}


def unseen_sides(shop: Workshop, seed: int) -> tuple[EmbeddingSet, EmbeddingSet]:
    """The database and the queries of unseen classes, by a nested model."""
    model = models.without_novel(shop)
    database, queries = models.unseen_splits(shop)
    return shop.embeddings(model, seed, database), shop.embeddings(model, seed, queries)


def _compared(shop: Workshop, seed: int, split: str, *, between: bool = False) -> Found:
    """Every model and baseline; baselines that are drawn are averaged over their draws, query by query."""
    found: Found = {}
    full, dims = models.fixed(shop, shop.scale.dim), shop.scale.dims
    database, queries = shop.embeddings(full, seed, "train"), shop.embeddings(full, seed, split)
    for name, title in (("random", "Rand. FS"), ("svd", "SVD"), ("jl", "JL")):
        drawn = []
        for draw in range(_DRAWS if name in DRAWN else 1):
            mapped = baseline(name, draw).fit(database)
            drawn.append(nearest(mapped.apply(database), mapped.apply(queries), dims))
        for place, metric in enumerate(("Top-1", "mAP@10")):
            found[f"{title} {metric}"] = {dim: np.mean([one[place][dim] for one in drawn], axis=0) for dim in dims}
    return found | _own(shop, seed, split, between=between)


def _own(shop: Workshop, seed: int, split: str, *, between: bool = False) -> Found:
    """The fixed model of each dim and both nested ones."""
    found: Found = {"FF Top-1": {}, "FF mAP@10": {}}
    for dim in shop.scale.dims:
        first, precise = _sides(shop, models.fixed(shop, dim), seed, split, [dim])
        found["FF Top-1"] |= first
        found["FF mAP@10"] |= precise
    dims = sorted({*shop.scale.dims, *(shop.scale.between if between else ())})
    for model in (models.tied(shop), models.nested(shop)):
        first, precise = _sides(shop, model, seed, split, dims)
        found |= {f"{model.name} Top-1": {**first}, f"{model.name} mAP@10": {**precise}}
    return found


def _sides(shop: Workshop, model: Model, seed: int, split: str, dims: Sequence[int]) -> tuple[dict[Label, Array], ...]:
    return nearest(shop.embeddings(model, seed, "train"), shop.embeddings(model, seed, split), dims)
