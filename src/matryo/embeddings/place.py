"""Where an embeddings folder goes: nothing foreign is ever replaced."""

from __future__ import annotations

from pathlib import Path

from matryo.embeddings.manifest import FILES, MANIFEST
from matryo.errors import EmbeddingsError

__all__ = ["IDS", "PROGRESS", "as_place", "check_place", "clear"]

PROGRESS = "progress.json"
IDS = "ids.jsonl"
_OURS = {*FILES, MANIFEST, PROGRESS, IDS}


def as_place(path: str | Path) -> Path:
    """``path`` as a folder that can be renamed to: it has a name, and is no link."""
    place = Path(path)
    place = place.resolve() if place.is_symlink() or place.name in ("", "..") else place
    if not place.name:
        raise EmbeddingsError("embeddings need a folder of their own", got=path, cure="name a new one")
    return place


def check_place(path: Path, overwrite: bool) -> None:
    """Raise unless a folder may be put at ``path``: nothing is there, or embeddings that may be replaced."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else {path.name}
    if MANIFEST not in names or not names <= _OURS:
        raise EmbeddingsError(
            f"{path} must be free, or hold embeddings and nothing else",
            got=", ".join(sorted(names - _OURS)[:4]) or f"no {MANIFEST}",
            cure="choose another folder",
        )
    if not overwrite:
        raise EmbeddingsError(
            f"{path} holds embeddings, which are kept", cure="choose another folder, or ask to overwrite"
        )


def clear(folder: Path) -> None:
    """Empty a working folder, unless it holds something that no writer put there."""
    strange = sorted(entry.name for entry in folder.iterdir() if entry.name not in _OURS)
    if strange:
        raise EmbeddingsError(
            f"{folder} must hold nothing but unfinished embeddings",
            got=", ".join(strange[:4]),
            cure="move those files away, or write the embeddings elsewhere",
        )
    for entry in folder.iterdir():
        entry.unlink()
