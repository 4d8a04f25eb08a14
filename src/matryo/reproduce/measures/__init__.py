"""How each table is measured, by its name: the models that it needs, and a function of one seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from matryo.reproduce import models
from matryo.reproduce.measures import cascades, few, heads, neighbours, pairs, plans

if TYPE_CHECKING:
    from collections.abc import Callable

    from matryo.reproduce.measures.found import Found
    from matryo.reproduce.runs import Model, Workshop


@dataclass(frozen=True)
class Measure:
    """The models that a table needs, and its measurement."""

    run: Callable[[Workshop, int], Found]
    models: Callable[[Workshop], list[Model]]
    splits: tuple[str, ...] = ()
    """Folders below --data that it needs at the paper's scale, besides ImageNet."""


def _main(shop: Workshop) -> list[Model]:
    return [models.nested(shop), models.tied(shop), *models.every_fixed(shop)]


def _unseen(shop: Workshop) -> list[Model]:
    return [models.without_novel(shop)]


def _pairs(shop: Workshop) -> list[Model]:
    return [models.of_pairs(shop, "ALIGN"), models.of_pairs(shop, "ALIGN-MRL")]


def _nested(shop: Workshop) -> list[Model]:
    return [models.nested(shop)]


def _nested_and_fixed(shop: Workshop) -> list[Model]:
    return [models.nested(shop), *models.every_fixed(shop)]


def _weights(shop: Workshop) -> list[Model]:
    return [models.boosted(shop, name) for name in models.BOOSTS]


def _smallest(shop: Workshop) -> list[Model]:
    return [models.from_dim(shop, size) for size in (*shop.scale.smallest, shop.scale.dims[0])]


def _finetuned(shop: Workshop) -> list[Model]:
    return [models.nested(shop), *(models.finetuned(shop, column) for column in shop.scale.unfreeze)]


def _partly_shown(shop: Workshop) -> list[Model]:
    return [models.partly_shown(shop, one) for one in (models.nested(shop), models.fixed(shop, shop.scale.dim))]


_4K = ("imagenet-4k/train", "imagenet-4k/val")
_V2 = ("shifted/v2",)
_SHIFTED = tuple(f"shifted/{name}" for name in ("v2", "r", "a", "sketch"))
MEASURES = {
    "accuracy": Measure(heads.accuracy, _main),
    "1-nn": Measure(neighbours.one_nearest, _main),
    "cascade": Measure(cascades.cascade, _nested_and_fixed),
    "web-scale": Measure(pairs.web_scale, _pairs),
    "between": Measure(pairs.between, _pairs),
    "cosines": Measure(pairs.cosines, _pairs),
    "retrieval": Measure(neighbours.retrieval, _main),
    "retrieval-shifted": Measure(neighbours.shifted, _main, _V2),
    "retrieval-unseen": Measure(neighbours.unseen, _unseen, _4K),
    "re-rank": Measure(plans.adaptive, _nested),
    "re-rank-unseen": Measure(partial(plans.adaptive, unseen=True), _unseen, _4K),
    "funnel": Measure(plans.funnel, _nested),
    "funnel-unseen": Measure(partial(plans.funnel, unseen=True), _unseen, _4K),
    "shortlist": Measure(plans.shortlist, _nested),
    "shortlist-unseen": Measure(partial(plans.shortlist, unseen=True), _unseen, _4K),
    "few-shot": Measure(few.shots, _nested_and_fixed, _V2),
    "stream": Measure(few.stream, _partly_shown),
    "robustness": Measure(heads.robustness, _main, _SHIFTED),
    "zero-shot": Measure(pairs.zero_shot, _pairs),
    "oracle": Measure(heads.oracle, _nested),
    "oracle-shifted": Measure(heads.oracle_shifted, _nested_and_fixed, _SHIFTED),
    "superclass": Measure(heads.superclasses, _nested_and_fixed),
    "finetuning": Measure(heads.finetuning, _finetuned),
    "weights": Measure(heads.weights, _weights),
    "smallest-dim": Measure(heads.smallest, _smallest),
    "spacing": Measure(neighbours.spacing, lambda shop: [models.nested(shop), models.uniform(shop)]),
}
