"""Measure embeddings at every dim: heads, 1-NN, mAP, precision and recall at k, with the cost of a query.

FOLDER is a run folder (its embeddings/ are read) or a folder of embeddings folders, one a split. The split
named by --database is searched; all others ask. Several FOLDERs stand side by side at the same dims, and baselines
beside them: what the same vectors are worth at each dim without training for it. --protocols adds what else the
embeddings allow: linear probe, few-shot, superclasses, robustness, and more; their figures go to --json and into
`matryo report`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.embeddings import EmbeddingSet
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
    "to_rows",
]


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
        "--protocols", default="evaluate", metavar="NAME,…",
        help="evaluate, probe, few-shot, stream, robustness, superclass, trends, disagreement, similarity, cascade, "
        "zero-shot; or all that the embeddings allow [evaluate]",
    )  # fmt: skip
    parser.add_argument(
        "--show", default="head,1-NN,mAP@10", metavar="NAME,…", help="metrics in the table, or all [head,1-NN,mAP@10]"
    )
    parser.add_argument("--json", metavar="FILE", help="append the result rows to FILE; - prints them and no table")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def add_subject_arguments(parser: argparse.ArgumentParser, folders: str = "+", baselines: str = "pca") -> None:
    """What is measured beside what, for every verb that measures."""
    parser.add_argument(
        "folders", nargs=folders, type=Path, metavar="FOLDER", help="run folder, or folder of embeddings"
    )
    parser.add_argument("--database", default="train", metavar="SPLIT", help="the split that is searched [train]")
    parser.add_argument("--queries", action="append", metavar="SPLIT", help="a split that asks; repeat (default: all)")
    parser.add_argument("--dims", metavar="M,M,…", help="dims to evaluate (default: the nesting, and between)")
    parser.add_argument("--texts", type=Path, metavar="DIR", help="embeddings of texts about the classes: zero-shot")
    parser.add_argument(
        "--baselines", default=baselines, metavar="NAME,…",
        help="truncate, pca, svd, svd-classifier, random, jl, all or none; of the fixed models where there are any, "
        f"else of all [{baselines}]",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Evaluate, print the table, store the rows."""
    from matryo.errors import InputError
    from matryo.evaluation import Evaluation, table
    from matryo.results import append_rows

    if args.protocols != "evaluate" and not args.json:
        raise InputError(
            "the results of other protocols than evaluate are rows, not a table",
            got=f"--protocols {args.protocols} without --json",
            cure="say where they go, --json FILE, or draw them: matryo report",
        )
    subjects = open_subjects(
        args.folders, database=args.database, queries=args.queries, dims=parse_dims(args.dims), texts=args.texts,
        progress=not args.quiet,
    )  # fmt: skip
    found = measure_folders(subjects, args.protocols, args.baselines)
    if args.json == "-":
        for row in to_rows(found):
            print(json.dumps(dataclasses.asdict(row), ensure_ascii=False))
        return
    if args.json:
        append_rows(Path(args.json), to_rows(found))
    show = [] if args.show == "all" else args.show.split(",")
    evaluations = [one.result for one in found if isinstance(one.result, Evaluation)]
    if evaluations:
        print(table([(one.model, one) for one in evaluations], show=show))
    if args.json:
        print(f"{len(found)} rows in {args.json}")


def open_subjects(
    folders: Sequence[Path],
    *,
    database: str = "train",
    queries: Sequence[str] | None = None,
    dims: Sequence[int] | None = None,
    texts: Path | None = None,
    progress: bool = True,
) -> list[Subject]:
    """The model in each folder, all to be evaluated at the same dims: the first one's, unless ``dims`` says."""
    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation import Subject, default_dims

    subjects: list[Subject] = []
    for folder in folders:
        sets = _open_sets(folder, {database, *(queries or ())})
        searched = sets[database]
        asking = {split: _named(sets[split], split) for split in queries or _answerable(sets, database)}
        # Dims the user named must fit; those of the first folder are cut to what this one has.
        shared = default_dims((subjects[0].database if subjects else searched).nesting)
        at = dims or [m for m in shared if m <= searched.dim]
        model = searched.manifest.model
        seed = None if isinstance(model, str) else model.get("seed")
        described = EmbeddingSet.open(texts) if texts else None
        subjects.append(Subject(folder.name, seed, searched, asking, described, tuple(at), progress))
    # Runs of one name with different seeds are one model, several times; with one seed they are different ones.
    known = [(subject.name, subject.seed) for subject in subjects]
    return [
        subject if known.count(key) == 1 else dataclasses.replace(subject, name=str(folder))
        for subject, key, folder in zip(subjects, known, folders, strict=True)
    ]


