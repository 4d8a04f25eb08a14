"""The thresholds that ``classify`` uses: read from a file, or fitted on rows that are not classified."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matryo.classify import Cascade
from matryo.classify.thresholds.holdout import Holdout
from matryo.embeddings import EmbeddingSet
from matryo.errors import InputError

__all__ = ["CONFIDENCE", "SHARE", "Prepared", "fit", "is_labelled", "load", "typed"]

SHARE, CONFIDENCE = 0.5, 0.95


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A cascade with the rows it classifies and the rows it may be measured on."""

    cascade: Cascade
    fitted_on: Holdout | None
    answered: EmbeddingSet
    measured: EmbeddingSet | None
    """Rows that were not used to choose the thresholds; None if these cannot be identified."""
    covered: bool
    """Whether a certificate holds for these rows: it was fitted on another part of their split."""
    origin: str
    """Where the thresholds come from, and which rows are therefore not measured."""


def load(path: Path, rows: EmbeddingSet) -> Prepared:
    """Read thresholds from a file. All rows are classified; rows that chose the thresholds are not measured."""
    cascade, holdout, origin = Cascade.load(path), Holdout.load(path), f"thresholds of {path.name}"
    _check_fits(cascade, rows, path)
    if holdout is None or not holdout.is_of(rows) or not is_labelled(rows):
        return Prepared(cascade, holdout, rows, rows, False, origin)
    if not holdout.can_tell(rows):
        origin += ", chosen on a split of this name with other labels: none of these rows is measured"
        return Prepared(cascade, holdout, rows, None, False, origin)
    held = holdout.rows(rows)
    origin += f", chosen on {held.sum():,} of these, which are not measured"
    return Prepared(cascade, holdout, rows, rows.select(~held), True, origin)


def fit(args: argparse.Namespace, rows: EmbeddingSet, other: EmbeddingSet | None) -> Prepared:
    """Fit thresholds on the ``other`` split, or on a part of ``rows``; then only the rest of them is classified."""
    seed = args.seed or 0
    cascade = Cascade(**{"confidence": CONFIDENCE, "seed": seed, **_strategy(args)})
    if other is not None:
        holdout, fitted, rest, source = Holdout.of(other, 1.0, seed), other, rows, f"rows of {other.path.name}"
    else:
        holdout, source = _hold_out(rows, SHARE if args.holdout is None else args.holdout, seed), "others"
        held = holdout.rows(rows)
        fitted, rest = rows.select(held), rows.select(~held)
    cascade.fit(fitted)
    _check_fits(cascade, rest, fitted.path.name)
    origin = f"{cascade.strategy} thresholds chosen on {len(fitted):,} {source}"
    return Prepared(cascade, holdout, rest, rest, other is None, origin)


def typed(args: argparse.Namespace, names: Sequence[str]) -> str:
    """Return options as the user typed them."""
    values = {name: getattr(args, name) for name in names}
    return " ".join(f"--{name.replace('_', '-')}{'' if v is True else f' {v}'}" for name, v in values.items())


def is_labelled(rows: EmbeddingSet | None) -> bool:
    """Whether any of the rows has a label."""
    return rows is not None and rows.labels is not None and bool((rows.labels >= 0).any())


def _strategy(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of Cascade; --expected-dim and --max-loss imply their strategies."""
    given = {name: getattr(args, name) for name in ("strategy", "expected_dim", "max_loss")}
    given = {name: value for name, value in given.items() if value is not None}
    implied = [name for name, key in (("budget", "expected_dim"), ("risk", "max_loss")) if key in given]
    if len({*implied, given.get("strategy", "")} - {""}) > 1:
        rule = "--expected-dim requires the strategy budget, and --max-loss the strategy risk"
        raise InputError(rule, got=typed(args, list(given)), cure="drop one")
    chosen = {"strategy": "greedy", **given, **({"strategy": implied[0]} if implied else {})}
    if args.confidence is not None and chosen["strategy"] != "risk":
        rule = "--confidence requires the strategy risk, the only one that certifies a loss"
        got = f"{typed(args, ['confidence'])} with {chosen['strategy']}"
        raise InputError(rule, got=got, cure="add --max-loss X, or drop it")
    return chosen if args.confidence is None else {**chosen, "confidence": args.confidence}


def _hold_out(rows: EmbeddingSet, share: float, seed: int) -> Holdout:
    if rows.labels is None or not is_labelled(rows):
        cure = "use saved thresholds (--cascade FILE), or choose them on another split (--fit-on SPLIT)"
        raise InputError("the split must have labels to choose thresholds on", got=rows.path, cure=cure)
    labelled = int((rows.labels >= 0).sum())
    if not 1 <= round(share * labelled) < labelled:
        cure = "choose a --holdout between 0 and 1, or encode more rows"
        raise InputError("--holdout must leave rows on both sides", got=f"{share:g} of {labelled} rows", cure=cure)
    return Holdout.of(rows, share, seed)


def _check_fits(cascade: Cascade, rows: EmbeddingSet, source: object) -> None:
    """Raise if the thresholds were chosen for another model than the one that made these rows."""
    head = rows.head
    if head is None:
        return   # computing logits raises the better error
    dims = head.dims if head.kind == "separate" else range(1, head.dim + 1)
    if not set(cascade.dims_) <= set(dims) or head.classes != len(cascade.classes_):
        raise InputError(
            f"the thresholds of {source} must fit this model, which has {head.classes} classes and the dims "
            + ", ".join(map(str, head.dims)),
            got=f"{len(cascade.classes_)} classes, dims {', '.join(map(str, cascade.dims_))}",
            cure="use thresholds that were chosen for this model",
        )
