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
from pathlib import Path

import numpy as np

from matryo.classify import Answers, Cascade, cascade_curve
from matryo.classify.text import answer_rows, cascade_table, is_answers, write_answers
from matryo.cli.parts.items import add_items_argument, open_items
from matryo.cli.parts.thresholds import SHARE, Prepared, given, is_labelled, open_split, prepare, typed
from matryo.embeddings import EmbeddingSet
from matryo.errors import InputError
from matryo.files import check_may_write
from matryo.progress import tqdm
from matryo.results import Row, append_rows, check_may_append, stamp


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
    parser.add_argument("--confidence", type=float, metavar="X", help="risk: confidence of that bound [0.95]")
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
    rows = _embed_items(args) if args.items else open_split(args.folder, args.split)
    ready = prepare(args, rows)
    answers = ready.cascade.answers(ready.answered)
    if args.items:
        result_rows: list[Row] = []
        _print_items(args, ready, answers)
    else:
        result_rows = _measure(args, rows, ready, answers)
    _write_all(args, ready, answers, result_rows)


def _measure(args: argparse.Namespace, rows: EmbeddingSet, ready: Prepared, answers: Answers) -> list[Row]:
    """Measure an encoded split, print the tables, and return the result rows."""
    cascade, curve = ready.cascade, None
    result = cascade.measure(ready.measured) if is_labelled(ready.measured) else None
    if args.curve:
        curve = cascade_curve(
            rows, nesting=cascade.dims_, strategy=cascade.strategy, confidence=cascade.confidence,
            fraction=SHARE if args.holdout is None else args.holdout, seed=cascade.seed,
        )  # fmt: skip
    where = [name for name in (rows.manifest.dataset, rows.path.name) if name]
    seed = rows.manifest.seed   # of the run; the seed of the hold-out is in the command
    subject = " ".join([args.folder.name, *where])
    results = [stamp(part.kind, subject, part.to_figures(), seed=seed) for part in (result, curve) if part is not None]
    if args.json == "-":
        for row in results:
            print(json.dumps(dataclasses.asdict(row), ensure_ascii=False))
        return results
    print(f"{args.folder.name}: {' / '.join(where)}, {len(ready.answered):,} rows; {ready.origin}")
    print(cascade_table(cascade, answers, result, covered=ready.covered))
    if curve is not None:
        print(f"\n{curve}")
    return results


def _embed_items(args: argparse.Namespace) -> EmbeddingSet:
    """Return the embeddings of the items, in memory, with the head of the run's model."""
    from matryo.inference import load
    from matryo.inference.encode import head_arrays

    model = load(args.folder, device=args.device)
    if model.head is None:
        rule = "only a model that was trained on classes can classify"
        raise InputError(rule, got=args.folder, cure=f"encode instead: matryo encode {args.folder} ITEM … --out DIR")
    split = open_items(args.items)
    model.check_reads(split)
    parts = []
    with tqdm(total=len(split), desc="encode", unit="item", delay=2, disable=args.quiet) as bar:
        for vectors, _ in model.embed(split):
            parts.append(vectors)
            bar.update(len(vectors))
    return EmbeddingSet.of(
        np.concatenate(parts), ids=[split.name(i) for i in range(len(split))], head=head_arrays(model.head),
        nesting=model.nesting, classes=model.classes, model=model.description,
    )  # fmt: skip


def _print_items(args: argparse.Namespace, ready: Prepared, answers: Answers) -> None:
    """Print one line per item: its name, class, confidence and dim."""
    lines = answer_rows(ready.answered, answers)
    print(f"{args.folder.name}: {len(lines):,} items; {ready.origin}", file=sys.stderr)
    wide, wider = (max(len(str(line[column])) for line in lines) for column in (0, 1))
    for name, label, confidence, dim in lines:
        if args.json == "-":
            answer = {"id": name, "class": label, "confidence": confidence, "dim": dim}
            print(json.dumps(answer, ensure_ascii=False))
        else:
            print(f"{name!s:{wide}}  {label:{wider}}  {confidence:.3f}  dim {dim}")


def _check_options(args: argparse.Namespace) -> None:
    """Raise before the work if an option would silently disable another, or a file of the user's be overwritten."""
    if args.out is not None and args.out.suffix not in (".csv", ".jsonl"):
        raise InputError("--out must end in .csv or .jsonl", got=args.out.name, cure="choose one of these formats")
    choosing = ("strategy", "expected_dim", "max_loss", "confidence", "holdout", "seed", "curve")
    for option, disabled, rule in (
        ("cascade", choosing, "--cascade has its own thresholds, so none are chosen"),
        ("fit_on", ("holdout", "curve"), "--fit-on chooses thresholds on another split, and holds out no rows"),
        ("items", ("split", "holdout", "curve"), "this option is for encoded splits, and ITEM … replaces these"),
    ):
        if getattr(args, option) and (idle := given(args, *disabled)):
            raise InputError(rule, got=typed(idle), cure="drop one")
    if args.seed is not None and args.seed < 0:
        raise InputError("--seed must be 0 or more", got=args.seed, cure="use a small integer")
    if args.items and args.json not in (None, "-"):
        rule = "new items have no labels, so there are no result rows to store"
        raise InputError(rule, got=f"--json {args.json}", cure="write the answers with --out FILE.jsonl")
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


def _write_all(args: argparse.Namespace, ready: Prepared, answers: Answers, rows: list[Row]) -> None:
    """Write the files of --save, --out and --json, and print their names."""
    written = []
    if args.save:
        ready.cascade.save(args.save, ready.fitted_on)
        written += [f"thresholds in {args.save}"]
    if args.out:
        write_answers(args.out, ready.answered, answers)
        written += [f"{len(ready.answered):,} answers in {args.out}"]
    if args.json and args.json != "-":
        append_rows(Path(args.json), rows)
        written += [f"{len(rows)} row{'s' * (len(rows) != 1)} in {args.json}"]
    if written:
        print(", ".join(written), file=sys.stderr if args.json == "-" else sys.stdout)
