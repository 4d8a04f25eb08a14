"""Where embeddings folders are: the rule that finds them inside another folder, and where one may be written.

A run folder holds ``embeddings/<split>/``, one embeddings folder per split. Any other folder holds the ``<split>/``
folders directly. Pairs are a folder of ``queries/``, ``candidates/`` and ``relevance.tsv``, or one such folder per
split.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.embeddings.manifest import FILES, MANIFEST
from matryo.errors import EmbeddingsError
from matryo.files import lock, resolve, storage
from matryo.folders import restore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

PROGRESS = "progress.json"
IDS = "ids.jsonl"
RELEVANCE = "relevance.tsv"
PARTIAL = ".partial"
"""The end of the name of a folder with unfinished rows."""
OURS = {*FILES, MANIFEST, PROGRESS, IDS}


def embedding_sets(
    folder: Path,
    wanted: Collection[str] = (),
    cure: Callable[[Sequence[str], Collection[str]], str] | None = None,
) -> dict[str, Path]:
    """Return the embeddings folder of each split in ``folder``; all ``wanted`` splits must be there.

    ``cure``, if given, returns the advice for the error from the missing splits and those present.
    """
    if not folder.is_dir() or (folder / MANIFEST).exists():
        raise EmbeddingsError(
            "FOLDER must be a run folder or hold one embeddings folder per split",
            got=f"{folder}, which {'is an embeddings folder itself' if folder.is_dir() else 'is not a folder'}",
            cure=f"give {folder.parent}" if folder.is_dir() else "check the path",
        )
    found = _folders_with(MANIFEST, folder)
    missing = sorted({*wanted} - found.keys())
    if missing or not found:
        of_splits = f" of the split{'s' * (len(missing) > 1)} {', '.join(missing)}" if missing else ""
        raise EmbeddingsError(
            f"{folder} must hold embeddings{of_splits}",
            got=", ".join(found) or "none",
            cure=cure(missing, found) if cure else _default_cure(folder, missing, found),
        )
    return found


def pair_folders(folder: Path) -> dict[str, Path]:
    """Return the folder of pairs of each split in ``folder``; under the name "" if ``folder`` itself is one."""
    inside = _inside(folder)
    return {"": inside} if (inside / RELEVANCE).is_file() else _folders_with(RELEVANCE, folder)


def _folders_with(name: str, folder: Path) -> dict[str, Path]:
    folders = (path.parent for path in sorted(_inside(folder).glob(f"[!.]*/{name}")))
    return {path.name: path for path in folders if not path.name.endswith(PARTIAL)}


def _inside(folder: Path) -> Path:
    return folder / "embeddings" if (folder / "embeddings").is_dir() else folder


def _default_cure(folder: Path, missing: Sequence[str], present: Collection[str]) -> str:
    if (folder / "run.json").is_file():   # a complete run
        return f"matryo encode {folder}" + "".join(f" --split {split}" for split in missing)
    return f"choose from {', '.join(present)}" if present else "give a folder with one embeddings folder per split"


def as_place(path: str | Path) -> Path:
    """Return ``path`` as a folder that a rename can create: absolute, without links, and with a name."""
    place = resolve(path)
    if not place.name:
        raise EmbeddingsError("embeddings need a folder of their own", got=path, cure="choose a new folder")
    return place


def check_place(path: Path, overwrite: bool) -> None:
    """Raise unless ``path`` is free, or holds embeddings that ``overwrite`` allows to replace."""
    with storage(path):
        restore(path)
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return
        names = {entry.name for entry in path.iterdir()} if path.is_dir() else {path.name}
        ours = _holds_embeddings(path)
    if not ours or not names <= OURS:
        raise EmbeddingsError(
            f"{path} must be free, or hold embeddings and nothing else",
            got=", ".join(sorted(names - OURS)[:4]) or f"no {MANIFEST} of embeddings",
            cure="choose another folder",
        )
    if not overwrite:
        raise EmbeddingsError(
            f"{path} already holds embeddings", cure="choose another folder, or pass overwrite=True (--force)"
        )


def check_work(folder: Path) -> None:
    """Raise unless ``folder`` is empty, or holds unfinished or replaced embeddings and nothing else."""
    names = {entry.name for entry in folder.iterdir()}
    foreign = names - OURS if PROGRESS in names or _holds_embeddings(folder) else names
    if foreign:
        raise EmbeddingsError(
            f"{folder} must hold nothing but unfinished embeddings",
            got=", ".join(sorted(foreign)[:4]),
            cure="move those files away, or write the embeddings elsewhere",
        )


def sweep_partial(path: Path) -> None:
    """Delete the older embeddings that a writer had exchanged with those at ``path`` when it was killed."""
    folder = path.with_name(path.name + PARTIAL)
    with contextlib.suppress(OSError, EmbeddingsError):   # in use by a writer, or not ours
        if not (folder / MANIFEST).is_file() or (folder / PROGRESS).exists():
            return
        handle = lock(folder)
        try:
            check_work(folder)
            clear(folder)
            folder.rmdir()
        finally:
            os.close(handle)


def clear(folder: Path, keep: Collection[str] = ()) -> None:
    """Delete the files of a work folder except ``keep``; those that show whose folder it is are the last."""
    entries = [entry for entry in folder.iterdir() if entry.name not in keep]
    for entry in sorted(entries, key=lambda entry: entry.name in (MANIFEST, PROGRESS)):
        entry.unlink()


def _holds_embeddings(folder: Path) -> bool:
    """Whether the manifest in ``folder`` is of embeddings, though it may be damaged."""
    try:
        content = (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    return all(name in content for name in (b'"format"', b'"nesting"', b'"vectors.npy"'))
