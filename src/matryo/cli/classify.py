"""Classify new images or texts, or encoded splits, each row at the smallest dim that is confident enough.

`matryo classify RUN photos/` prints the class of each image, its confidence and the dim that answered. ITEM … may be
images, folders of images, files of texts, or - for one text per line on standard input. Thresholds are read from
--cascade, or fitted on an encoded test split of the run; without either, the full dim answers.

Without ITEM, an encoded split is classified and measured. FOLDER is a run folder, or a folder with one embeddings
folder per split that holds the heads of `matryo encode`. Thresholds are chosen on a random half of the split, or on the
split --fit-on, and measured on other rows. --save records which rows chose them, and --cascade excludes these again.
--expected-dim gives the best accuracy at that mean dim, --max-loss the smallest mean dim that loses at most that much
accuracy; with neither, thresholds are chosen as in the paper.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from matryo.classify import Answers, Cascade, CascadeCurve, CascadeResult, cascade_curve
from matryo.classify.rows import read_rows
from matryo.classify.text import answer_rows, cascade_table, is_answers, write_answers
from matryo.classify.walk import ask_until_sure
from matryo.cli.parts.items import add_items_argument, open_items
from matryo.cli.parts.thresholds import CONFIDENCE, SHARE, Prepared, fit, is_labelled, load, typed
from matryo.embeddings import EmbeddingSet
from matryo.embeddings.place import embedding_sets
from matryo.errors import InputError
from matryo.files import check_may_write
from matryo.results import Row, append_rows, check_may_append, stamp

if TYPE_CHECKING:
    from matryo.inference import TrainedModel

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER, new items, how thresholds are chosen, and where the answers are written."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="run folder, or folder of embeddings")
    add_items_argument(parser, "classify with the model of the run")
    parser.add_argument("--split", metavar="SPLIT", help="encoded split to classify (default: the one besides train)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--fit-on", metavar="SPLIT", help="choose thresholds on this split (default: half of --split)")
    source.add_argument("--cascade", type=Path, metavar="FILE", help="use the thresholds that --save wrote")
    parser.add_argument("--strategy", choices=["greedy", "budget", "risk"], help="how to choose thresholds [greedy]")
    parser.add_argument("--expected-dim", type=float, metavar="X", help="budget: the mean dim to spend")
    parser.add_argument("--max-loss", type=float, metavar="X", help="risk: the largest loss of accuracy [0.005]")
    parser.add_argument("--confidence", type=float, metavar="X", help=f"risk: confidence of that bound [{CONFIDENCE}]")
    parser.add_argument("--holdout", type=float, metavar="X", help=f"share of --split to choose on [{SHARE}]")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of that random choice [0]")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the answers to FILE.csv or FILE.jsonl")
    parser.add_argument("--save", type=Path, metavar="FILE", help="save the thresholds as JSON")
    parser.add_argument("--force", action="store_true", help="overwrite existing files with --out and --save")
    parser.add_argument("--curve", action="store_true", help="accuracy against expected dim, over 30 hold-outs")
    parser.add_argument("--json", metavar="FILE", help="append result rows to FILE; - prints JSON instead of tables")
    parser.add_argument("--device", default="auto", metavar="DEVICE", help="for ITEM: auto, cpu, cuda or cuda:N")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Fit or load the cascade, classify, write the files, print the tables."""
    _check_options(args)
    _check_files(args)
    if args.items:
        _classify_items(args)
        return
    rows = _open(args.folder, args.split or _only(args.folder))
    if args.cascade:
        ready = load(args.cascade, rows)
    else:
        ready = fit(args, rows, _open(args.folder, args.fit_on) if _is_other(args, rows) else None)
    answers = ready.cascade.answers(ready.answered)
    result = ready.cascade.measure(ready.measured) if is_labelled(ready.measured) else None
    curve = _draw(args, ready.cascade, rows) if args.curve else None
    result_rows = _to_rows(args, rows, [part for part in (result, curve) if part is not None])
    if args.json == "-":
        for row in result_rows:
            print(json.dumps(dataclasses.asdict(row), ensure_ascii=False))
    else:
        subject = " / ".join(filter(None, (rows.manifest.dataset, rows.path.name)))
        print(f"{args.folder.name}: {subject}, {len(ready.answered):,} rows; {ready.origin}")
        print(cascade_table(ready.cascade, answers, result, covered=ready.covered))
        if curve is not None:
            print(f"\n{curve}")
    _write_all(args, ready, answers, result_rows)


