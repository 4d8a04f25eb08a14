"""Tables of the accuracy of heads: by dim, on shifted data, after ablations, with perfect routing, on superclasses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.baselines import baseline
from matryo.evaluation import predict, trends
from matryo.evaluation.protocols.probe import fit_probe
from matryo.reproduce import models
from matryo.reproduce.measures.found import Found, head_hits

if TYPE_CHECKING:
    from matryo.arrays import Array
    from matryo.embeddings import EmbeddingSet
    from matryo.reproduce.runs import Model, Workshop
    from matryo.reproduce.table import Label

_DRAWS = 1   # of random features: a probe takes longer than all else, and draws differ little


def accuracy(shop: Workshop, seed: int) -> Found:
    """The heads of nested and fixed models, and the baselines of the largest fixed model."""
    split, full = shop.scale.query, models.fixed(shop, shop.scale.dim)
    queries, database = shop.embeddings(full, seed, split), shop.embeddings(full, seed, "train")
    svd = baseline("svd-classifier").fit(database).apply(queries)
    return {
        "Rand. LP": _random_probe(database, queries, shop.scale.dims),
        "SVD": head_hits(svd, shop.scale.dims),
        "FF": fixed_heads(shop, seed, split),
        "MRL": _nested(shop, seed, split),
        "MRL-E": _tied(shop, seed, split),
    }


def robustness(shop: Workshop, seed: int) -> Found:
    """Those heads on the usual test split and on shifted ones."""
    found: Found = {}
    for split, name in {shop.scale.query: "ImageNet-V1", **shop.scale.shifted}.items():
        found[f"{name} FF"] = fixed_heads(shop, seed, split)
        found[f"{name} MRL-E"], found[f"{name} MRL"] = _tied(shop, seed, split), _nested(shop, seed, split)
    return found


def weights(shop: Workshop, seed: int) -> Found:
    """Larger weights of the losses of small dims."""
    return {name: _heads(shop, models.boosted(shop, name), seed) for name in models.BOOSTS}


def smallest(shop: Workshop, seed: int) -> Found:
    """Other smallest dims."""
    sizes = (*shop.scale.smallest, shop.scale.dims[0])
    return {f"MRL-{size}": _heads(shop, models.from_dim(shop, size), seed) for size in sizes}


def finetuning(shop: Workshop, seed: int) -> Found:
    """A fixed model made nested by training its last layers, beside one trained nested from the start."""
    found: Found = {column: _heads(shop, models.finetuned(shop, column), seed) for column in shop.scale.unfreeze}
    return found | {"MRL": _nested(shop, seed, shop.scale.query)}


def oracle(shop: Workshop, seed: int) -> Found:
    """The dim at which each query is first right."""
    queries = shop.embeddings(models.nested(shop), seed, shop.scale.query)
    predictions = predict(queries)
    result = trends(queries, predictions)
    first: dict[Label, Any] = {dim: 100 * share for dim, share in zip(result.dims, result.first_right, strict=True)}
    ever = predictions.correct.any(axis=0).astype(np.float32)
    routed = {**first, "always wrong": 100 * result.always_wrong, "oracle": ever}
    return {"MRL": routed, "_MRL alone": head_hits(queries, predictions.dims)}


def oracle_shifted(shop: Workshop, seed: int) -> Found:
    """The fixed model, and perfect routing of the nested one, on every test split."""
    found: Found = {"FF": {}, "MRL oracle": {}}
    for split, name in {shop.scale.query: "ImageNet-V1", **shop.scale.shifted}.items():
        full = models.fixed(shop, shop.scale.dim)
        found["FF"][name] = head_hits(shop.embeddings(full, seed, split), [shop.scale.dim])[shop.scale.dim]
        correct = predict(shop.embeddings(models.nested(shop), seed, split)).correct
        found["MRL oracle"][name] = correct.any(axis=0).astype(np.float32)
    return found


def superclasses(shop: Workshop, seed: int) -> Found:
    """Whether the predicted class is of the right superclass; classes without one are left out."""
    split = shop.scale.query
    queries = shop.embeddings(models.nested(shop), seed, split)
    found: Found = {"MRL": {}, "FF": {}, "_MRL classes": {}}
    for dim in shop.scale.dims:
        fixed = shop.embeddings(models.fixed(shop, dim), seed, split)
        found["MRL"][dim], found["_MRL classes"][dim] = _by_superclass(queries, dim)
        found["FF"][dim], _ = _by_superclass(fixed, dim)
    return found


def fixed_heads(shop: Workshop, seed: int, split: str) -> dict[Label, Array]:
    """The fixed model of each dim."""
    found: dict[Label, Array] = {}
    for dim in shop.scale.dims:
        found |= head_hits(shop.embeddings(models.fixed(shop, dim), seed, split), [dim])
    return found


def _by_superclass(queries: EmbeddingSet, dim: int) -> tuple[Array, Array]:
    predictions = predict(queries, dims=[dim])
    of = np.array([*queries.manifest.superclass_of, -1])
    truth, said = of[predictions.labels], of[predictions.predicted[0]]
    graded = truth >= 0
    right = (said == truth)[graded].astype(np.float32)
    return right, predictions.correct[0][graded].astype(np.float32)


def _random_probe(database: EmbeddingSet, queries: EmbeddingSet, dims: tuple[int, ...]) -> dict[Label, Any]:
    """A linear classifier fitted on randomly chosen features: the mean of several draws."""
    drawn = []
    for draw in range(_DRAWS):
        chosen = baseline("random", draw).fit(database)
        probe = fit_probe(chosen.apply(database), dims=dims, iterations=30, progress=False)
        drawn.append(probe.score(chosen.apply(queries)).top1)
    return dict(zip(dims, (100 * np.mean(drawn, axis=0)).tolist(), strict=True))


def _heads(shop: Workshop, model: Model, seed: int) -> dict[Label, Array]:
    queries = shop.embeddings(model, seed, shop.scale.query)
    return head_hits(queries, queries.nesting.dims)


def _nested(shop: Workshop, seed: int, split: str) -> dict[Label, Array]:
    return head_hits(shop.embeddings(models.nested(shop), seed, split), shop.scale.dims)


def _tied(shop: Workshop, seed: int, split: str) -> dict[Label, Array]:
    return head_hits(shop.embeddings(models.tied(shop), seed, split), shop.scale.dims)

