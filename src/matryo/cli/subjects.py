"""The arguments that `evaluate` and `report` share, and the subjects that they select.

A FOLDER holds labelled splits, one of which is the database, or pairs: queries/, candidates/ and relevance.tsv.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from matryo.training.run.paths import RunFolder

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation import Subject

__all__ = ["add_subject_arguments", "open_subjects", "parse_dims", "subjects_of"]


def add_subject_arguments(parser: argparse.ArgumentParser, folders: str = "+", baselines: str = "pca") -> None:
    """Add FOLDER …, the splits, the dims and the baselines."""
    parser.add_argument(
        "folders", nargs=folders, type=Path, metavar="FOLDER",
        help="run folder, or folder with one embeddings folder per split",
    )  # fmt: skip
    parser.add_argument("--database", default="train", metavar="SPLIT", help="the split to search [train]")
    parser.add_argument(
        "--queries", action="append", metavar="SPLIT",
        help="a query split; may be repeated (default: all splits but the database or the one trained on)",
    )  # fmt: skip
    parser.add_argument("--dims", metavar="M,M,…", help="dims to evaluate (default: the nesting, and dims between)")
    parser.add_argument("--texts", type=Path, metavar="DIR", help="embeddings of texts about the classes (zero-shot)")
    parser.add_argument("--candidates", type=Path, metavar="DIR", help="embeddings to search; FOLDER is the queries")
    parser.add_argument("--relevance", type=Path, metavar="FILE", help="relevant pairs: query-id, candidate-id, grade")
    parser.add_argument(
        "--baselines", default=baselines, metavar="NAME,…",
        help="truncate, pca, svd, svd-classifier, random, jl, all or none; made from the fixed models if there are "
        f"any, else from all [{baselines}]",
    )  # fmt: skip


def subjects_of(args: argparse.Namespace) -> list[Subject]:
    """Return the subjects that the arguments of :func:`add_subject_arguments` select, for ``--protocols``."""
    from matryo.evaluation import PROTOCOLS

    names = (args.protocols or "evaluate").split(",")
    searched = any(name not in PROTOCOLS or PROTOCOLS[name].searches for name in names)
    return open_subjects(
        args.folders, database=args.database, queries=args.queries, dims=parse_dims(args.dims), texts=args.texts,
        candidates=args.candidates, relevance=args.relevance, searched=searched,
        progress=not args.quiet,
    )  # fmt: skip


def open_subjects(
    folders: Sequence[Path],
    *,
    database: str = "train",
    queries: Sequence[str] | None = None,
    dims: Sequence[int] | None = None,
    texts: Path | None = None,
    candidates: Path | None = None,
    relevance: Path | None = None,
    searched: bool = True,
    progress: bool = True,
) -> list[Subject]:
    """Return the model in each folder, all to be evaluated at ``dims`` or at the dims of the first one.

    A folder of pairs gives one subject per split, with the candidates as the database. Unless a database is
    ``searched``, there need be none.
    """
    from matryo.embeddings import EmbeddingSet
    from matryo.embeddings.place import pair_folders
    from matryo.evaluation import default_dims

    opened: list[tuple[Path, Subject]] = []
    for folder in folders:
        if candidates or relevance or pair_folders(folder):
            opened += [(folder, subject) for subject in _open_pairs(folder, candidates, relevance, queries)]
        else:
            opened.append((folder, _open_labelled(folder, database, queries, searched)))
    described = EmbeddingSet.open(texts) if texts else None
    first = opened[0][1]
    # Given dims must fit every folder; default dims above the size of a folder's vectors are skipped.
    shared = default_dims(first.database.nesting, interpolated=first.relevance is None)
    # Runs of one name with different seeds are one model; with equal seeds they are different models.
    keys = [(subject.name, subject.seed, tuple(subject.queries)) for _, subject in opened]
    return [
        dataclasses.replace(
            subject,
            name=subject.name if keys.count(key) == 1 else str(folder),
            texts=described,
            asked_dims=tuple(dims or [m for m in shared if m <= subject.database.dim]),
            progress=progress,
        )
        for key, (folder, subject) in zip(keys, opened, strict=True)
    ]


def parse_dims(text: str | None) -> list[int] | None:
    """Return the dims of "8,16,64", or None for None."""
    from matryo.errors import InputError
    from matryo.nesting import Nesting

    if text is None:
        return None
    try:
        return list(Nesting(int(part) for part in text.split(",")).dims)
    except ValueError:
        raise InputError(
            "--dims must list dims in increasing order", got=repr(text), cure="for example --dims 8,16,64"
        ) from None


def _open_labelled(folder: Path, database: str, queries: Sequence[str] | None, searched: bool) -> Subject:
    from matryo.errors import EmbeddingsError
    from matryo.evaluation import Subject

    sets = _open_sets(folder, {*(queries or ()), *([database] if searched else [])})
    if searched and len(sets) < 2:
        raise EmbeddingsError(
            f"{folder} must hold embeddings of a database split and of a query split",
            got=", ".join(sets),
            cure="encode another split",
        )
    if searched and database in (queries or ()):
        others = [split for split in sets if split != database]
        raise EmbeddingsError(
            "the database must not be a query split too, or each query finds itself",
            got=f"--database {database} --queries {database}",
            cure=f"choose another --database: {', '.join(others)}",
        )
    unsearched = not searched and (database not in sets or len(sets) == 1)
    splits = queries or (sets if unsearched else _answerable(sets, database))
    asking = {split: _named(sets[split], split) for split in splits}
    first = next(iter(asking.values())) if unsearched else sets[database]   # its dims are those of all
    return Subject(folder.name, _seed(first), first, asking)


def _open_pairs(
    folder: Path, candidates: Path | None, relevance: Path | None, wanted: Sequence[str] | None
) -> list[Subject]:
    from matryo.embeddings import EmbeddingSet
    from matryo.embeddings.place import RELEVANCE, pair_folders
    from matryo.errors import InputError
    from matryo.evaluation import Relevance, Subject

    if candidates is None and relevance is None:
        parts = ("queries", "candidates", RELEVANCE)
        places = {split: tuple(path / part for part in parts) for split, path in pair_folders(folder).items()}
        if missing := sorted({*(wanted or ())} - places.keys()):
            there = ", ".join(places)
            raise InputError(
                f"{folder} must hold pairs of these splits", got=", ".join(missing), cure=f"choose from {there}"
            )
        wanted = wanted or _not_trained_on(folder, places)
    elif candidates is None or relevance is None:
        raise InputError(
            "--candidates and --relevance must be given together",
            got=f"--{'relevance' if candidates is None else 'candidates'} alone",
            cure="give both --candidates DIR and --relevance FILE, or a FOLDER that holds all three",
        )
    else:
        places = {"": (folder, candidates, relevance)}
    subjects = []
    for split in places if candidates is not None else dict.fromkeys(wanted or places):
        query_folder, candidate_folder, judgements = places[split]
        queries, known = _named(EmbeddingSet.open(query_folder), split), EmbeddingSet.open(candidate_folder)
        name = folder.name if candidates is None else queries.manifest.title or folder.name
        related = Relevance.open(judgements, queries, known)
        subjects.append(Subject(name, _seed(queries), known, {split: queries}, relevance=related, sides=_sides(folder)))
    return subjects


def _not_trained_on(folder: Path, splits: Collection[str]) -> list[str]:
    """Return all splits in the order of the recipe, without the one trained on unless it is the only one."""
    run = RunFolder(folder)
    trained, tested = (run.recipe.data.train, run.recipe.data.test) if run.complete else ("train", ())
    ordered = sorted(splits, key=lambda split: tested.index(split) if split in tested else len(tested))
    if len(ordered) > 1 and trained in ordered:
        print(f"skipped {trained} of {folder.name}: it was trained on (use --queries {trained})", file=sys.stderr)
        ordered.remove(trained)
    return ordered


def _sides(folder: Path) -> tuple[str, str]:
    """Return the names of both sides of a run's pairs where they differ, else queries and candidates."""
    run = RunFolder(folder)
    sides = run.sides if run.complete else ()
    return (sides[0], sides[1]) if sides and sides[0] != sides[1] else ("queries", "candidates")


