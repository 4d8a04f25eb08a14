"""Tables of classes with few examples: few-shot accuracy, and a long-tailed stream with novel classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.evaluation import few_shot
from matryo.evaluation import stream as stream_of
from matryo.evaluation.subject import pooled
from matryo.reproduce import models

if TYPE_CHECKING:
    from matryo.embeddings import EmbeddingSet
    from matryo.reproduce.measures.found import Found
    from matryo.reproduce.runs import Model, Workshop

_SHOTS, _DRAWS = (1, 3, 5, 7, 9), 10


def shots(shop: Workshop, seed: int) -> Found:
    """Nearest-class-mean accuracy on the shifted test images, which training did not show."""
    found: Found = {}
    for model, dims in _models(shop):
        examples = _tested(shop, model, seed)
        counts = _SHOTS if shop.data else (1, 2)
        result = few_shot(examples, shots=counts, draws=_DRAWS, dims=dims, seed=seed, progress=shop.progress)
        for count, by_dim in zip(result.shots, result.accuracy, strict=True):
            column = found.setdefault(f"{model.name.split('-')[0]} {count}-shot", {})
            column |= {dim: 100 * share for dim, share in zip(result.dims, by_dim, strict=True)}
    return found


def stream(shop: Workshop, seed: int) -> Found:
    """The stream past class means, on models that were not shown some of its classes."""
    found: Found = {}
    for kind in (models.fixed(shop, shop.scale.dim), models.nested(shop)):
        model = models.partly_shown(shop, kind)
        novel = [shop.embeddings(model, seed, f"novel-{split}") for split in ("train", shop.scale.query)]
        known = [shop.embeddings(model, seed, split) for split in (shop.scale.query, *shop.scale.shifted)]
        labels = sorted({int(label) for one in novel for label in one.labels})   # type: ignore[union-attr]
        dims = [shop.scale.dim] if kind.name.startswith("FF") else shop.scale.dims
        result = stream_of(
            shop.embeddings(model, seed, "train"), pooled([*novel, *known]), novel=labels, dims=dims, seed=seed,
            draws=3, progress=shop.progress,
        )  # fmt: skip
        for group, by_dim in zip(result.groups, result.accuracy, strict=True):
            column = found.setdefault(f"{kind.name.split('-')[0]} {group}", {})
            shares = zip(result.dims, by_dim, strict=True)
            column |= {dim: 100 * share for dim, share in shares if share is not None}
    return found


def _models(shop: Workshop) -> list[tuple[Model, list[int]]]:
    fixed = [(models.fixed(shop, dim), [dim]) for dim in shop.scale.dims]
    return [*fixed, (models.nested(shop), [*shop.scale.dims])]


def _tested(shop: Workshop, model: Model, seed: int) -> EmbeddingSet:
    """ImageNet-V2, with ten images per class; at the small scale all test splits, one drawing per class in each."""
    if shop.data:
        return shop.embeddings(model, seed, "v2")
    return pooled([shop.embeddings(model, seed, split) for split in (shop.scale.query, *shop.scale.shifted)])
