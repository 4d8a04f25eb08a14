"""Parts: embeddings in one file per range of rows, written where they are made and merged by a manifest only.

A part is ``part-000012.npy`` (vectors), with ``.labels.npy`` and ``.ids.npy`` where rows have these, and
``part-000012.json``, written last, with their checksums. ``parts.json`` lists the parts in the order of their rows; it
is the last file of all. No vector is copied: :func:`gather` makes one embeddings folder of them for one machine.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.embeddings import EmbeddingSet, EmbeddingWriter, Head
from matryo.embeddings.manifest import MANIFEST as EMBEDDINGS
from matryo.errors import EmbeddingsError, InputError
from matryo.files import json_digest, parse_json
from matryo.mapped import map_npy
from matryo.progress import tqdm
from matryo.ray.place import Place

if TYPE_CHECKING:
    from matryo.arrays import Array

__all__ = ["MANIFEST", "Parts", "gather", "write_part", "written_parts"]

MANIFEST = "parts.json"
_FORMAT = 1
_KINDS = {"vectors": ".npy", "labels": ".labels.npy", "ids": ".ids.npy"}


def name_of(number: int) -> str:
    """The name of a part."""
    return f"part-{number:06d}"


def write_part(
    place: Place, number: int, first: int, columns: Mapping[str, Array | None], stamp: str
) -> dict[str, Any]:
    """Write the rows from ``first`` on; return the record of the part. ``stamp`` identifies what made them."""
    files = {}
    for kind, ending in _KINDS.items():
        column = columns.get(kind)
        if column is None:
            continue
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(column), allow_pickle=False)
        content = buffer.getvalue()
        (place / (name_of(number) + ending)).write(content)
        files[kind] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    vectors = columns["vectors"]
    assert vectors is not None
    record = {"number": number, "first": first, "count": len(vectors), "files": files, "stamp": stamp}
    (place / f"{name_of(number)}.json").write(_sealed(record))
    return record


def written_parts(place: Place, stamp: str) -> tuple[dict[int, dict[str, Any]], int]:
    """The records of the complete parts that ``stamp`` identifies, by number, and the number of other parts."""
    found, others = {}, 0
    for name in place.names():
        if name.startswith("part-") and name.endswith(".json"):
            record = _opened(place / name)
            if record is not None and record["stamp"] == stamp:
                found[int(record["number"])] = record
            others += record is not None and record["stamp"] != stamp
    return found, others


@dataclass(frozen=True)
class Parts:
    """Rows on disk that are read by range: parts, an embeddings folder, or a ``.npy`` file."""

    place: Place
    count: int
    dim: int
    records: tuple[dict[str, Any], ...] = ()
    """The parts in the order of their rows; none for a folder or a file."""
    about: Any = None
    """The description of the embeddings, for :func:`gather`."""

    @classmethod
    def open(cls, url: Any) -> Parts:
        """Open what is at a path or a URL, without reading vectors."""
        place = Place.of(url)
        content = (place / MANIFEST).read()
        if content is not None:
            data = _read(content, place / MANIFEST)
            return cls(place, data["count"], data["dim"], tuple(data["parts"]), data["about"])
        whole = _whole(place)
        return cls(place, *whole.shape)

    @classmethod
    def commit(cls, place: Place, records: Mapping[int, Mapping[str, Any]], dim: int, about: Any) -> Parts:
        """Merge parts by writing their manifest; their rows must follow each other."""
        ordered = [dict(records[number]) for number in sorted(records)]
        count = 0
        for record in ordered:
            if record["first"] != count:
                got = f"rows from {record['first']} after {count} rows"
                raise EmbeddingsError("parts must hold every row once", got=got, cure="encode again")
            count += record["count"]
        data = {"format": _FORMAT, "count": count, "dim": dim, "about": about, "parts": ordered}
        (place / MANIFEST).write(_sealed(data))
        return cls(place, count, dim, tuple(ordered), about)

    def ranges(self, rows: int) -> list[tuple[int, int]]:
        """Ranges of about ``rows`` rows as (first, count): whole parts if there are any."""
        if not self.records:
            return [(first, min(rows, self.count - first)) for first in range(0, self.count, rows)]
        ranges = [(record["first"], record["count"]) for record in self.records]
        joined = ranges[:1]
        for first, count in ranges[1:]:
            if joined[-1][1] + count <= rows:
                joined[-1] = joined[-1][0], joined[-1][1] + count
            else:
                joined.append((first, count))
        return joined

    def read(self, first: int, count: int, kind: str = "vectors") -> Array:
        """Some rows of a column; ids are row numbers if they are not stored."""
        parts = [part for _, part in self.batches(first, count, kind)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def batches(self, first: int, count: int, kind: str = "vectors") -> Iterator[tuple[int, Array]]:
        """Yield (number of the first row, rows) of a column, one part at a time."""
        if not self.records:
            yield first, self._column(kind)[first : first + count]
            return
        for record in self.records:
            low, high = max(first, record["first"]), min(first + count, record["first"] + record["count"])
            if low >= high:
                continue
            if kind not in record["files"]:
                if kind != "ids":
                    raise EmbeddingsError(f"{self.place} has no {kind}", cure="encode data with them")
                yield low, np.arange(low, high)
                continue
            whole = _load(self.place / (name_of(record["number"]) + _KINDS[kind]), record["files"][kind])
            yield low, whole[low - record["first"] : high - record["first"]]

    @cached_property
    def _folder(self) -> Any:
        return _whole(self.place, embeddings=True)

    def _column(self, kind: str) -> Array:
        if isinstance(self._folder, EmbeddingSet):
            column = getattr(self._folder, kind)
            if column is None:
                raise EmbeddingsError(f"{self.place} has no {kind}", cure="write them with labels")
            return np.asarray(column)
        return self._folder if kind == "vectors" else np.arange(self.count)


def gather(parts: Parts, out: Any, *, overwrite: bool = False, progress: bool = True) -> EmbeddingSet:
    """Copy parts into one embeddings folder, byte for byte that of one process; an interrupted copy resumes."""
    if parts.about is None:
        raise InputError("gather needs parts", got=parts.place, cure="it is one folder already")
    about = parts.about
    head = None
    if about["head"] is not None:
        path = (parts.place / "head.safetensors").fetched()
        head = Head.load(path)
    writer = EmbeddingWriter(
        out, dim=parts.dim, dtype=about["dtype"], head=head, overwrite=overwrite, fingerprint=about["fingerprint"],
        **about["description"],
    )  # fmt: skip
    with writer, tqdm(desc="gather", total=parts.count, initial=writer.count, unit="row", unit_scale=True, delay=2,
                      disable=not progress) as bar:  # fmt: skip
        for record in parts.records:
            skip = max(0, writer.count - record["first"])
            if skip >= record["count"]:
                continue
            columns = {kind: _load(parts.place / (name_of(record["number"]) + ending), record["files"][kind])[skip:]
                       for kind, ending in _KINDS.items() if kind in record["files"]}  # fmt: skip
            ids = columns.get("ids")
            writer.append(columns["vectors"], columns.get("labels"), None if ids is None else ids.tolist())
            bar.update(len(columns["vectors"]))
    return EmbeddingSet.open(out)


def _load(place: Place, record: Mapping[str, Any]) -> Array:
    """A column of a part, with its checksum verified."""
    content = place.read()
    if content is None or hashlib.sha256(content).hexdigest() != record["sha256"]:
        got = "no such file" if content is None else "other bytes than were written"
        raise EmbeddingsError(f"{place} is damaged", got=got, cure="delete it and its .json, and run the job again")
    array: Array = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def _whole(place: Place, *, embeddings: bool = False) -> Any:
    """The vectors of a folder or a file, mapped into memory; with ``embeddings``, the folder itself."""
    path = place.fetched()
    if (path / EMBEDDINGS).is_file():
        opened = EmbeddingSet.open(path)
        return opened if embeddings else opened.vectors
    if path.suffix == ".npy" and path.is_file():
        array = map_npy(path)
        if array.ndim == 2:
            return array
    cure = "pass an embeddings folder, a .npy file of one row per vector, or a folder of parts"
    raise EmbeddingsError("there must be vectors at this place", got=str(place), cure=cure)


def _sealed(data: Mapping[str, Any]) -> bytes:
    return (json.dumps({**data, "sha256": json_digest(data)}, indent=1, ensure_ascii=False) + "\n").encode()


def _read(content: bytes, place: Place) -> dict[str, Any]:
    try:
        data: dict[str, Any] = dict(parse_json(content))
        if data.pop("sha256", None) != json_digest(data) or data.get("format", _FORMAT) > _FORMAT:
            raise ValueError("other bytes than were written, or a newer version")
    except (TypeError, ValueError) as error:
        raise EmbeddingsError(f"{place} is damaged", got=error, cure="run the job again") from error
    return data


def _opened(place: Place) -> dict[str, Any] | None:
    """The record of a part; None if it is damaged, so that it is made again."""
    content = place.read()
    try:
        return None if content is None else _read(content, place)
    except EmbeddingsError:
        return None