def _seed(embeddings: EmbeddingSet) -> int | None:
    model = embeddings.manifest.model
    return None if isinstance(model, str) else model.get("seed")


def _named(embeddings: EmbeddingSet, split: str) -> EmbeddingSet:
    """Return ``embeddings`` with the name of their folder as split, unless they were written with one."""
    if embeddings.manifest.split:
        return embeddings
    return dataclasses.replace(embeddings, manifest=dataclasses.replace(embeddings.manifest, split=split))


def _answerable(sets: dict[str, EmbeddingSet], database: str) -> list[str]:
    """Return the splits that share a class with the database; print which others are skipped."""
    labels = sets[database].labels
    answerable = []
    for name, queries in sets.items():
        if name == database:
            continue
        if labels is None or (queries.labels is not None and np.isin(queries.labels, labels[labels >= 0]).any()):
            answerable.append(name)
        else:
            why = "it has no labels" if queries.labels is None else f"none of its classes is in {database}"
            print(f"skipped {name}: {why}", file=sys.stderr)
    return answerable or [name for name in sets if name != database]


def _open_sets(folder: Path, wanted: set[str]) -> dict[str, EmbeddingSet]:
    from matryo.embeddings import EmbeddingSet
    from matryo.embeddings.place import embedding_sets

    paths = embedding_sets(folder, wanted, cure=partial(_cure, folder))
    return {name: EmbeddingSet.open(path) for name, path in paths.items()}


def _cure(folder: Path, missing: Sequence[str], there: Collection[str]) -> str:
    """Return how to get the ``missing`` splits: encode them, if this is a run."""
    from matryo.data.open import BUNDLED

    run = RunFolder(folder)
    if not run.complete:
        return "choose with --database and --queries" if there else "give a folder with one embeddings folder per split"
    data = run.recipe.data
    if "train" in missing and data.train in there:
        return f"use --database {data.train}"
    if not there:   # all splits of the recipe; for pairs only the test splits, because no others are measured
        missing = data.test if run.sides else ()
    where = "" if data.source in BUNDLED else " --data DIR"
    return f"matryo encode {folder}{where}" + "".join(f" --split {split}" for split in missing)
