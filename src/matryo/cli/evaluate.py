"""Measure embeddings at every dim: heads, 1-NN, mAP and precision at k, with the cost of a query.

FOLDER is a run folder (its embeddings/ are read) or a folder of embeddings folders, one a split. The split
named by --database is searched; all others ask. Several FOLDERs stand side by side at the same dims, so a fixed
model beside a nested one shows what plain truncation is worth.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation import Evaluation
    from matryo.results import Row

__all__ = ["Measured", "add_arguments", "evaluate_folders", "run", "to_rows"]


@dataclasses.dataclass(frozen=True)
class Measured:
    """One folder's embeddings of one query split, evaluated."""

    name: str
    seed: int | None
    evaluation: Evaluation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER …, which splits and dims, and where the figures go."""
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="run folder, or folder of embeddings")
    parser.add_argument("--database", default="train", metavar="SPLIT", help="the split that is searched [train]")
    parser.add_argument("--queries", action="append", metavar="SPLIT", help="a split that asks; repeat (default: all)")
    parser.add_argument("--dims", metavar="M,M,…", help="dims to measure (default: the nesting and the ones between)")
    parser.add_argument(
        "--show", default="head,1-NN,mAP@10", metavar="NAME,…", help="metrics in the table, or all [head,1-NN,mAP@10]"
    )
    parser.add_argument("--json", metavar="FILE", help="append the result rows to FILE; - prints them and no table")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Evaluate, print the table, store the rows."""
    from matryo.evaluation import table
    from matryo.results import append_rows

    found = evaluate_folders(
        args.folders,
        database=args.database,
        queries=args.queries,
        dims=_parse_dims(args.dims),
        progress=not args.quiet,
    )
    if args.json == "-":
        for row in to_rows(found):
            print(json.dumps(dataclasses.asdict(row), ensure_ascii=False))
        return
    show = [] if args.show == "all" else args.show.split(",")
    print(table([(one.name, one.evaluation) for one in found], show=show))
    if args.json:
        append_rows(Path(args.json), to_rows(found))


def evaluate_folders(
    folders: list[Path],
    *,
    database: str = "train",
    queries: list[str] | None = None,
    dims: list[int] | None = None,
    progress: bool = True,
) -> list[Measured]:
    """Every query split of every folder, all at the same dims: those of the first folder unless ``dims`` says."""
    from matryo.evaluation import default_dims, evaluate

    names = [folder.name for folder in folders]
    asked_for, found = dims, []
    for folder in folders:
        sets = _open_sets(folder, {database, *(queries or ())})
        for split in queries or _answerable(sets, database):
            asked = sets[split]
            dims = dims or default_dims(asked.nesting)
            # Dims the user named must fit; those of the first folder are cut to what this one has.
            fitting = asked_for or [m for m in dims if m <= asked.dim]
            result = evaluate(sets[database], asked, dims=fitting, progress=progress)
            name = folder.name if names.count(folder.name) == 1 else str(folder)
            model = asked.manifest.model
            found.append(Measured(name, None if isinstance(model, str) else model.get("seed"), result))
    return found


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


def to_rows(found: list[Measured]) -> list[Row]:
    """The evaluations as result rows."""
    from matryo.results import stamp

    rows = []
    for one in found:
        about = one.evaluation
        subject = " ".join(filter(None, (one.name, about.dataset, about.split)))
        rows.append(stamp("evaluate", subject, about.to_figures(), seed=one.seed))
    return rows


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


def _parse_dims(text: str | None) -> list[int] | None:
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
