"""Evaluate embeddings at every dim: head, k-NN, mAP, precision and recall at k, and the cost per query.

FOLDER is a run folder (its embeddings/ are read) or a folder with one embeddings folder per split. The split given by
--database is searched; the other splits are the queries. Several FOLDERs are compared side by side at the same dims,
with baselines: how good the same vectors are at each dim without training for it. --protocols selects other
measurements: linear probe, few-shot, superclasses, robustness, and more.

For pairs (questions and documents, images and captions), FOLDER holds queries/, candidates/ and relevance.tsv, as
`matryo encode` writes them. Retrieval is then measured in both directions; with --protocols sts, the correlation of
cosines with the grades of pairs. FOLDER may also be the embeddings of the queries, with --candidates and --relevance.

With --layers 2,4, FOLDER is a run that was also encoded by `matryo encode RUN --layers 2` and `--layers 4`. Every
metric is then printed as a grid of layers and dims, with the cost of encoding; --figure draws it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from matryo.baselines import NAMES, RUNGS
from matryo.cli.parts.layers import grid_of_layers, layer_folders
from matryo.cli.parts.subjects import add_subject_arguments, open_subjects
from matryo.errors import InputError, MissingExtra
from matryo.evaluation import BASELINED, PROTOCOLS, Subject, measure, measure_baseline, table
from matryo.evaluation.measure import check_known
from matryo.results import Row, append_rows, check_may_append, stamp


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FOLDER …, the splits, dims and protocols, and where the figures go."""
    add_subject_arguments(parser)
    parser.add_argument(
        "--protocols", metavar="NAME,…",
        help=f"{', '.join(sorted(PROTOCOLS))}; or all that the embeddings allow [evaluate, or pairs]",
    )  # fmt: skip
    parser.add_argument(
        "--show", metavar="NAME,…",
        help="metrics in the table, or all [head,1-NN,mAP@10; for pairs nDCG@10,hit@1,hit@10]",
    )  # fmt: skip
    parser.add_argument(
        "--layers", metavar="N,…",
        help="compare RUN with its first N layers (RUN/layers-N), as a grid of layers × dims without baselines",
    )
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw that grid: FILE.svg or FILE.png")
    parser.add_argument(
        "--force", "--overwrite", dest="force", action="store_true", help="replace the file of --figure"
    )
    parser.add_argument("--json", metavar="FILE", help="append the result rows to FILE; - prints them and no table")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Evaluate, print the tables, store the rows."""
    if args.json and args.json != "-":
        check_may_append(Path(args.json))
    if args.layers or args.figure:
        args.folders, args.baselines = layer_folders(args), "none"   # the grid has no place for them
    subjects = open_subjects(args)
    measured = measure_folders(args, subjects)
    rows = [row for _, row in measured]
    if args.json == "-":
        for row in rows:
            print(json.dumps(dataclasses.asdict(row), ensure_ascii=False))
        return
    if args.json:
        append_rows(Path(args.json), rows)
    if measured:
        show = None if args.show is None else [] if args.show == "all" else args.show.split(",")
        results = [result for result, _ in measured]
        print(grid_of_layers(args, results, subjects, show) if args.layers else table(results, show=show))
    if args.json:
        print(f"{len(rows)} rows in {args.json}")


def measure_folders(
    args: argparse.Namespace, subjects: Sequence[Subject] | None = None
) -> list[tuple[Any, Row]]:
    """Measure every model with every protocol, then baselines of the models that were trained at one dim.

    Each result is returned with its result row. --protocols and --baselines are names separated by commas, or "all".
    With "all", which stands for the baselines that are no rungs of a retrofit, whatever the embeddings do not allow is
    skipped with a message; so are names that end in a question
    mark, as in "evaluate,few-shot?". Baselines are measured with those of the chosen protocols that allow them:
    `evaluate`, `pairs` and `sts`.
    """
    subjects, done = open_subjects(args) if subjects is None else subjects, set()
    measured: list[tuple[Any, Row]] = []
    usual = "pairs" if any(subject.relevance for subject in subjects) else "evaluate"
    chosen = _chosen("protocol", args.protocols or usual, PROTOCOLS)
    wanted = _chosen("baseline", args.baselines, NAMES, [name for name in NAMES if name not in RUNGS])
    for protocol, optional in chosen:
        for subject in subjects:
            results = _results(measure, subject, protocol, optional=optional, role=subject.role)
            if results is not None:
                measured += results
                done.add((subject, protocol))
    fixed = [subject for subject in subjects if subject.role == "fixed"]
    compared = [(one, protocol) for one in fixed or subjects for protocol in BASELINED if (one, protocol) in done]
    for name, optional in wanted:
        for subject, protocol in compared:
            if name == "truncate" and optional and subject in fixed:
                continue   # evaluating a fixed model at small dims is truncation already
            measured += _results(measure_baseline, subject, name, protocol, optional=optional, role="post hoc") or ()
    return measured


def _chosen(
    what: str, text: str, names: Iterable[str], every: Iterable[str] | None = None
) -> list[tuple[str, bool]]:
    """Return the chosen names, and whether each is skipped where it is impossible; "all" stands for ``every``."""
    if text == "all":
        return [(name, True) for name in (names if every is None else every)]
    chosen = [] if text in ("none", "") else text.split(",")
    for name in chosen:
        check_known(what, name.rstrip("?"), names)
    return [(name.rstrip("?"), name.endswith("?")) for name in chosen]


def _results(
    measure: Callable[..., list[Any]], subject: Subject, *names: str, optional: bool, role: str
) -> list[tuple[Any, Row]] | None:
    """Return what ``measure`` finds; where the embeddings do not allow it and it is ``optional``, print why."""
    try:
        results = measure(subject, *names)
    except (InputError, MissingExtra) as error:
        if not optional:
            raise
        print(f"skipped {names[0]} of {subject.name}: {error}", file=sys.stderr)
        return None
    pairs = []
    for result in results:
        about = " ".join(filter(None, (result.model, result.dataset, getattr(result, "split", ""))))
        pairs.append((result, stamp(result.kind, about, result.to_figures(), seed=subject.seed, role=role)))
    return pairs
