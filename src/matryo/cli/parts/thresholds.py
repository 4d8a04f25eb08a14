"""The thresholds that ``classify`` uses: read from a file, or fitted on rows that are not classified."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from matryo.classify import Cascade
from matryo.classify.thresholds.holdout import Holdout
from matryo.embeddings import EmbeddingSet
from matryo.embeddings.place import embedding_sets
from matryo.errors import InputError
from matryo.training.run.paths import RunFolder

SHARE = 0.5


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


def prepare(args: argparse.Namespace, rows: EmbeddingSet) -> Prepared:
    """Return the cascade of --cascade, or one fitted on --fit-on, on half of ``rows``, or for items on a test split."""
    if args.cascade:
        return _load(args.cascade, rows)
    if args.fit_on:
        if args.fit_on == rows.path.name and not args.items:
            cure = "drop it: half of the split is then held out"
            raise InputError("--fit-on must name another split than --split", got=args.fit_on, cure=cure)
        return _fit(args, rows, open_split(args.folder, args.fit_on))
    if not args.items:
        return _fit(args, rows, None)
    run = RunFolder(args.folder)
    for folder in (run.embeddings / name for name in run.recipe.data.test):
        if (folder / "manifest.json").exists() and is_labelled(encoded := EmbeddingSet.open(folder)):
            return _fit(args, rows, encoded)
    if idle := given(args, "save", "strategy", "expected_dim", "max_loss", "confidence", "seed"):
        rule = "thresholds cannot be chosen: the run has no encoded test split with labels"
        raise InputError(rule, got=typed(idle), cure=f"matryo encode {args.folder}")
    cascade = Cascade([rows.dim])
    cascade.dims_, cascade.thresholds_, cascade.classes_ = (rows.dim,), np.empty(0), np.array(rows.classes)
    origin = f"no encoded test split to choose thresholds on, so dim {rows.dim} answers"
    return Prepared(cascade, None, rows, None, False, origin)


def open_split(folder: Path, name: str | None) -> EmbeddingSet:
    """Return the embeddings of a split; without a name, of the only split besides train."""
    splits = embedding_sets(folder, [name] if name else ())
    others = [name] if name else [split for split in splits if split != "train"]
    if len(others) != 1:
        rule = f"--split must say which split of {folder} to classify"
        raise InputError(rule, got=", ".join(splits), cure="name one of these")
    return EmbeddingSet.open(splits[others[0]])


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return those of the options that the user gave, with their values."""
    values = {name: getattr(args, name) for name in names}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def typed(options: dict[str, Any]) -> str:
    """Return options as the user typed them."""
    return " ".join(f"--{name.replace('_', '-')}{'' if v is True else f' {v}'}" for name, v in options.items())


def is_labelled(rows: EmbeddingSet | None) -> bool:
    """Whether any of the rows has a label."""
    return rows is not None and rows.labels is not None and bool((rows.labels >= 0).any())


def _load(path: Path, rows: EmbeddingSet) -> Prepared:
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


def _fit(args: argparse.Namespace, rows: EmbeddingSet, other: EmbeddingSet | None) -> Prepared:
    """Fit thresholds on the ``other`` split, or on a part of ``rows``; then only the rest of them is classified."""
    cascade = Cascade(**_strategy(args))
    if other is not None:
        holdout, fitted, rest = Holdout.of(other, 1.0, cascade.seed), other, rows
        source = f"rows of {other.path.name}"
    else:
        holdout, source = _hold_out(rows, SHARE if args.holdout is None else args.holdout, cascade.seed), "others"
        held = holdout.rows(rows)
        fitted, rest = rows.select(held), rows.select(~held)
    cascade.fit(fitted)
    _check_fits(cascade, rest, fitted.path.name)
    origin = f"{cascade.strategy} thresholds chosen on {len(fitted):,} {source}"
    return Prepared(cascade, holdout, rest, rest, other is None, origin)


def _strategy(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of Cascade; --expected-dim and --max-loss imply their strategies."""
    options = given(args, "strategy", "expected_dim", "max_loss")
    implied = {"strategy": args.strategy, "expected_dim": "budget", "max_loss": "risk"}
    strategies = {implied[name] for name in options}
    if len(strategies) > 1:
        rule = "--expected-dim requires the strategy budget, and --max-loss the strategy risk"
        raise InputError(rule, got=typed(options), cure="drop one")
    strategy = next(iter(strategies), "greedy")
    if args.confidence is not None and strategy != "risk":
        rule = "--confidence requires the strategy risk, the only one that certifies a loss"
        got = f"--confidence {args.confidence} with {strategy}"
        raise InputError(rule, got=got, cure="add --max-loss X, or drop it")
    return {**options, "strategy": strategy, **given(args, "confidence", "seed")}


def _hold_out(rows: EmbeddingSet, share: float, seed: int) -> Holdout:
    labelled = 0 if rows.labels is None else int((rows.labels >= 0).sum())
    if not labelled:
        cure = "use saved thresholds (--cascade FILE), or choose them on another split (--fit-on SPLIT)"
        raise InputError("the split must have labels to choose thresholds on", got=rows.path, cure=cure)
    if not 0 < share < 1 or not 1 <= round(share * labelled) < labelled:   # also for a share that is not a number
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