# ── new items ─────────────────────────────────────────────────────────────────────────────────────────────────


def _classify_items(args: argparse.Namespace) -> None:
    """Encode the items, classify them, and print one line per item."""
    from matryo.inference import load as load_model

    model = load_model(args.folder, device=args.device)
    if model.head is None:
        rule = "only a model that was trained on classes can classify"
        raise InputError(rule, got=args.folder, cure=f"encode instead: matryo encode {args.folder} ITEM … --out DIR")
    new = _embed(model, args)
    ready = _thresholds(args, model, new)
    if ready is None:
        unused = ("save", "strategy", "expected_dim", "max_loss", "confidence", "seed")
        if given := [name for name in unused if getattr(args, name) is not None]:
            rule = "thresholds cannot be chosen: the run has no encoded test split with labels"
            raise InputError(rule, got=typed(args, given), cure=f"matryo encode {args.folder}")
        answers = ask_until_sure(read_rows(new, (new.dim,), new.head), np.empty(0))
        origin = f"no encoded test split to choose thresholds on, so dim {new.dim} answers"
    else:
        answers, origin = ready.cascade.answers(new), ready.origin
    lines = answer_rows(new, answers)
    print(f"{args.folder.name}: {len(new):,} items; {origin}", file=sys.stderr)
    if args.json == "-":
        for line in lines:
            print(json.dumps(dict(zip(("id", "class", "confidence", "dim"), line, strict=True)), ensure_ascii=False))
    else:
        widths = [max(map(len, column)) for column in zip(*((str(line[0]), line[1]) for line in lines), strict=True)]
        for name, label, confidence, dim in lines:
            print(f"{name!s:{widths[0]}}  {label:{widths[1]}}  {confidence:.3f}  dim {dim}")
    _write_all(args, ready, answers, [], new)


def _embed(model: TrainedModel, args: argparse.Namespace) -> EmbeddingSet:
    """Return the items' embeddings, in memory, with the model's head."""
    from matryo.inference.encode import head_arrays

    split = open_items(args.items)
    model.check_reads(split)
    parts = []
    with tqdm(total=len(split), desc="encode", unit="item", delay=2, disable=args.quiet) as bar:
        for vectors, _ in model.embed(split):
            parts.append(vectors)
            bar.update(len(vectors))
    assert model.head is not None   # checked by the caller
    return EmbeddingSet.of(
        np.concatenate(parts), ids=[split.name(i) for i in range(len(split))], head=head_arrays(model.head),
        nesting=model.nesting, classes=model.classes, model=model.description,
    )  # fmt: skip


def _thresholds(args: argparse.Namespace, model: TrainedModel, new: EmbeddingSet) -> Prepared | None:
    """Return the cascade of --cascade, or one fitted on --fit-on or the first encoded test split; None without any."""
    if args.cascade:
        return load(args.cascade, new)
    inside = args.folder / "embeddings"
    if args.fit_on:
        return fit(args, new, _open(args.folder, args.fit_on))
    for name in model.recipe.data.test:
        if (inside / name / "manifest.json").exists() and is_labelled(rows := EmbeddingSet.open(inside / name)):
            return fit(args, new, rows)
    return None


# ── options and files ─────────────────────────────────────────────────────────────────────────────────────────


