"""Measure embeddings at every dim: heads, 1-NN, mAP, precision and recall at k, with the cost of a query.

FOLDER is a run folder (its embeddings/ are read) or a folder of embeddings folders, one a split. The split
named by --database is searched; all others ask. Several FOLDERs stand side by side at the same dims, and baselines
beside them: what the same vectors are worth at each dim without training for it. --protocols adds what else the
embeddings allow: linear probe, few-shot, superclasses, robustness, and more; their figures go to --json and into
`matryo report`, those of zero-shot also into a table.

Where queries and candidates are pairs (questions and documents, images and captions), FOLDER holds queries/,
candidates/ and relevance.tsv, as `matryo encode` writes them, and what is measured is how well each side finds the
other; with --protocols sts, how well cosines follow the grades of pairs. Such a FOLDER may also be the queries alone,
with --candidates and --relevance beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo.cli.subjects import add_subject_arguments, open_subjects, parse_dims, subjects_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.evaluation import Subject
    from matryo.results import Row

__all__ = [
    "Measured",
    "add_arguments",
    "add_subject_arguments",
    "measure_folders",
    "open_subjects",
    "parse_dims",
    "run",
    "subjects_of",
    "to_rows",
]

_USUAL = ["head", "1-NN", "mAP@10"]
_WITH_TABLE = ("evaluate", "pairs", "sts", "zero-shot")


@dataclasses.dataclass(frozen=True)
class Measured:
    """One result of one model."""

    seed: int | None
    result: Any
    """An Evaluation, or the result of another protocol."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER …, which splits and dims, and where the figures go."""
    add_subject_arguments(parser)
    parser.add_argument(
        "--protocols", metavar="NAME,…",
        help="evaluate, probe, few-shot, stream, robustness, superclass, trends, disagreement, similarity, cascade, "
        "zero-shot, pairs, sts; or all that the embeddings allow [evaluate, or pairs]",
    )  # fmt: skip
    parser.add_argument(
        "--show", metavar="NAME,…",
        help="metrics in the table, or all [head,1-NN,mAP@10; of pairs nDCG@10,hit@1,hit@10]",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="append the result rows to FILE; - prints them and no table")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Evaluate, print the table, store the rows."""
    from matryo.errors import InputError
    from matryo.results import append_rows

    asked = {*(args.protocols or "").split(",")}
    if not asked <= {"", *_WITH_TABLE} and not args.json:
        raise InputError(
            f"the results of other protocols than {', '.join(_WITH_TABLE)} are rows, not a table",
            got=f"--protocols {args.protocols} without --json",
            cure="say where they go, --json FILE, or draw them: matryo report",
        )
    subjects = subjects_of(args)
    usual = "pairs" if any(subject.relevance for subject in subjects) else "evaluate"
    found = measure_folders(subjects, args.protocols or usual, args.baselines)
    if args.json == "-":
        for row in to_rows(found):
            print(json.dumps(dataclasses.asdict(row), ensure_ascii=False))
        return
    if args.json:
        append_rows(Path(args.json), to_rows(found))
    _print_tables([one.result for one in found], args.show)
    if args.json:
        print(f"{len(found)} rows in {args.json}")


def measure_folders(subjects: Sequence[Subject], protocols: str, baselines: str) -> list[Measured]:
    """Every protocol on every model, then the baselines of those that were trained for one dim.

    Both are names with commas between, or "all": then what the embeddings do not allow is left out, and told. So is
    what stands behind a question mark: "evaluate,few-shot?". Baselines stand beside `evaluate`, `pairs` and `sts`:
    without these there are none.
    """
    from matryo.baselines import NAMES
    from matryo.errors import InputError, MissingExtra
    from matryo.evaluation import BASELINED, PROTOCOLS, measure, measure_baseline

    found: list[Measured] = []
    measured = set()
    chosen, wanted = _chosen(protocols, tuple(PROTOCOLS)), _chosen(baselines, NAMES)
    for protocol in chosen:
        for subject in subjects:
            try:
                found += [Measured(subject.seed, one) for one in measure(subject, protocol.rstrip("?"))]
                measured.add((subject, protocol.rstrip("?")))
            except (InputError, MissingExtra) as error:
                if not protocol.endswith("?"):
                    raise
                print(f"left out {protocol[:-1]} of {subject.name}: {error}", file=sys.stderr)
    fixed = [subject for subject in subjects if len(subject.database.nesting) == 1]
    beside = [(one, protocol) for one in fixed or subjects for protocol in BASELINED if (one, protocol) in measured]
    for name in wanted:
        for subject, protocol in beside:
            if name == "truncate?" and subject in fixed:
                continue   # a fixed model read at small dims is just that
            try:
                found += [Measured(subject.seed, one) for one in measure_baseline(subject, name.rstrip("?"), protocol)]
            except InputError as error:
                if not name.endswith("?"):
                    raise
                print(f"left out {name[:-1]} of {subject.name}: {error}", file=sys.stderr)
    return found


def to_rows(found: Sequence[Measured]) -> list[Row]:
    """The results as result rows."""
    from matryo.results import stamp

    rows = []
    for one in found:
        about = one.result
        subject = " ".join(filter(None, (about.model, about.dataset, getattr(about, "split", ""))))
        rows.append(stamp(about.kind, subject, about.to_figures(), seed=one.seed))
    return rows


def _chosen(text: str, known: Sequence[str]) -> list[str]:
    from matryo.errors import InputError

    names = [f"{name}?" for name in known] if text == "all" else [] if text in ("none", "") else text.split(",")
    if unknown := [name for name in names if name.rstrip("?") not in known]:
        raise InputError("there is no such choice", got=", ".join(unknown), cure=f"choose from {', '.join(known)}")
    return names


def _print_tables(results: Sequence[Any], show: str | None) -> None:
    from matryo.evaluation import Evaluation, Pairs, Sts, ZeroShot, pairs_table, sts_table, table, zero_shot_table

    wanted = None if show is None else [] if show == "all" else show.split(",")
    parts = []
    if evaluations := [one for one in results if isinstance(one, Evaluation)]:
        parts.append(table([(one.model, one) for one in evaluations], show=_USUAL if wanted is None else wanted))
    if pairs := [one for one in results if isinstance(one, Pairs)]:
        parts.append(pairs_table(pairs, show=wanted))
    if graded := [one for one in results if isinstance(one, Sts)]:
        parts.append(sts_table(graded))
    if told := [one for one in results if isinstance(one, ZeroShot)]:
        parts.append(zero_shot_table(told))
    if parts:
        print("\n\n".join(parts))
