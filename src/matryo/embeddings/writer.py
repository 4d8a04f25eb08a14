"""EmbeddingWriter: write embeddings batch by batch, durably, and resume an interrupted write.

Rows are appended to files in ``<path>.partial/``. After each sync of these files, ``progress.json`` is replaced and
records how many rows are durable. When the writer is opened again, later rows are cut off. The last step is one rename,
so ``<path>`` is a complete embeddings folder, the old or the new, or does not exist.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.embeddings.columns import ArrayFile, LinesFile
from matryo.embeddings.head import HEAD, Head
from matryo.embeddings.manifest import FILES, Description, FileRecord, Manifest, as_plain, describe
from matryo.embeddings.place import IDS, OURS, PARTIAL, PROGRESS, as_place, check_place, check_work, clear
from matryo.embeddings.rows import as_ids, as_labels, as_vectors, check_normalized, check_unique, has_unit_norms
from matryo.errors import EmbeddingsError, MatryoError
from matryo.files import (
    json_digest,
    lock,
    parse_json,
    remove_temporaries,
    replacing,
    sha256,
    storage,
    write_json,
)
from matryo.folders import swap_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self, Unpack

_SYNC_BYTES = 64 << 20
_STATE = ("count", "unit", "columns")   # fields of progress.json that change; all others identify the write


class EmbeddingWriter:
    """Write an embeddings folder batch by batch.

    A ``fingerprint`` of everything that determines the bytes (the checksum of the model, the dataset, …) makes the
    write resumable. If the writer is opened again with the same fingerprint, ``count`` is the number of rows already
    written, and the caller continues with that row. Without a fingerprint, or with another one, unfinished rows are an
    error. ``overwrite=True`` drops them instead, and replaces finished embeddings at ``path``.

    All batches must have the columns (labels, ids) of the first batch. Labels may be class names if ``classes`` is
    given. A row is durable after at most ``sync_seconds``. ``work`` is an empty folder of the caller's: the embeddings
    are finished there, and the caller moves them to ``path``.
    """

    @checked
    def __init__(
        self,
        path: str | Path,
        *,
        dim: int,
        dtype: str = "float32",
        fingerprint: Mapping[str, Any] | str | None = None,
        head: Head | None = None,
        overwrite: bool = False,
        work: Path | None = None,
        sync_seconds: float = 1.0,
        **description: Unpack[Description],
    ) -> None:
        self.path = as_place(path)
        self.manifest = describe(dim, dtype, **description)
        self.count = 0
        check_head(head, self.manifest)
        self._head = head
        self._fingerprint = as_plain("fingerprint", fingerprint)
        self._overwrite = overwrite
        self._moves = work is None
        self._folder = work or self.path.with_name(self.path.name + PARTIAL)
        self._sync_seconds = sync_seconds
        self._synced, self._unsynced = time.monotonic(), 0
        self._unit = True
        self._ids: dict[int | str, None] = {}   # an ordered set
        self._columns: dict[str, ArrayFile | LinesFile] = {}
        self._lock = -1

    def __enter__(self) -> Self:
        check_place(self.path, self._overwrite)
        with storage(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock(self._folder)
            try:
                remove_temporaries(self._folder, OURS)
                self._open()
            except BaseException:
                self._close()
                raise
        return self

    def append(self, vectors: Any, labels: Any = None, ids: Any = None) -> None:
        """Append rows. They are durable after about a second, or after :meth:`flush`."""
        values = self._check_rows(vectors, labels, ids)
        rows = values["vectors.npy"]
        if len(rows) == 0:
            return
        with storage(self._folder):
            for name, column in self._columns.items():   # ids come last: only that file keeps its own end
                column.write(values[name], self.count)
        self._ids.update(dict.fromkeys(values.get(IDS, ())))
        self._unit = self._unit and has_unit_norms(rows)
        self.count += len(rows)
        self._unsynced += rows.nbytes
        if self._unsynced >= _SYNC_BYTES or time.monotonic() - self._synced >= self._sync_seconds:
            self.flush()

    def flush(self) -> None:
        """Make all appended rows durable: neither a kill nor a power cut loses them afterwards."""
        if self.count:
            with storage(self._folder):
                for column in self._columns.values():
                    column.sync()
            self._save_progress()
        self._synced, self._unsynced = time.monotonic(), 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self.count:
                with storage(self._folder):
                    self._finish()
                return
            # The error being raised matters more than a disk error here; rows synced before are safe.
            with contextlib.suppress(OSError, MatryoError):
                self.flush() if self.count else self._drop()
        finally:
            self._close()
        if kind is None:
            raise EmbeddingsError("embeddings must have at least one row", got=0, cure="append rows first")

    def _open(self) -> None:
        done = self._resumable()
        if done is None:
            check_work(self._folder)
            if self._moves:
                self._save_progress()   # no rows: a kill while the old ones are deleted is harmless
            clear(self._folder, keep=(PROGRESS,))
            return
        self.count, self._unit = done["count"], done["unit"]
        for name in done["columns"]:
            self._columns[name] = self._column(name)
            self._ids.update(dict.fromkeys(self._columns[name].resume(self.count) or ()))

    def _resumable(self) -> dict[str, Any] | None:
        done = _read_progress(self._folder / PROGRESS)
        if done is None or done["count"] == 0:
            return None
        differ = _differences(done, self._progress())
        if not differ and self._fingerprint is not None:
            return done
        if self._overwrite:
            return None
        raise EmbeddingsError(
            f"{self._folder} holds {done['count']} rows of another write, which cannot be resumed",
            got="; ".join(differ) or "no fingerprint",
            cure="repeat the original command, delete that folder, or pass overwrite=True (--force)",
        )

    def _progress(self) -> dict[str, Any]:
        settings = {**self.manifest.to_json(), "head": self._head is not None, "fingerprint": self._fingerprint}
        state = {"count": self.count, "unit": self._unit, "columns": list(self._columns)}
        return {**json.loads(json.dumps(settings)), **state}

    def _save_progress(self) -> None:
        progress = self._progress()
        write_json(self._folder / PROGRESS, {**progress, "sha256": json_digest(progress)})

    def _check_rows(self, vectors: Any, labels: Any, ids: Any) -> dict[str, Any]:
        rows = as_vectors(vectors, self.manifest.dtype, self.manifest.dim)
        if self.manifest.normalized:
            check_normalized(rows)
        values: dict[str, Any] = {"vectors.npy": rows}
        if labels is not None:
            values["labels.npy"] = as_labels(labels, len(rows), self.manifest.classes)
        if ids is not None:
            values[IDS] = as_ids(ids, len(rows))
            check_unique(values[IDS], self._ids)
        if self.count == 0:
            self._close_columns()
            with storage(self._folder):
                self._columns = {name: self._column(name) for name in values}
        if values.keys() != self._columns.keys():
            raise EmbeddingsError(
                "every batch must have the columns of the first",
                got=f"{', '.join(values)} after {', '.join(self._columns)}",
                cure="pass labels and ids with every batch, or with none",
            )
        return values

    def _column(self, name: str) -> ArrayFile | LinesFile:
        if name == IDS:
            return LinesFile(self._folder / name)
        if name == "labels.npy":
            return ArrayFile(self._folder / name, "int64")
        return ArrayFile(self._folder / name, self.manifest.dtype, (self.manifest.dim,))

    def _finish(self) -> None:
        for column in self._columns.values():
            if isinstance(column, ArrayFile):
                column.finish(self.count)
        if self._ids:
            with replacing(self._folder / "ids.npy") as file:
                np.save(file, np.array(list(self._ids)), allow_pickle=False)
        if self._head is not None:
            self._head.save(self._folder / HEAD)
        present = {*self._columns, *(("ids.npy",) if self._ids else ()), *((HEAD,) if self._head else ())}
        self.manifest = dataclasses.replace(
            self.manifest,
            count=self.count,
            normalized=self._unit if self.manifest.normalized is None else self.manifest.normalized,
            files={name: _record(self._folder / name) for name in FILES if name in present},
        )
        self.manifest.save(self._folder)
        assert Manifest.load(self._folder) == self.manifest   # what cannot be read replaces nothing
        if self._moves:
            check_place(self.path, self._overwrite)
            (self.path / PROGRESS).unlink(missing_ok=True)   # else the older folder could be taken for unfinished rows
            swap_in(self._folder, self.path)
        final = self.path if self._moves else self._folder
        with contextlib.suppress(OSError):   # the embeddings are complete; these two files are no part of them
            for name in (PROGRESS, IDS):   # after the rename: until then, an interrupted write needs them to resume
                (final / name).unlink(missing_ok=True)

    def _drop(self) -> None:
        clear(self._folder)
        self._folder.rmdir()

    def _close_columns(self) -> None:
        for column in self._columns.values():
            column.file.close()

    def _close(self) -> None:
        self._close_columns()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def check_head(head: Any, manifest: Manifest) -> None:
    """Raise unless ``head`` is None or a head for the vectors and classes of ``manifest``."""
    if head is None:
        return
    if not isinstance(head, Head):
        raise EmbeddingsError("head must be a Head", got=type(head).__name__, cure="use Head.tied or Head.separate")
    head.check_fits(manifest.dim, len(manifest.classes))


def _record(path: Path) -> FileRecord:
    return FileRecord(path.stat().st_size, sha256(path))


def _read_progress(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        done = dict(parse_json(path.read_bytes()))
        if not all(name in done for name in _STATE):
            raise ValueError("a field is missing")
        if "sha256" in done and done.pop("sha256") != json_digest(done):   # folders of early versions have none
            raise ValueError("other bytes than were written")
        if not isinstance(done["count"], int) or not {*done["columns"]} <= {"vectors.npy", "labels.npy", IDS}:
            raise ValueError("other columns than a writer has")
    except (TypeError, ValueError, RecursionError) as error:
        raise EmbeddingsError(f"{path} is damaged", got=error, cure=f"delete {path.parent}") from error
    return done


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before, after = _flat(old), _flat(new)
    names = [name for name in before | after if name not in _STATE and before.get(name) != after.get(name)]
    return [f"{name} was {before.get(name)!r:.40}, is {after.get(name)!r:.40}" for name in names]


def _flat(progress: Mapping[str, Any]) -> dict[str, Any]:
    # A fingerprint with several parts is compared part by part, so that the message names those that differ.
    fingerprint = progress.get("fingerprint")
    rest = {name: value for name, value in progress.items() if name != "fingerprint"}
    parts = fingerprint if isinstance(fingerprint, dict) else {"": fingerprint}
    return rest | {f"fingerprint.{name}".rstrip("."): value for name, value in parts.items()}
