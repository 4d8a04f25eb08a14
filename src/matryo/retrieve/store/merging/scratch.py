"""A scratch index: a folder inside the index, where a process writes the segments that will replace others.

Its segments have the row numbers and ids of the rows that they copy, but its database lists no rows. The writer of the
index moves the finished folders into the index and commits their records. No record names a scratch folder, so those of
processes that were killed can be removed at any time.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matryo.files import storage, sync_folder
from matryo.retrieve.store.guides import GUIDES, guide_folder
from matryo.retrieve.store.segments.segment import SEGMENTS, segment_folder
from matryo.retrieve.store.sql import records
from matryo.retrieve.store.sql.database import DATABASE, Database

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matryo.retrieve.store.sql.records import GuideRecord, Record

_NAME = re.compile(r"compact-[0-9a-f]{16}(-removed)?")


@dataclass(frozen=True)
class Scratch:
    """The folder of a scratch index, and the segments of the index that it will replace."""

    path: Path
    names: tuple[str, ...]
    """The replaced segments: all that existed when the scratch index was begun."""
    last: int
    """No row of these segments has a larger number; all later rows do."""

    @classmethod
    def of(cls, root: Path, names: Sequence[str], last: int) -> Scratch:
        """Return a new scratch index of the index at ``root``; its folder does not exist yet."""
        return cls(root / f"compact-{secrets.token_hex(8)}", tuple(names), last)

    def remove(self) -> None:
        """Remove the folder, if it exists."""
        shutil.rmtree(self.path, ignore_errors=True)

    def made(self) -> tuple[list[Record], list[GuideRecord]]:
        """The finished segments and guides."""
        with contextlib.closing(Database(self.path / DATABASE, "ro")) as database:
            return database.read(lambda: (records.read_segments(database), records.read_guides(database)))

    def move(self, root: Path, segments: Sequence[Record], guides: Sequence[GuideRecord]) -> None:
        """Move the folders of ``segments`` and ``guides`` into the index at ``root``, durably."""
        moves = [(segment_folder(self.path, segment.name), segment_folder(root, segment.name)) for segment in segments]
        moves += [(guide_folder(self.path, guide.name), guide_folder(root, guide.name)) for guide in guides]
        with storage(root):
            for source, target in moves:
                target.parent.mkdir(exist_ok=True)
                source.rename(target)
            for folder in (root / SEGMENTS, root / GUIDES, root):
                if folder.is_dir():
                    sync_folder(folder)


def sweep_scratch(root: Path, used: Scratch | None = None) -> None:
    """Remove all scratch folders but the one that is in use."""
    with storage(root, "read"):
        folders = [entry for entry in root.iterdir() if _NAME.fullmatch(entry.name)]
    for folder in folders:
        if used is None or folder != used.path:
            shutil.rmtree(folder, ignore_errors=True)
