"""The models of the paper's tables, by the names of their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.reproduce.runs import Model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matryo.reproduce.runs import Workshop

BOOSTS = {"MRL": (), "MRL-8boost": (2.0,), "MRL-8+16boost": (2.0, 1.5)}
NOVEL = "unseen"


def nested(shop: Workshop) -> Model:
    """The paper's MRL: one head per dim."""
    return shop.image_model("MRL", {"head.kind": "separate", "head.dims": _listed(shop.scale.dims)})


def tied(shop: Workshop) -> Model:
    """The paper's MRL-E: one shared head."""
    return shop.image_model("MRL-E", {"head.kind": "tied", "head.dims": _listed(shop.scale.dims)})


def fixed(shop: Workshop, dim: int) -> Model:
    """The paper's FF at one dim."""
    return shop.image_model(f"FF-{dim}", {"head.kind": "fixed", "head.dims": str(dim)})


def every_fixed(shop: Workshop) -> list[Model]:
    """FF at every dim."""
    return [fixed(shop, dim) for dim in shop.scale.dims]


def boosted(shop: Workshop, name: str) -> Model:
    """The nested model with larger weights at its smallest dims."""
    first = BOOSTS[name]
    if not first:
        return nested(shop)
    weights = (*first, *(1.0,) * (len(shop.scale.dims) - len(first)))
    dims = _listed(shop.scale.dims)
    return shop.image_model(name, {"head.kind": "separate", "head.dims": dims, "head.weights": _listed(weights)})


def from_dim(shop: Workshop, smallest: int) -> Model:
    """The nested model with another smallest dim below the usual ones."""
    chosen = sorted({smallest, *shop.scale.dims})
    return shop.image_model(f"MRL-{smallest}", {"head.kind": "separate", "head.dims": _listed(chosen)})


def uniform(shop: Workshop) -> Model:
    """The nested model with equally spaced dims."""
    return shop.image_model("MRL-Uniform", {"head.kind": "separate", "head.dims": _listed(shop.scale.uniform)})


def finetuned(shop: Workshop, column: str) -> Model:
    """FF at the full dim, made nested by training its last layers only."""
    scale = shop.scale
    changes = {"head.kind": "separate", "head.dims": _listed(scale.dims), "finetune.unfreeze": scale.unfreeze[column]}
    return shop.image_model(column, {**scale.finetuning, **changes}, start=fixed(shop, scale.dim))


def partly_shown(shop: Workshop, model: Model) -> Model:
    """A model trained without the classes that the scale hides."""
    return Model(f"{model.name} {NOVEL}", model.recipe, model.changes, hides=shop.scale.hidden)


def without_novel(shop: Workshop) -> Model:
    """The nested model that has not seen the unseen classes: where these are other data, the usual one."""
    return partly_shown(shop, nested(shop)) if shop.scale.hidden else nested(shop)


def unseen_splits(shop: Workshop) -> tuple[str, str]:
    """The splits of unseen classes: the database and the queries."""
    return ("novel-train", f"novel-{shop.scale.query}") if shop.scale.hidden else ("4k-train", "4k-val")


def of_pairs(shop: Workshop, name: str) -> Model:
    """A dual encoder of images and texts: ALIGN-MRL is nested, ALIGN is not."""
    kind = "separate" if name.endswith("MRL") else "fixed"
    return Model(name, "emoji-pairs", tuple(sorted({**shop.scale.pairs, "head.kind": kind}.items())))


def _listed(values: Iterable[float]) -> str:
    return ",".join(f"{value:g}" for value in values)
