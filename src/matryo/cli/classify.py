"""Classify each row at the smallest dim that is sure enough, and say what that saves.

FOLDER is a run folder (its embeddings/ are read) or a folder of embeddings folders, one a split, with the heads that
`matryo encode` stores. Thresholds are chosen on a random half of the split, or on the split that --fit-on names, and
never tested on rows they were chosen on; --save notes which these are, and --cascade leaves them out again.
--expected-dim asks for the best accuracy at that dim, --max-loss for the smallest dim that loses at most so much
accuracy; with neither, thresholds are chosen as the paper does.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.classify import Answers, Cascade, CascadeCurve, CascadeResult
    from matryo.classify.thresholds.holdout import Holdout
    from matryo.embeddings import EmbeddingSet
    from matryo.results import Row

__all__ = ["add_arguments", "run"]

_SHARE, _CONFIDENCE = 0.5, 0.95


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER, how thresholds are chosen, and where the answers go."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="run folder, or folder of embeddings")
    parser.add_argument("--split", metavar="SPLIT", help="the split to classify (default: the one besides train)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--fit-on", metavar="SPLIT", help="choose thresholds on this split (default: half of --split)")
    source.add_argument("--cascade", type=Path, metavar="FILE", help="use the thresholds that --save wrote")
    parser.add_argument(
        "--strategy", choices=["greedy", "budget", "risk"], help="how thresholds are chosen (default: as asked below)"
    )
    parser.add_argument("--expected-dim", type=float, metavar="X", help="budget: the mean dim to keep to")
    parser.add_argument("--max-loss", type=float, metavar="X", help="risk: the accuracy to lose at most [0.005]")
    parser.add_argument("--confidence", type=float, metavar="X", help=f"risk: how surely [{_CONFIDENCE}]")
    parser.add_argument("--holdout", type=float, metavar="X", help=f"share of --split to choose on [{_SHARE}]")
    parser.add_argument("--seed", type=int, metavar="N", help="which rows these are [0]")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the answers to FILE.csv or FILE.jsonl")
    parser.add_argument("--save", type=Path, metavar="FILE", help="save the thresholds as JSON")
    parser.add_argument("--force", action="store_true", help="overwrite existing files with --out and --save")
    parser.add_argument("--curve", action="store_true", help="accuracy against expected dim, over 30 hold-outs")
    parser.add_argument("--json", metavar="FILE", help="append the result rows to FILE; - prints them and no table")


@dataclasses.dataclass(frozen=True, eq=False)
class _Prepared:
    """A cascade, and what it may do on which rows."""

    cascade: Cascade
    fitted_on: Holdout | None
    answered: EmbeddingSet
    measured: EmbeddingSet | None
    """Rows that had no say in the thresholds, where that can be told."""
    covered: bool
    """Whether a certificate speaks of these rows: it was fitted on a part of their split."""
    origin: str
    """Where the thresholds come from, and what is left out for that."""


def run(args: argparse.Namespace) -> None:
    """Fit or load the cascade, classify, write what was asked for, print the tables."""
    from matryo.classify.text import cascade_table, curve_table
    from matryo.embeddings.place import embedding_sets

    _check_options(args)
    splits = embedding_sets(args.folder)
    asked = _open(args.folder, args.split or _only(args.folder, splits))
    ready = _load(args.cascade, asked) if args.cascade else _fit(args, asked)
    answers = ready.cascade.answers(ready.answered)
    result = ready.cascade.measure(ready.measured) if _is_labelled(ready.measured) else None
    curve = _draw(args, ready.cascade, asked) if args.curve else None
    rows = _to_rows(args, asked, [one for one in (result, curve) if one is not None])
    wrote = _write_all(args, ready, answers, rows)
    if args.json == "-":
        for row in rows:
            print(json.dumps(dataclasses.asdict(row), ensure_ascii=False))
    else:
        where = " / ".join(filter(None, (asked.manifest.dataset, asked.path.name)))
        print(f"{args.folder.name}: {where}, {len(ready.answered):,} rows; {ready.origin}")
        print(cascade_table(ready.cascade, answers, result, covered=ready.covered))
        if curve is not None:
            print(f"\n{curve_table(curve)}")
    if wrote:
        print(", ".join(wrote), file=sys.stderr if args.json == "-" else sys.stdout)


def _check_options(args: argparse.Namespace) -> None:
    """Raise where one option would silently make another idle, or nobody knows how to write a file."""
    from matryo.errors import InputError

    if args.out is not None and args.out.suffix not in (".csv", ".jsonl"):
        raise InputError("--out must end in .csv or .jsonl", got=args.out.name, cure="that says how it is written")
    _check_files(args)
    choosing = ("strategy", "expected_dim", "max_loss", "confidence", "holdout", "seed", "curve")
    for option, idle, rule in (
        ("cascade", choosing, "--cascade brings its thresholds with it, and none are chosen"),
        ("fit_on", ("holdout", "curve"), "--fit-on chooses thresholds on another split, and holds out no rows"),
    ):
        given = [name for name in idle if not any(getattr(args, name) is unset for unset in (None, False))]
        if getattr(args, option) and given:
            raise InputError(rule, got=_typed(args, given), cure="drop one")


def _check_files(args: argparse.Namespace) -> None:
    """Raise before the work where a file of somebody else's would be overwritten."""
    from matryo.classify.text import is_answers
    from matryo.files import check_may_write
    from matryo.results import check_may_append

    if args.out:
        check_may_write(args.out, force=args.force, is_ours=is_answers)
    if args.save:
        check_may_write(args.save, force=args.force, is_ours=_is_cascade)
    if args.json and args.json != "-":
        check_may_append(Path(args.json))


