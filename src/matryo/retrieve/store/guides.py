"""Guides of segments on disk: folders beside the vectors, from which they can always be built again.

Like a segment, a guide exists once its record is committed. It is removed together with its segment.
"""

from __future__ import annotations

import re
import secrets
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from matryo.errors import EmbeddingsError, IndexFolderError
from matryo.files import sha256, storage
from matryo.retrieve.store.sql.records import GuideRecord
from matryo.retrieve.vectors.array_folder import verify_arrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from matryo.retrieve.guides.guide import Guide

GUIDES = "guides"
_NAME = re.compile(r"[a-z]+-[0-9a-f]{16}|\.[a-z]+-[0-9a-f]{16}\.[0-9a-f]{8}\.tmp")   # the latter if killed


def guide_folder(root: Path, name: str) -> Path:
    """Return the folder of a guide."""
    return root / GUIDES / name


def write_guide(root: Path, segment: str, kind: str, fields: Mapping[str, Any], guide: Guide) -> GuideRecord:
    """Write ``guide`` to a new folder, and return the record to commit."""
    name = f"{kind}-{secrets.token_hex(8)}"   # never reused: a reader cannot take a new guide for an old one
    folder = guide_folder(root, name)
    with storage(folder):
        folder.parent.mkdir(exist_ok=True)
        guide.write(folder)
    return GuideRecord(name, segment, kind, dict(fields), sha256(folder / f"{kind}.json"))


def verify_guide(root: Path, record: GuideRecord) -> None:
    """Read every byte of a guide; raise an error that names the file if a checksum differs."""
    folder, header = guide_folder(root, record.name), f"{record.kind}.json"
    with damaged_guide(folder):
        if not (folder / header).is_file() or sha256(folder / header) != record.header:
            raise EmbeddingsError(f"{folder / header} is damaged", got="other bytes than were written")
        verify_arrays(folder, header)


def is_intact(root: Path, record: GuideRecord) -> bool:
    """Whether every byte of a guide is as it was written."""
    try:
        verify_guide(root, record)
    except IndexFolderError:
        return False
    return True


@contextmanager
def damaged_guide(folder: Path) -> Iterator[None]:
    """Raise errors about a damaged guide with their cure: to build it again."""
    try:
        yield
    except EmbeddingsError as error:
        problem = str(error).partition(" (got ")[0]   # without the cure of other folders
        raise IndexFolderError(problem, cure="index.build() builds the guide again") from error
    except (KeyError, TypeError) as error:   # a header of something else
        cure = "index.build() builds the guide again"
        raise IndexFolderError(f"{folder} is damaged", got=repr(error), cure=cure) from error


def sweep_guides(root: Path, records: Sequence[GuideRecord]) -> None:
    """Remove the folders without a record: guides that were replaced, or whose writer was killed."""
    names, folder = {record.name for record in records}, root / GUIDES
    with storage(folder, "read"):
        entries = list(folder.iterdir()) if folder.is_dir() else []
    for entry in entries:
        if _NAME.fullmatch(entry.name) and entry.name not in names:
            shutil.rmtree(entry, ignore_errors=True)
