"""The arguments that `evaluate` and `report` share, and the subjects that they select.

A FOLDER holds labelled splits, one of which is the database, or pairs: queries/, candidates/ and relevance.tsv.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from matryo.data.open import BUNDLED
from matryo.embeddings import EmbeddingSet
from matryo.embeddings.place import RELEVANCE, embedding_sets, pair_folders
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation import PROTOCOLS, Relevance, Subject, default_dims
from matryo.nesting import Nesting
from matryo.training.run.paths import RunFolder


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
        help="truncate, pca, svd, svd-classifier, random, jl, or all of these; retrofit, blocks, classes, learned, "
        f"adaptor; none. Made from the fixed models if there are any, else from all [{baselines}]",
    )  # fmt: skip


def open_subjects(args: argparse.Namespace) -> list[Subject]:
    """Return the model in each folder, all to be evaluated at --dims or at the dims of the first one.

    A folder of pairs gives one subject per split, with the candidates as the database. Unless one of --protocols
    searches a database, there need be none.
    """
    names = (args.protocols or "evaluate").split(",")
    searched = any(name not in PROTOCOLS or PROTOCOLS[name].searches for name in names)
    opened: list[tuple[Path, Subject]] = []
    for folder in args.folders:
        if args.candidates or args.relevance or pair_folders(folder):
            opened += [(folder, subject) for subject in _open_pairs(folder, args)]
        else:
            opened.append((folder, _open_labelled(folder, args.database, args.queries or [], searched)))
    texts, dims = EmbeddingSet.open(args.texts) if args.texts else None, parse_dims(args.dims)
    first = opened[0][1]
    # Given dims must fit every folder; default dims above the size of a folder's vectors are skipped.
    shared = default_dims(first.database.nesting, interpolated=first.relevance is None)
    # Runs of one name with different seeds are one model; with equal seeds they are different models.
    keys = [(subject.name, subject.seed, tuple(subject.queries)) for _, subject in opened]
    return [
        dataclasses.replace(
            subject,
            name=subject.name if keys.count(key) == 1 else str(folder),
            texts=texts,
            asked_dims=tuple(dims or [m for m in shared if m <= subject.database.dim]),
            progress=not args.quiet,
        )
        for key, (folder, subject) in zip(keys, opened, strict=True)
    ]


def parse_dims(text: str | None) -> list[int] | None:
    """Return the dims of "8,16,64", or None for None."""
    if text is None:
        return None
    try:
        return list(Nesting(int(part) for part in text.split(",")).dims)
    except ValueError:
        rule = "--dims must list dims in increasing order"
        raise InputError(rule, got=repr(text), cure="for example --dims 8,16,64") from None


def _open_labelled(folder: Path, database: str, queries: Sequence[str], searched: bool) -> Subject:
    paths = embedding_sets(folder, {*queries, *([database] if searched else [])}, cure=partial(_cure, folder))
    sets = {name: EmbeddingSet.open(path) for name, path in paths.items()}
    others = [split for split in sets if split != database]
    if searched and not others:
        rule = f"{folder} must hold embeddings of a database split and of a query split"
        raise EmbeddingsError(rule, got=database, cure="encode another split")
    if searched and database in queries:
        rule = "the database must not be a query split too, or each query finds itself"
        got, cure = f"--database {database} --queries {database}", f"choose another --database: {', '.join(others)}"
        raise EmbeddingsError(rule, got=got, cure=cure)
    unsearched = not searched and (database not in sets or not others)
    splits = queries or (sets if unsearched else _answerable(sets, database))
    asking = {split: _named(sets[split], split) for split in splits}
    first = next(iter(asking.values())) if unsearched else sets[database]   # its dims are those of all
    return Subject(folder.name, first.manifest.seed, first, asking)


def _open_pairs(folder: Path, args: argparse.Namespace) -> Iterator[Subject]:
    if args.candidates and args.relevance:
        places = {"": (folder, args.candidates, args.relevance)}
    elif args.candidates or args.relevance:
        raise InputError(
            "--candidates and --relevance must be given together",
            got=f"--{'candidates' if args.candidates else 'relevance'} alone",
            cure="give both --candidates DIR and --relevance FILE, or a FOLDER that holds all three",
        )
    else:
        found = pair_folders(folder)
        if missing := sorted({*(args.queries or ())} - found.keys()):
            rule, cure = f"{folder} must hold pairs of these splits", f"choose from {', '.join(found)}"
            raise InputError(rule, got=", ".join(missing), cure=cure)
        wanted = {split: found[split] for split in args.queries or _not_trained_on(folder, found)}
        places = {split: (path / "queries", path / "candidates", path / RELEVANCE) for split, path in wanted.items()}
    run, sides = RunFolder(folder), ("queries", "candidates")
    if run.complete and len({*run.sides}) == 2:   # images and texts
        sides = (run.sides[0], run.sides[1])
    for split, (query_folder, candidate_folder, judgements) in places.items():
        queries, candidates = _named(EmbeddingSet.open(query_folder), split), EmbeddingSet.open(candidate_folder)
        name = (args.candidates and queries.manifest.title) or folder.name
        relevance = Relevance.open(judgements, queries, candidates)
        yield Subject(name, queries.manifest.seed, candidates, {split: queries}, relevance=relevance, sides=sides)


def _not_trained_on(folder: Path, splits: Collection[str]) -> list[str]:
    """Return all splits in the order of the recipe, without the one trained on unless it is the only one."""
    run = RunFolder(folder)
    trained, tested = (run.recipe.data.train, run.recipe.data.test) if run.complete else ("train", ())
    ordered = sorted(splits, key=lambda split: tested.index(split) if split in tested else len(tested))
    if len(ordered) > 1 and trained in ordered:
        print(f"skipped {trained} of {folder.name}: it was trained on (use --queries {trained})", file=sys.stderr)
        ordered.remove(trained)
    return ordered


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


def _cure(folder: Path, missing: Sequence[str], there: Collection[str]) -> str:
    """Return how to get the ``missing`` splits: encode them, if this is a run."""
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
