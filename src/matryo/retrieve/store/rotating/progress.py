"""Progress: the finished segments of a rotation, which an interrupted one leaves for the next call to resume.

They lie in ``rotate-KEY`` inside the index until the commit. The key is a digest of the map, of the segments and of the
live rows, so finished segments are used again only for what they hold. Nothing names them, so they may be removed at
any time.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING

from matryo.embeddings.manifest import FileRecord
from matryo.errors import MatryoError
from matryo.files import json_digest, storage, sync_folder, write_json
from matryo.retrieve.store.segments.pieces import regroup
from matryo.retrieve.store.segments.segment import SEGMENTS, segment_folder, verify_segment, write_segment
from matryo.retrieve.store.sql.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import Any

    from matryo.retrieve.store.about import About
    from matryo.retrieve.store.segments.pieces import Piece

_FOLDER, _FILE = "rotate-", "progress.json"
_NAME = re.compile(rf"{_FOLDER}[0-9a-f]{{16}}")


class Progress:
    """The finished segments of the rotation with a key."""

    def __init__(self, root: Path, key: Any) -> None:
        self._root, self._folder = root, root / f"{_FOLDER}{json_digest(key)[:16]}"
        sweep_progress(root, self._folder)
        self.records = list(self._finished())

    @property
    def rows(self) -> int:
        """The number of live rows in the finished segments."""
        return sum(record.rows for record in self.records)

    def write(self, about: About, pieces: Iterable[Piece], most: int) -> None:
        """Write the rows that are left, as segments of ``most`` rows. After an interrupt, the finished ones stay."""
        with storage(self._root):
            self._folder.mkdir(exist_ok=True)
        try:
            for piece in regroup(pieces, most):
                self.records.append(write_segment(self._folder, about, piece))
                write_json(self._folder / _FILE, [asdict(record) for record in self.records])
        except KeyboardInterrupt:
            raise
        except BaseException:   # a full disk needs the space
            self.remove()
            raise

    def move(self) -> list[Record]:
        """Move the segments into the index, durably, and return what a commit must name."""
        with storage(self._root):
            (self._root / SEGMENTS).mkdir(exist_ok=True)
            for record in self.records:
                segment_folder(self._folder, record.name).rename(segment_folder(self._root, record.name))
            for folder in (self._root / SEGMENTS, self._root):
                sync_folder(folder)
        self.remove()
        return self.records

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _finished(self) -> Iterator[Record]:
        """The segments whose bytes are those that were written, up to the first that is not."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, MatryoError):
            for entry in json.loads((self._folder / _FILE).read_bytes()):
                files = {name: FileRecord(**facts) for name, facts in entry["files"].items()}
                record = Record(entry["name"], entry["first"], entry["rows"], files)
                verify_segment(self._folder, record)
                yield record


def sweep_progress(root: Path, used: Path | None = None) -> None:
    """Remove what other rotations left."""
    with storage(root, "read"):
        folders = [entry for entry in root.iterdir() if _NAME.fullmatch(entry.name)]
    for folder in folders:
        if folder != used:
            shutil.rmtree(folder, ignore_errors=True)
