"""Checks that a recipe's objective and encoders fit its data, before anything is built or trained."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo.data.dataset import PairSplit, TextSplit
from matryo.encoders import encoder_names
from matryo.encoders.adapters.open_clip import OpenClip
from matryo.encoders.bert.model import BERTS
from matryo.errors import RecipeError
from matryo.training.recipe.checks import check_rules
from matryo.training.recipe.load import RECIPE, load_recipe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from matryo.training.recipe.fields import Recipe

_ROUNDING = 0.002   # largest difference of means and deviations (of 0…1 images) that are equal but for rounding


def noun(split: Any, objective: str = "") -> str:
    """The plural noun for the items of a split (images, texts, pairs), or for those of an ``objective`` on it."""
    if objective == "masked":
        return "windows"
    if objective == "pairs" or isinstance(split, PairSplit):
        return "pairs"
    return "texts" if isinstance(split, TextSplit) else "images"


def sides_of(split: Any) -> tuple[Any, ...]:
    """The queries and candidates of pairs, or ``split`` itself."""
    return (split.queries, split.candidates) if isinstance(split, PairSplit) else (split,)


def check_objective(recipe: Recipe, split: Any) -> None:
    """Raise unless ``split`` has the pairs, words or labels that the objective needs."""
    kind, what, count = recipe.objective.kind, noun(split), len(split)
    unlabelled = what != "pairs" and (split.labels < 0).all()
    alone = recipe.loop.batch == 1 and not (what == "pairs" and split.negatives.shape[1])
    other = "choose another --objective.kind or --data.source"
    unsupervised = "masked (with --head.kind tied) or pairs" if what == "texts" else "pairs"
    check_rules([
        (what != "pairs" or kind not in ("classify", "masked"), f"objective.kind {kind} needs items, not pairs",
         f"{count} {what}", other),
        (kind != "pairs" or not unlabelled, "objective.kind pairs needs pairs, or labels to form pairs",
         f"{count} {what} without labels", other),
        (kind not in ("pairs", "distil") or not alone,
         f"objective.kind {kind} compares the items of a batch with each other", "loop.batch 1",
         "use --loop.batch 2 or more"),
        (kind != "masked" or what == "texts", "objective.kind masked needs texts", what, "use --data.source corpus"),
        (kind != "classify" or not unlabelled or not count, "objective.kind classify needs labels",
         f"a training split of {count} {what} without labels",
         f"choose a --data.source with labels, or --objective.kind {unsupervised}"),
    ])  # fmt: skip


def check_encoder(recipe: Recipe, split: Any) -> None:
    """Raise unless the recipe has the right encoder for each kind of item in ``split``, and no other."""
    kinds = {noun(side) for side in sides_of(split)}
    name, text = recipe.encoder.name, recipe.text.encoder
    first, both = next(iter(kinds)), len(kinds) == 2
    given = name if _reads(name) == "texts" else "bert-small"
    check_rules([
        (both or not text, "text.encoder is only for pairs of images and texts",
         f"{text}, and a split of {first} only",
         'leave it empty: --text.encoder ""' + (f" --encoder.name {text}" if first == "texts" else "")),
        (bool(text) or not both or name.startswith("open_clip:"), "pairs of images and texts need an encoder of each",
         f"encoder.name {name} and no text.encoder",
         f"use --text.encoder {given}" + (" --encoder.name resnet18" if given == name else "")),
    ])  # fmt: skip
    _check_reads("encoder.name", name, "images" if text else first)
    if text:
        _check_reads("text.encoder", text, "texts")
    elif recipe.objective.teacher and not both:
        _check_teacher(recipe.objective.teacher, first)


def _check_reads(field: str, name: str, wanted: str) -> None:
    example = "bert-small" if wanted == "texts" else "resnet18"
    check_rules([(_reads(name) in ("", wanted), f"{field} must read {wanted}", f"{name}, which reads {_reads(name)}",
                  f"use for example --{field} {example}")])  # fmt: skip


def _check_teacher(name: str, wanted: str) -> None:
    stored = Path(name) / RECIPE
    theirs = load_recipe(stored) if stored.is_file() else None
    reads = _reads(name) if theirs is None else "" if theirs.text.encoder else _reads(theirs.encoder.name)
    check_rules([(reads in ("", wanted), "the teacher must read the same inputs as the student",
                  f"{name}, which reads {reads}, and {wanted}", "choose another --objective.teacher")])  # fmt: skip


def _reads(name: str) -> str:
    """The inputs of the encoder ``name``, images or texts; empty if that is unknown, or both."""
    library = name.partition(":")[0] if ":" in name else ""
    if name in BERTS or library in ("bert", "sentence-transformers"):
        return "texts"
    return "images" if library == "timm" or name in encoder_names() else ""


def check_normalisation(recipe: Recipe, split: Any, encoder: nn.Module, name: str) -> None:
    """Raise if the pretrained ``encoder`` expects another mean/std normalisation of images than the recipe's."""
    if all(noun(side) != "images" for side in sides_of(split)):
        return
    ours = (recipe.data.mean, recipe.data.std)
    for module in encoder.modules():
        theirs = getattr(module, "colours", None)
        if theirs and any(abs(a - b) > _ROUNDING for a, b in zip(chain(*ours), chain(*theirs), strict=True)):
            raise RecipeError(
                f"data.mean and data.std must be those that {name} was trained with",
                got=" and ".join(map(_listed, ours)),
                cure=f"use --data.mean {_listed(theirs[0])} --data.std {_listed(theirs[1])}",
            )


def _listed(values: Iterable[float]) -> str:
    return ",".join(f"{value:g}" for value in values)


def check_length(recipe: Recipe, encoder: nn.Module, name: str) -> None:
    """Raise if text.length exceeds the positions of an encoder: the first long text would stop the training."""
    for module in encoder.modules():
        most = int(module.model.context_length) if isinstance(module, OpenClip) else _positions(module)
        if 0 < most < recipe.text.length:
            raise RecipeError(
                f"text.length must not exceed the {most} positions of {name}",
                got=recipe.text.length,
                cure=f"use --text.length {most}",
            )


def _positions(module: nn.Module) -> int:
    """The number of positions of a BERT or a model of transformers; 0 or less means no limit."""
    most = int(getattr(getattr(module, "config", None), "max_position_embeddings", None) or 0)
    tables = (table for name, table in module.named_modules() if name.endswith("position_embeddings"))
    skipped = getattr(next(tables, None), "padding_idx", None) if most else None
    # RoBERTa-like models count positions from padding_idx + 1.
    return most if skipped is None else most - skipped - 1