def measure_folders(subjects: Sequence[Subject], protocols: str, baselines: str) -> list[Measured]:
    """Every protocol on every model, then the baselines of those that were trained for one dim.

    Both are names with commas between, or "all": then what the embeddings do not allow is left out, and told. So is
    what stands behind a question mark: "evaluate,few-shot?".
    """
    from matryo.baselines import NAMES
    from matryo.errors import InputError, MissingExtra
    from matryo.evaluation import PROTOCOLS, measure, measure_baseline

    found: list[Measured] = []
    for protocol in _chosen(protocols, tuple(PROTOCOLS)):
        for subject in subjects:
            try:
                found += [Measured(subject.seed, one) for one in measure(subject, protocol.rstrip("?"))]
            except (InputError, MissingExtra) as error:
                if not protocol.endswith("?"):
                    raise
                print(f"left out {protocol[:-1]} of {subject.name}: {error}", file=sys.stderr)
    fixed = [subject for subject in subjects if len(subject.database.nesting) == 1]
    for name in _chosen(baselines, NAMES):
        for subject in fixed or subjects:
            if name == "truncate?" and subject in fixed:
                continue   # a fixed model read at small dims is just that
            try:
                found += [Measured(subject.seed, one) for one in measure_baseline(subject, name.rstrip("?"))]
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


def _named(embeddings: EmbeddingSet, split: str) -> EmbeddingSet:
    """Vectors that were written without a split's name are called like their folder."""
    if embeddings.manifest.split:
        return embeddings
    return dataclasses.replace(embeddings, manifest=dataclasses.replace(embeddings.manifest, split=split))


def _answerable(sets: dict[str, EmbeddingSet], database: str) -> list[str]:
    """The splits that share a class with the database; the others are named, and left for whoever asks for them."""
    known = sets[database].labels
    found = []
    for name, asked in sets.items():
        if name == database:
            continue
        if known is None or (asked.labels is not None and np.isin(asked.labels, known[known >= 0]).any()):
            found.append(name)
        else:
            why = "it has no labels" if asked.labels is None else f"none of its classes is in {database}"
            print(f"left out {name}: {why}", file=sys.stderr)
    return found or [name for name in sets if name != database]


def _open_sets(folder: Path, wanted: set[str]) -> dict[str, EmbeddingSet]:
    from matryo.embeddings import EmbeddingSet
    from matryo.errors import EmbeddingsError

    inside = folder / "embeddings" if (folder / "embeddings").is_dir() else folder
    if not folder.is_dir() or (folder / "manifest.json").exists():
        raise EmbeddingsError(
            "FOLDER must be a run folder, or hold one embeddings folder a split",
            got=f"{folder}, which is {'one of those itself' if folder.is_dir() else 'no folder'}",
            cure=f"give {folder.parent}" if folder.is_dir() else "check the path",
        )
    paths = {path.parent.name: path.parent for path in sorted(inside.glob("*/manifest.json"))}
    if missing := sorted(wanted - paths.keys()):
        trained = (folder / "run.json").exists()
        raise EmbeddingsError(
            f"{folder} must hold embeddings of the split{'s' * (len(missing) > 1)} {', '.join(missing)}",
            got=", ".join(paths) or "none",
            cure=f"matryo encode {folder} --split {missing[0]}" if trained else "name others: --database, --queries",
        )
    if len(paths) < 2:
        raise EmbeddingsError(
            f"{folder} must hold embeddings of a database split and of one that asks",
            got=", ".join(paths),
            cure="encode another split",
        )
    return {name: EmbeddingSet.open(path) for name, path in paths.items()}


def parse_dims(text: str | None) -> list[int] | None:
    from matryo.errors import InputError
    from matryo.nesting import Nesting

    if text is None:
        return None
    try:
        return list(Nesting(int(part) for part in text.split(",")).dims)
    except ValueError:
        raise InputError(
            "--dims must list dims in increasing order", got=repr(text), cure="say for example --dims 8,16,64"
        ) from None
