"""What the verbs that measure share: how a model's embeddings are named, and opened as what is measured.

A FOLDER holds splits with labels, of which one is searched, or pairs: queries/, candidates/ and relevance.tsv.
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

_SEARCHLESS = {"zero-shot", "cascade", "similarity"}   # protocols that read the asking splits alone


def add_subject_arguments(parser: argparse.ArgumentParser, folders: str = "+", baselines: str = "pca") -> None:
    """What is measured beside what, for every verb that measures."""
    parser.add_argument(
        "folders", nargs=folders, type=Path, metavar="FOLDER", help="run folder, or folder of embeddings"
    )
    parser.add_argument("--database", default="train", metavar="SPLIT", help="the split that is searched [train]")
    parser.add_argument(
        "--queries", action="append", metavar="SPLIT",
        help="a split that asks; repeat (default: all but the one trained on)",
    )  # fmt: skip
    parser.add_argument("--dims", metavar="M,M,…", help="dims to evaluate (default: the nesting, and between)")
    parser.add_argument("--texts", type=Path, metavar="DIR", help="embeddings of texts about the classes: zero-shot")
    parser.add_argument("--candidates", type=Path, metavar="DIR", help="embeddings that FOLDER, the queries, looks for")
    parser.add_argument("--relevance", type=Path, metavar="FILE", help="which belong together: query-id, id, grade")
    parser.add_argument(
        "--baselines", default=baselines, metavar="NAME,…",
        help="truncate, pca, svd, svd-classifier, random, jl, all or none; of the fixed models where there are any, "
        f"else of all [{baselines}]",
    )  # fmt: skip


def subjects_of(args: argparse.Namespace) -> list[Subject]:
    """What the arguments of :func:`add_subject_arguments` name, for the ``--protocols`` beside them."""
    protocols = {*(args.protocols or "").split(",")}
    return open_subjects(
        args.folders, database=args.database, queries=args.queries, dims=parse_dims(args.dims), texts=args.texts,
        candidates=args.candidates, relevance=args.relevance, searched=not protocols <= _SEARCHLESS,
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
    """The model in each folder, all to be evaluated at the same dims: the first one's, unless ``dims`` says.

    A folder of pairs is a subject of its own for each split, whose database are the candidates. Where no database is
    ``searched``, there need be none.
    """
    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation import default_dims

    found: list[tuple[Path, Subject]] = []
    for folder in folders:
        opened = (
            _open_pairs(folder, candidates, relevance, queries)
            if _holds_pairs(folder, candidates, relevance)
            else [_open_labelled(folder, database, queries, searched)]
        )
        found += [(folder, subject) for subject in opened]
    described = EmbeddingSet.open(texts) if texts else None
    first = found[0][1]
    # Dims the user named must fit; those of the first folder are cut to what each one has.
    shared = default_dims(first.database.nesting, interpolated=first.relevance is None)
    # Runs of one name with different seeds are one model, several times; with one seed they are different ones.
    known = [(subject.name, subject.seed, tuple(subject.queries)) for _, subject in found]
    return [
        dataclasses.replace(
            subject,
            name=subject.name if known.count(key) == 1 else str(folder),
            texts=described,
            asked_dims=tuple(dims or [m for m in shared if m <= subject.database.dim]),
            progress=progress,
        )
        for key, (folder, subject) in zip(known, found, strict=True)
    ]


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


def _open_labelled(folder: Path, database: str, queries: Sequence[str] | None, searched: bool) -> Subject:
    from matryo.errors import EmbeddingsError
    from matryo.evaluation import Subject

    sets = _open_sets(folder, {*(queries or ()), *([database] if searched else [])})
    if searched and len(sets) < 2:
        raise EmbeddingsError(
            f"{folder} must hold embeddings of a database split and of one that asks",
            got=", ".join(sets),
            cure="encode another split",
        )
    if not searched and (database not in sets or len(sets) == 1):
        asking = {split: _named(sets[split], split) for split in queries or sets}
        first = next(iter(asking.values()))   # whose dims are those of all
        return Subject(folder.name, _seed(first), first, asking)
    asking = {split: _named(sets[split], split) for split in queries or _answerable(sets, database)}
    return Subject(folder.name, _seed(sets[database]), sets[database], asking)


def _holds_pairs(folder: Path, candidates: Path | None, relevance: Path | None) -> bool:
    from matryo.embeddings.place import pair_folders

    return candidates is not None or relevance is not None or bool(pair_folders(folder))


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
            raise InputError(f"{folder} must hold pairs of these splits", got=", ".join(missing), cure=f"name {there}")
        wanted = wanted or _not_trained_on(folder, places)
    elif candidates is None or relevance is None:
        raise InputError(
            "queries, candidates and relevance belong together",
            got=f"--{'relevance' if candidates is None else 'candidates'} alone",
            cure="give both --candidates DIR and --relevance FILE, or a FOLDER that holds all three",
        )
    else:
        places = {"": (folder, candidates, relevance)}
    subjects = []
    for split in places if candidates is not None else dict.fromkeys(wanted or places):
        asking, searched, judged = places[split]
        queries, known = _named(EmbeddingSet.open(asking), split), EmbeddingSet.open(searched)
        name = folder.name if candidates is None else queries.manifest.title or folder.name
        related = Relevance.open(judged, queries, known)
        subjects.append(Subject(name, _seed(queries), known, {split: queries}, relevance=related, sides=_sides(folder)))
    return subjects


def _not_trained_on(folder: Path, splits: Collection[str]) -> list[str]:
    """All splits in the order of the recipe, but the one trained on, unless it is the only one."""
    run = RunFolder(folder)
    trained, tested = (run.recipe.data.train, run.recipe.data.test) if run.complete else ("train", ())
    found = sorted(splits, key=lambda split: tested.index(split) if split in tested else len(tested))
    if len(found) > 1 and trained in found:
        print(f"left out {trained} of {folder.name}: it was trained on (--queries {trained} asks it)", file=sys.stderr)
        found.remove(trained)
    return found


def _sides(folder: Path) -> tuple[str, str]:
    """What a run was told apart: images and texts; else the roles that both have."""
    run = RunFolder(folder)
    sides = run.sides if run.complete else ()
    return (sides[0], sides[1]) if sides and sides[0] != sides[1] else ("queries", "candidates")


def _seed(embeddings: EmbeddingSet) -> int | None:
    model = embeddings.manifest.model
    return None if isinstance(model, str) else model.get("seed")


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
    from matryo.embeddings.place import embedding_sets

    paths = embedding_sets(folder, wanted, cure=partial(_cure, folder))
    return {name: EmbeddingSet.open(path) for name, path in paths.items()}


def _cure(folder: Path, missing: Sequence[str], there: Collection[str]) -> str:
    """How to come by the ``missing`` splits: encode them, if this is a run."""
    from matryo.data.open import BUNDLED

    run = RunFolder(folder)
    if not run.complete:
        return "name others: --database, --queries" if there else "give a folder with an embeddings folder a split"
    data = run.recipe.data
    if "train" in missing and data.train in there:
        return f"say --database {data.train}"
    if not there:   # all of the recipe; of pairs those it was not trained on, as no others are measured
        missing = data.test if run.sides else ()
    where = "" if data.source in BUNDLED else " --data DIR"
    return f"matryo encode {folder}{where}" + "".join(f" --split {split}" for split in missing)
