"""Whether a recipe's objective and encoders fit its data, found before anything is built or trained."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo.data.dataset import PairSplit, TextSplit
from matryo.encoders import encoder_names
from matryo.encoders.adapters.open_clip import OpenClip
from matryo.encoders.bert.model import BERTS
from matryo.errors import RecipeError
from matryo.training.recipe.load import RECIPE, load_recipe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from matryo.training.recipe.fields import Recipe

__all__ = ["check_colours", "check_encoder", "check_length", "check_objective", "noun"]

_ALIKE = 0.002   # of means and deviations of 0…1 images that differ in rounding alone


def noun(split: Any, objective: str = "") -> str:
    """What the items of a split are: images, texts or pairs; or what an ``objective`` makes of them, if given."""
    if objective == "masked":
        return "windows"
    if objective == "pairs" or isinstance(split, PairSplit):
        return "pairs"
    return "texts" if isinstance(split, TextSplit) else "images"


def check_objective(recipe: Recipe, split: Any) -> None:
    """Raise unless ``split`` has what the objective learns from: pairs, words or labels."""
    kind, what = recipe.objective.kind, noun(split)
    if kind in ("classify", "masked") and what == "pairs":
        raise RecipeError(
            f"objective.kind {kind} needs items, not pairs",
            got=f"{len(split)} {what}",
            cure="choose another --objective.kind or --data.source",
        )
    if kind == "pairs" and what != "pairs" and (split.labels < 0).all():
        raise RecipeError(
            "objective.kind pairs needs pairs, or labels to make them by",
            got=f"{len(split)} {what} without labels",
            cure="choose another --objective.kind or --data.source",
        )
    alone = recipe.loop.batch == 1 and not (what == "pairs" and split.negatives.shape[1])
    if kind in ("pairs", "distil") and alone:
        raise RecipeError(
            f"objective.kind {kind} compares the items of a batch with each other",
            got="loop.batch 1",
            cure="use --loop.batch 2 or more",
        )
    if kind == "masked" and what != "texts":
        raise RecipeError("only texts have words to mask", got=what, cure="use --data.source corpus")
    if kind == "classify" and len(split) and (split.labels < 0).all():
        others = "masked (with --head.kind tied) or pairs" if what == "texts" else "pairs"
        raise RecipeError(
            "objective.kind classify needs labels",
            got=f"a training split of {len(split)} {what} without labels",
            cure=f"choose a --data.source with labels, or --objective.kind {others}",
        )


def check_encoder(recipe: Recipe, split: Any) -> None:
    """Raise unless the encoders a recipe names read what ``split`` holds, and all of them have something to read."""
    kinds = _kinds(split)
    name, text = recipe.encoder.name, recipe.text.encoder
    if text and len(kinds) == 1:
        alone = next(iter(kinds))
        raise RecipeError(
            "text.encoder is for images with texts",
            got=f"{text}, and {alone} alone",
            cure='leave it empty: --text.encoder ""' + (f" --encoder.name {text}" if alone == "texts" else ""),
        )
    if not text and len(kinds) == 2 and not name.startswith("open_clip:"):
        given = name if _reads(name) == "texts" else "bert-small"
        raise RecipeError(
            "images with texts need an encoder of each",
            got=f"encoder.name {name} and no text.encoder",
            cure=f"use --text.encoder {given}" + (" --encoder.name resnet18" if given == name else ""),
        )
    _check_reads("encoder.name", name, "images" if text else next(iter(kinds)))
    if text:
        _check_reads("text.encoder", text, "texts")
    elif recipe.objective.teacher and len(kinds) == 1:
        _check_teacher(recipe.objective.teacher, next(iter(kinds)))


def _kinds(split: Any) -> set[str]:
    """What the items of a split, or of both its sides, are."""
    return {noun(side) for side in ((split.queries, split.candidates) if isinstance(split, PairSplit) else (split,))}


def _check_reads(field: str, name: str, wanted: str) -> None:
    reads = _reads(name)
    if reads and reads != wanted:
        example = "bert-small" if wanted == "texts" else "resnet18"
        raise RecipeError(
            f"{field} must read {wanted}",
            got=f"{name}, which reads {reads}",
            cure=f"say for example --{field} {example}",
        )


def _check_teacher(name: str, wanted: str) -> None:
    stored = Path(name) / RECIPE
    theirs = load_recipe(stored) if stored.is_file() else None
    reads = _reads(name) if theirs is None else "" if theirs.text.encoder else _reads(theirs.encoder.name)
    if reads and reads != wanted:
        raise RecipeError(
            "a teacher must read what the student reads",
            got=f"{name}, which reads {reads}, and {wanted}",
            cure="name another --objective.teacher",
        )


def _reads(name: str) -> str:
    """What an encoder of that name reads; empty where the name does not tell, or it is both."""
    library = name.partition(":")[0] if ":" in name else ""
    if name in BERTS or library in ("bert", "sentence-transformers"):
        return "texts"
    return "images" if library == "timm" or name in encoder_names() else ""


def check_colours(recipe: Recipe, split: Any, encoder: nn.Module, name: str) -> None:
    """Raise if the weights of ``encoder`` know images that were normalised otherwise than those of ``split`` are."""
    if "images" not in _kinds(split):
        return
    ours = (recipe.data.mean, recipe.data.std)
    for module in encoder.modules():
        theirs = getattr(module, "colours", None)
        if theirs and any(abs(a - b) > _ALIKE for a, b in zip(chain(*ours), chain(*theirs), strict=True)):
            raise RecipeError(
                f"data.mean and data.std must be those that {name} was trained with",
                got=" and ".join(map(_listed, ours)),
                cure=f"use --data.mean {_listed(theirs[0])} --data.std {_listed(theirs[1])}",
            )


def _listed(values: Iterable[float]) -> str:
    return ",".join(f"{value:g}" for value in values)


def check_length(recipe: Recipe, encoder: nn.Module, name: str) -> None:
    """Raise where texts may be longer than an encoder can read: the first such text would stop the training."""
    for module in encoder.modules():
        most = int(module.model.context_length) if isinstance(module, OpenClip) else _positions(module)
        if 0 < most < recipe.text.length:
            raise RecipeError(
                f"text.length must not exceed the {most} positions of {name}",
                got=recipe.text.length,
                cure=f"use --text.length {most}",
            )


def _positions(module: nn.Module) -> int:
    """How many tokens a BERT of ours or a model of transformers has positions for; 0 or less: it sets no limit."""
    most = int(getattr(getattr(module, "config", None), "max_position_embeddings", None) or 0)
    tables = (table for name, table in module.named_modules() if name.endswith("position_embeddings"))
    skipped = getattr(next(tables, None), "padding_idx", None) if most else None
    # RoBERTa and its kin begin to count behind the position of padding.
    return most if skipped is None else most - skipped - 1