def _is_cascade(path: Path) -> bool:
    from matryo.classify import Cascade
    from matryo.errors import InputError

    try:
        Cascade.load(path)
    except InputError:
        return False
    return True


def _typed(args: argparse.Namespace, names: Sequence[str]) -> str:
    """Options as they were typed."""
    values = {name: getattr(args, name) for name in names}
    return " ".join(f"--{name.replace('_', '-')}{'' if v is True else f' {v}'}" for name, v in values.items())


def _load(path: Path, asked: EmbeddingSet) -> _Prepared:
    """Thresholds of a file; of the rows they were chosen on none is measured, all are answered."""
    from matryo.classify import Cascade
    from matryo.classify.thresholds.holdout import Holdout

    cascade, holdout, origin = Cascade.load(path), Holdout.load(path), f"thresholds of {path.name}"
    _check_fits(cascade, asked, path)
    if holdout is None or not holdout.is_of(asked) or not _is_labelled(asked):
        return _Prepared(cascade, holdout, asked, asked, False, origin)
    if not holdout.can_tell(asked):
        origin += ", chosen on a split of this name with other labels: none of these rows is measured"
        return _Prepared(cascade, holdout, asked, None, False, origin)
    held = holdout.rows(asked)
    origin += f", chosen on {held.sum():,} of these, which are not measured"
    return _Prepared(cascade, holdout, asked, asked.select(~held), True, origin)


def _fit(args: argparse.Namespace, asked: EmbeddingSet) -> _Prepared:
    """Thresholds chosen on another split, or on a part of this one: then only the other rows are answered."""
    from matryo.classify import Cascade
    from matryo.classify.thresholds.holdout import Holdout
    from matryo.errors import InputError

    seed = args.seed or 0
    cascade = Cascade(**{"confidence": _CONFIDENCE, "seed": seed, **_strategy(args)})
    if args.fit_on:
        if args.fit_on == asked.path.name:
            cure = "leave it out: half of the split is then held out"
            raise InputError("--fit-on must name another split than --split", got=args.fit_on, cure=cure)
        rows, rest, others = _open(args.folder, args.fit_on), asked, f"rows of {args.fit_on}"
        holdout = Holdout.of(rows, 1.0, seed)
    else:
        holdout, others = _hold_out(asked, _SHARE if args.holdout is None else args.holdout, seed), "others"
        held = holdout.rows(asked)
        rows, rest = asked.select(held), asked.select(~held)
    cascade.fit(rows)
    _check_fits(cascade, rest, args.fit_on)
    origin = f"{cascade.strategy} thresholds chosen on {len(rows):,} {others}"
    return _Prepared(cascade, holdout, rest, rest, not args.fit_on, origin)


