"""Encode on a cluster: workers with the model encode ranges of rows and write parts, which a manifest merges.

A part holds whole batches, so each row is computed in the batch that one process would compute it in. A part is
acknowledged when its record is written; a job that starts again skips the parts that are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import as_integer
from matryo.data import Dataset, open_dataset
from matryo.data.unlabelled import open_unlabelled
from matryo.embeddings import EmbeddingSet
from matryo.embeddings.place import as_place, check_place, sweep_partial
from matryo.errors import EmbeddingsError, InputError
from matryo.files import json_digest
from matryo.progress import tqdm
from matryo.ray.cluster import Cluster
from matryo.ray.parts import MANIFEST, Parts, gather, write_part, written_parts
from matryo.ray.place import Place

if TYPE_CHECKING:
    from matryo.inference import TrainedModel

__all__ = ["Data", "encode"]

_PART_BYTES = 64 << 20
_PARTS = 4   # per worker, at least: the last one to end should not keep the others waiting


@dataclass(frozen=True)
class Data:
    """The data to encode: ``items`` as of ``matryo encode RUN ITEM …``, or a split of a dataset. URLs are fetched."""

    items: tuple[str, ...] = ()
    source: str = ""
    root: str = ""
    split: str = "new"

    def open(self, model: TrainedModel) -> Dataset:
        """The dataset, on this machine."""
        if not self.items:
            root = Path(self.root) if self.root else None
            dataset = open_dataset(self.source, root, classes=model.classes or None)
            labels = getattr(dataset.split(self.split), "labels", None)   # pairs have none
            known = labels is None or not model.classes or (labels >= 0).any()
            return dataset if known else open_dataset(self.source, root)
        fetched = [str(Place.of(item).fetched()) for item in dict.fromkeys(self.items)]
        return Dataset(Path(fetched[0]).name, model.classes, {self.split: open_unlabelled(fetched)})


class _Encoder:
    """A worker: the model and the data, opened once."""

    def __init__(self, run: str, options: dict[str, Any], data: Data, out: str, dtype: str, batch: int) -> None:
        from matryo.inference import load

        self.model = load(run, **options)
        self.items = data.open(self.model).split(data.split)
        self.out, self.dtype, self.batch = Place(out), dtype, batch

    def run(self, number: int, first: int, count: int, ids: Any, stamp: str) -> dict[str, Any]:
        """Encode some rows, and write them as a part."""
        vectors, labels, rows = [], [], 0
        for z, some in self.model.embed(self.items, start=first, batch=self.batch):
            vectors.append(z[: count - rows].astype(self.dtype))
            labels.append(some[: count - rows])
            rows += len(z)
            if rows >= count:
                break
        columns = {"vectors": np.concatenate(vectors), "labels": np.concatenate(labels).astype(np.int64)}
        if not np.isfinite(columns["vectors"]).all():
            raise EmbeddingsError(f"vectors must be finite in {self.dtype}", got=f"a row from {first} on",
                                  cure="use --dtype float32, or look at these items")  # fmt: skip
        return write_part(self.out, number, first, columns | ({} if ids is None else {"ids": ids}), stamp)


def encode(
    run: Any, data: Data, out: Any, *, cluster: Cluster | None = None, keep_parts: bool | None = None,
    dtype: str = "float32", batch: int = 512, part_rows: int | None = None, overwrite: bool = False,
    progress: bool = True, **options: Any,
) -> EmbeddingSet | Parts:  # fmt: skip
    """Encode ``data`` with the model of the folder ``run`` on a cluster.

    Parts are written to ``out``, a URL or a folder that all machines see. With ``keep_parts`` (the default for a URL)
    they stay there, and the result is their :class:`Parts`. Otherwise they are written to ``out``.parts, and gathered
    into one embeddings folder ``out``, which is byte for byte that of one process with one thread on the same kind of
    device. ``options`` are those of :func:`matryo.load`, except that a worker with GPUs uses "cuda".
    """
    from matryo.inference import load
    from matryo.inference.encode import Encoding

    cluster, place = cluster or Cluster(), Place.of(out)
    keep = not place.is_local if keep_parts is None else keep_parts
    run = str(Path(run).absolute())
    options["device"] = "cuda" if cluster.gpus else options.get("device", "cpu")
    model = load(run, **{**options, "device": "cpu"})
    dataset = data.open(model)
    items = dataset.split(data.split)
    if hasattr(items, "pairs"):
        raise InputError("a cluster encodes items, not pairs", got=data.split, cure="encode pairs on one machine")
    model.check_reads(items)
    encoding = Encoding(model, dataset, data.split, dtype, batch, overwrite, progress)
    ids, settings = encoding.settings(items)
    settings["fingerprint"]["device"] = options["device"].split(":")[0]
    parts_at = place if keep else Place(f"{place.url}.parts")
    if not keep:
        sweep_partial(place.path)
        if (place.path / "manifest.json").exists() and not overwrite:
            stored = encoding.stored(place.path, settings["content"], items.labels, ids)
            if (parts_at / MANIFEST).read() is not None:   # of a driver that was killed when it had gathered them
                parts_at.remove()
            return stored
        check_place(as_place(place.path), overwrite)
    work = _Work(run, options, data, parts_at, batch, part_rows)
    with cluster:
        parts = work.encode(cluster, len(items), ids, settings, overwrite=overwrite, progress=progress)
    if keep:
        return parts
    gathered = gather(parts, place.path, overwrite=overwrite, progress=progress)
    parts_at.remove()
    return gathered


@dataclass(frozen=True)
class _Work:
    """The parts of one call."""

    run: str
    options: dict[str, Any]
    data: Data
    place: Place
    batch: int
    part_rows: int | None

    def encode(
        self, cluster: Cluster, count: int, ids: Any, settings: dict[str, Any], *, overwrite: bool, progress: bool
    ) -> Parts:
        """Encode the parts that are missing, and write their manifest."""
        about = _about(settings)
        stamp = json_digest({"about": about, "options": self.options})
        rows = _part_rows(self.part_rows, self.batch, settings["dim"], count, cluster.room())
        given = self.part_rows is not None
        found, rows = _resumable(self.place, stamp, rows, given=given, overwrite=overwrite)
        if settings["head"] is not None:
            _save_head(settings["head"], self.place)
        jobs = []
        for number, first in enumerate(range(0, count, rows)):
            if number not in found:
                own = None if ids is None else np.array(ids[first : first + rows])
                jobs.append((number, first, min(rows, count - first), own, stamp))
        arguments = (self.run, self.options, self.data, self.place.url, settings["dtype"], self.batch)
        done = sum(record["count"] for record in found.values())
        with tqdm(desc=f"encode on {cluster.address}", total=count, initial=done, unit="row", unit_scale=True,
                  delay=2, disable=not progress) as bar:  # fmt: skip
            for _, record in cluster.run(_Encoder, arguments, jobs):
                found[record["number"]] = record
                bar.update(record["count"])
        return Parts.commit(self.place, found, settings["dim"], about)


def _part_rows(given: int | None, batch: int, dim: int, count: int, workers: int) -> int:
    """The rows of a part: whole batches."""
    if given is not None:
        as_integer(given, "part_rows", 1)
        if given % batch:
            raise InputError(f"part_rows must be a multiple of the batch, {batch}", got=given, cure="round it up")
        return given
    few = min(_PART_BYTES // (4 * dim), -(-count // (_PARTS * workers)))
    return max(1, -(-few // batch)) * batch


def _about(settings: dict[str, Any]) -> dict[str, Any]:
    """The entry of the manifest of parts that :func:`gather` needs."""
    described = {name: value for name, value in settings.items() if name not in ("dim", "dtype", "head", "fingerprint")}
    described["nesting"] = list(settings["nesting"].dims)
    described = {name: list(value) if isinstance(value, tuple) else value for name, value in described.items()}
    head = None if settings["head"] is None else settings["head"].kind
    return {"dtype": settings["dtype"], "fingerprint": settings["fingerprint"], "head": head, "description": described}


def _resumable(
    place: Place, stamp: str, rows: int, *, given: bool, overwrite: bool
) -> tuple[dict[int, dict[str, Any]], int]:
    """The parts of an earlier attempt, and the rows per part; those of another job are an error, or are replaced.

    An attempt on another number of workers continues with the rows per part of the first one.
    """
    found, others = written_parts(place, stamp)   # damaged records are neither: their parts are made again
    later = next((record for record in found.values() if record["number"]), None)
    before = rows if later is None else later["first"] // later["number"]
    foreign = [name for name in place.names()
               if not name.startswith("part-") and name not in (MANIFEST, "head.safetensors")]  # fmt: skip
    differ = others or (given and before != rows)
    if foreign or (differ and not overwrite):
        got = ", ".join(foreign[:4]) or f"{others or len(found)} parts of another job"
        cure = "choose another --out, or repeat the original command (--force replaces parts)"
        raise EmbeddingsError(f"{place} must hold nothing but the parts of this job", got=got, cure=cure)
    if differ:
        place.remove()
        return {}, rows
    return {number: record for number, record in found.items() if record["first"] == number * before}, before


def _save_head(head: Any, place: Place) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        head.save(Path(folder) / "head.safetensors")
        (place / "head.safetensors").write((Path(folder) / "head.safetensors").read_bytes())