def _check_options(args: argparse.Namespace) -> None:
    """Raise if one option would silently disable another, or the format of --out is unknown."""
    if args.out is not None and args.out.suffix not in (".csv", ".jsonl"):
        raise InputError("--out must end in .csv or .jsonl", got=args.out.name, cure="choose one of these formats")
    choosing = ("strategy", "expected_dim", "max_loss", "confidence", "holdout", "seed", "curve")
    for option, disabled, rule in (
        ("cascade", choosing, "--cascade has its own thresholds, so none are chosen"),
        ("fit_on", ("holdout", "curve"), "--fit-on chooses thresholds on another split, and holds out no rows"),
        ("items", ("split", "holdout", "curve"), "this option is for encoded splits, and ITEM … replaces these"),
    ):
        given = [name for name in disabled if not any(getattr(args, name) is unset for unset in (None, False))]
        if getattr(args, option) and given:
            raise InputError(rule, got=typed(args, given), cure="drop one")
    if args.items and args.json not in (None, "-"):
        rule = "new items have no labels, so there are no result rows to store"
        raise InputError(rule, got=f"--json {args.json}", cure="write the answers with --out FILE.jsonl")


def _check_files(args: argparse.Namespace) -> None:
    """Raise before the work if a file of the user's would be overwritten."""
    if args.out:
        check_may_write(args.out, force=args.force, is_ours=is_answers)
    if args.save:
        check_may_write(args.save, force=args.force, is_ours=_is_cascade)
    if args.json and args.json != "-":
        check_may_append(Path(args.json))


def _is_cascade(path: Path) -> bool:
    try:
        Cascade.load(path)
    except InputError:
        return False
    return True


def _write_all(
    args: argparse.Namespace, ready: Prepared | None, answers: Answers, rows: list[Row], new: EmbeddingSet | None = None
) -> None:
    """Write the files of --save, --out and --json, and print their names."""
    written = []
    if args.save and ready is not None:
        ready.cascade.save(args.save, ready.fitted_on)
        written += [f"thresholds in {args.save}"]
    answered = ready.answered if new is None and ready is not None else new
    if args.out and answered is not None:
        write_answers(args.out, answered, answers)
        written += [f"{len(answered):,} answers in {args.out}"]
    if args.json and args.json != "-":
        append_rows(Path(args.json), rows)
        written += [f"{len(rows)} row{'s' * (len(rows) != 1)} in {args.json}"]
    if written:
        print(", ".join(written), file=sys.stderr if args.json == "-" else sys.stdout)


# ── encoded splits ────────────────────────────────────────────────────────────────────────────────────────────


def _only(folder: Path) -> str:
    """Return the only split besides train."""
    splits = embedding_sets(folder)
    others = [name for name in splits if name != "train"]
    if len(others) != 1:
        rule = f"--split must say which split of {folder} to classify"
        raise InputError(rule, got=", ".join(splits), cure="name one of these")
    return others[0]


def _is_other(args: argparse.Namespace, rows: EmbeddingSet) -> bool:
    """Whether thresholds are chosen on another split, which --fit-on must then name."""
    if args.fit_on and args.fit_on == rows.path.name:
        cure = "drop it: half of the split is then held out"
        raise InputError("--fit-on must name another split than --split", got=args.fit_on, cure=cure)
    return bool(args.fit_on)


def _open(folder: Path, name: str) -> EmbeddingSet:
    return EmbeddingSet.open(embedding_sets(folder, [name])[name])


def _draw(args: argparse.Namespace, cascade: Cascade, rows: EmbeddingSet) -> CascadeCurve:
    return cascade_curve(
        rows, nesting=cascade.dims_, strategy=cascade.strategy, confidence=cascade.confidence,
        fraction=SHARE if args.holdout is None else args.holdout, seed=cascade.seed,
    )  # fmt: skip


def _to_rows(
    args: argparse.Namespace, rows: EmbeddingSet, results: Sequence[CascadeResult | CascadeCurve]
) -> list[Row]:
    subject = " ".join(filter(None, (args.folder.name, rows.manifest.dataset, rows.path.name)))
    model: Any = rows.manifest.model
    seed = None if isinstance(model, str) else model.get("seed")   # the run's; the hold-out's is in the command
    return [stamp(part.kind, subject, part.to_figures(), seed=seed) for part in results]