def _strategy(args: argparse.Namespace) -> dict[str, Any]:
    """What was asked for: naming a dim or a loss names the strategy too."""
    from matryo.errors import InputError

    given = {name: getattr(args, name) for name in ("strategy", "expected_dim", "max_loss")}
    given = {name: value for name, value in given.items() if value is not None}
    implied = [name for name, key in (("budget", "expected_dim"), ("risk", "max_loss")) if key in given]
    if len({*implied, given.get("strategy", "")} - {""}) > 1:
        raise InputError(
            "--expected-dim goes with the strategy budget, --max-loss with risk, and neither with another",
            got=_typed(args, list(given)),
            cure="drop one",
        )
    found = {"strategy": "greedy", **given, **({"strategy": implied[0]} if implied else {})}
    if args.confidence is not None and found["strategy"] != "risk":
        raise InputError(
            "--confidence goes with the strategy risk, which alone promises anything",
            got=f"{_typed(args, ['confidence'])} with {found['strategy']}",
            cure="add --max-loss, or drop it",
        )
    return found if args.confidence is None else {**found, "confidence": args.confidence}


def _hold_out(asked: EmbeddingSet, share: float, seed: int) -> Holdout:
    from matryo.classify.thresholds.holdout import Holdout
    from matryo.errors import InputError

    if asked.labels is None or not _is_labelled(asked):
        raise InputError(
            "the split must have labels to choose thresholds on",
            got=asked.path,
            cure="use thresholds you have (--cascade), or choose them on another split (--fit-on)",
        )
    labelled = int((asked.labels >= 0).sum())
    if not 1 <= round(share * labelled) < labelled:
        raise InputError(
            "the hold-out must have rows, and leave some to classify",
            got=f"{share:g} of {labelled} rows",
            cure="choose a --holdout between 0 and 1, or encode more rows",
        )
    return Holdout.of(asked, share, seed)


def _is_labelled(rows: EmbeddingSet | None) -> bool:
    return rows is not None and rows.labels is not None and bool((rows.labels >= 0).any())


def _check_fits(cascade: Cascade, asked: EmbeddingSet, source: object) -> None:
    """Raise where thresholds were chosen for another model than made these rows."""
    from matryo.errors import InputError

    head = asked.head
    if head is None:
        return   # whoever asks for logits says so
    there = head.dims if head.kind == "separate" else range(1, head.dim + 1)
    if not set(cascade.dims_) <= set(there) or head.classes != len(cascade.classes_):
        raise InputError(
            f"the thresholds of {source} must fit this model, which tells {head.classes} classes apart at the dims "
            + ", ".join(map(str, head.dims)),
            got=f"{len(cascade.classes_)} classes, dims {', '.join(map(str, cascade.dims_))}",
            cure="use thresholds that were chosen for this model",
        )


def _only(folder: Path, splits: dict[str, Path]) -> str:
    from matryo.errors import InputError

    others = [name for name in splits if name != "train"]
    if len(others) != 1:
        raise InputError(
            f"--split must say what to classify in {folder}", got=", ".join(splits), cure="name one of these"
        )
    return others[0]


def _open(folder: Path, name: str) -> EmbeddingSet:
    from matryo.embeddings import EmbeddingSet
    from matryo.embeddings.place import embedding_sets

    return EmbeddingSet.open(embedding_sets(folder, [name])[name])


def _draw(args: argparse.Namespace, cascade: Cascade, asked: EmbeddingSet) -> CascadeCurve:
    from matryo.classify import cascade_curve

    return cascade_curve(
        asked, nesting=cascade.dims_, strategy=cascade.strategy, confidence=cascade.confidence,
        fraction=_SHARE if args.holdout is None else args.holdout, seed=cascade.seed,
    )  # fmt: skip


def _to_rows(
    args: argparse.Namespace, asked: EmbeddingSet, results: Sequence[CascadeResult | CascadeCurve]
) -> list[Row]:
    from matryo.results import stamp

    subject = " ".join(filter(None, (args.folder.name, asked.manifest.dataset, asked.path.name)))
    model = asked.manifest.model
    seed = None if isinstance(model, str) else model.get("seed")   # of the run; that of the hold-out is in the command
    return [stamp(one.kind, subject, one.to_figures(), seed=seed) for one in results]


def _write_all(args: argparse.Namespace, ready: _Prepared, answers: Answers, rows: list[Row]) -> list[str]:
    """Write the files that were asked for, and say what is in which."""
    from matryo.classify.text import write_answers
    from matryo.results import append_rows

    wrote = []
    if args.save:
        ready.cascade.save(args.save, ready.fitted_on)
        wrote += [f"thresholds in {args.save}"]
    if args.out:
        write_answers(args.out, ready.answered, answers)
        wrote += [f"{len(ready.answered):,} answers in {args.out}"]
    if args.json and args.json != "-":
        append_rows(Path(args.json), rows)
        wrote += [f"{len(rows)} row{'s' * (len(rows) != 1)} in {args.json}"]
    return wrote
