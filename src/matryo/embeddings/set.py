"""EmbeddingSet: memory-mapped vectors on disk with ids, labels and a manifest.

>>> import tempfile
>>> folder = tempfile.mkdtemp()
>>> mine = EmbeddingSet.write(f"{folder}/mine", [[3, 4, 0], [0, 1, 1]], labels=[0, 1], model="by hand")
>>> len(mine), mine.dim, mine.nesting.dims
(2, 3, (3,))
>>> mine.at(2)
array([[0.6, 0.8],
       [0. , 1. ]], dtype=float32)
>>> EmbeddingSet.open(f"{folder}/mine").verify()      # compares every checksum
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.arrays import as_array
from matryo.embeddings.head import HEAD, Head
from matryo.embeddings.manifest import Description, Manifest, check_dtype, describe
from matryo.embeddings.place import PARTIAL, as_place, check_place, sweep_partial
from matryo.embeddings.rows import as_ids, as_labels, as_vectors, check_normalized, check_unique, class_names
from matryo.embeddings.writer import EmbeddingWriter, check_head
from matryo.errors import EmbeddingsError, StorageError, shown
from matryo.files import sha256, storage
from matryo.folders import replacing_folder, restore
from matryo.mapped import map_npy
from matryo.nesting import as_nesting, truncate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Unpack

    from matryo.arrays import Array, Floats, Integers
    from matryo.nesting import Nesting

_BATCH_BYTES = 64 << 20
_BATCH_ENTRIES = 8 << 20   # vector entries, or numbers computed from them, held at a time


@dataclass(frozen=True, eq=False)
class EmbeddingSet:
    """Vectors with ids, labels and a manifest. Create one with :meth:`open`, :meth:`write` or :meth:`of`."""

    path: Path
    manifest: Manifest
    vectors: Array
    """[n, dim] as stored: float32 or float16. The manifest records whether they are normalised."""
    labels: Integers | None
    ids: Array
    """int64 or strings; 0, 1, 2, … by default."""
    kept_head: Head | None = None
    """The head of a set in memory. :attr:`head` reads the head of a set on disk on first use."""

    @classmethod
    @checked
    def open(cls, path: str | Path) -> EmbeddingSet:
        """Open a folder without reading its vectors; :meth:`verify` reads and checks every byte.

        The vectors stay those that were opened if the folder is overwritten later.
        """
        with storage(path, "read"):
            folder = Path(path).absolute()   # the head is read later, perhaps in another working directory
        while True:
            with storage(folder, "read"):
                restore(folder)
                before = _version(folder)
            try:
                return cls._opened(folder, before)
            except (EmbeddingsError, StorageError):
                if _version(folder) == before:   # else a writer replaced the folder in between
                    raise

    @classmethod
    def _opened(cls, folder: Path, version: object) -> EmbeddingSet:
        _check_there(folder)
        manifest = Manifest.load(folder)
        for name, record in manifest.files.items():
            size = (folder / name).stat().st_size if (folder / name).is_file() else None
            if size != record.size:
                state = "no such file" if size is None else f"{size} bytes instead of {record.size}"
                raise _damaged(folder / name, state)
        labels = _column(folder, "labels.npy", manifest)
        ids = _column(folder, "ids.npy", manifest)
        vectors = _column(folder, "vectors.npy", manifest)
        assert vectors is not None   # every manifest lists the vectors
        if _version(folder) != version:
            raise _damaged(folder, "replaced while it was opened")
        return cls(folder, manifest, vectors, labels, np.arange(manifest.count) if ids is None else ids)

    @classmethod
    @checked
    def write(
        cls,
        path: str | Path,
        vectors: Any,
        *,
        ids: Any = None,
        labels: Any = None,
        dtype: str = "float32",
        head: Head | None = None,
        overwrite: bool = False,
        **description: Unpack[Description],
    ) -> EmbeddingSet:
        """Write ``vectors`` as an embeddings folder and open it.

        Vectors may be an array, lists, a pandas or polars table, a column of lists or a Hugging Face dataset.
        ``labels`` are class indices, or class names: without ``classes``, the sorted names become the classes.
        Other fields of :class:`Description` (nesting, model, normalized, …) are stored in the manifest. Everything is
        checked first and written to a temporary folder, which takes the place of ``path`` in one step.
        """
        place = as_place(path)
        check_place(place, overwrite)
        check_dtype(dtype)
        rows = as_vectors(vectors, dtype)
        description["classes"] = _classes(description, labels)
        manifest = describe(rows.shape[1], dtype, **description)
        check_head(head, manifest)
        labels = None if labels is None else as_labels(labels, len(rows), manifest.classes)
        ids = None if ids is None else as_ids(ids, len(rows))
        if manifest.normalized:
            check_normalized(rows)
        sweep_partial(place)
        with replacing_folder(place) as work:
            with EmbeddingWriter(
                place, dim=rows.shape[1], dtype=dtype, head=head, overwrite=overwrite, work=work,
                sync_seconds=float("inf"), **description,
            ) as writer:  # fmt: skip
                writer.append(rows, labels, ids)
            written = cls.open(work)   # before the exchange, so that no error can come after it
            check_place(place, overwrite)   # again, because writing takes a while
        return replace(written, path=place)

    @classmethod
    @checked
    def of(
        cls, vectors: Any, *, ids: Any = None, labels: Any = None, head: Head | None = None,
        **description: Unpack[Description],
    ) -> EmbeddingSet:  # fmt: skip
        """Return ``vectors`` as a set in memory; arguments and checks are those of :meth:`write`.

        >>> EmbeddingSet.of([[3, 4, 0], [0, 1, 1]], labels=[0, 1]).at(2)
        array([[0.6, 0.8],
               [0. , 1. ]], dtype=float32)
        """
        rows = as_vectors(vectors, "float32")
        description["classes"] = _classes(description, labels)
        manifest = replace(describe(rows.shape[1], "float32", **description), count=len(rows))
        if manifest.normalized:
            check_normalized(rows)
        check_head(head, manifest)
        kept_labels = None if labels is None else as_labels(labels, len(rows), manifest.classes)
        kept_ids = np.arange(len(rows)) if ids is None else np.asarray(as_ids(ids, len(rows)))
        return cls(Path("memory"), manifest, rows, kept_labels, kept_ids, head)

    def select(self, rows: Any) -> EmbeddingSet:
        """Return the set restricted to ``rows`` (indices or a mask), in memory."""
        chosen = _chosen(rows, self.count)
        return replace(
            self,
            manifest=replace(self.manifest, count=len(chosen), files={}),
            vectors=np.asarray(self.vectors)[chosen],
            labels=None if self.labels is None else np.asarray(self.labels)[chosen],
            ids=np.asarray(self.ids)[chosen],
            kept_head=self.head,
        )

    @checked
    def transformed(
        self, vectors: Any, *, head: Head | None = None, nesting: Nesting | Iterable[int] | None = None
    ) -> EmbeddingSet:
        """Return this set with other ``vectors``, in memory: ids, labels and classes stay, the head is replaced."""
        rows = as_vectors(vectors, "float32")
        if len(rows) != self.count:
            raise EmbeddingsError(
                f"there must be a vector for each of the {self.count} in {self.path}",
                got=len(rows),
                cure=f"pass {self.count} vectors",
            )
        manifest = replace(
            self.manifest, dim=rows.shape[1], dtype="float32", normalized=None, files={},
            nesting=as_nesting([rows.shape[1]] if nesting is None else nesting),
        )  # fmt: skip
        return replace(self, manifest=manifest, vectors=rows, kept_head=head)

    @property
    def nesting(self) -> Nesting:
        """The dims at which the vectors are meant to be used."""
        return self.manifest.nesting

    @property
    def dim(self) -> int:
        """The number of columns per vector."""
        return self.manifest.dim

    @property
    def count(self) -> int:
        """The number of vectors."""
        return self.manifest.count

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the order of the labels; empty if there are none."""
        return self.manifest.classes

    @cached_property
    def head(self) -> Head | None:
        """The classifier trained with the encoder, if it was stored."""
        if HEAD not in self.manifest.files:
            return self.kept_head
        self._check_bytes(HEAD)   # of the folder that was opened, and not of one that has replaced it
        return Head.load(self.path / HEAD)

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        about = self.manifest
        return f"EmbeddingSet({str(self.path)!r}, {about.count} × {about.dim} {about.dtype}, {about.title!r})"

    @checked
    def at(self, dim: int, normalize: bool = True) -> Floats:
        """Return the first ``dim`` columns of all vectors as float32, normalised again by default."""
        prefix = np.array(truncate(self.vectors, dim, normalize=False), np.float32)
        return truncate(prefix, dim, normalize)

    @checked
    def batches(self, rows: int | None = None) -> Iterator[tuple[int, Floats]]:
        """Iterate over (index of the first row, vectors as float32), ``rows`` at a time (by default 64 MB)."""
        step = rows or max(1, _BATCH_BYTES // (4 * self.dim))
        for start in range(0, self.count, step):
            yield start, np.array(self.vectors[start : start + step], np.float32)

    @checked
    def batches_of(self, rows: Integers, width: int) -> Iterator[tuple[slice, Integers, Floats]]:
        """Iterate over increasing ``rows``: their places in it as a slice, the rows themselves, and their vectors.

        A batch fits in memory together with ``width`` further numbers per row, such as logits.
        """
        done = 0
        for start, vectors in self.batches(max(1, _BATCH_ENTRIES // max(width, self.dim))):
            here = rows[(rows >= start) & (rows < start + len(vectors))]
            yield slice(done, done + len(here)), here, vectors[here - start]
            done += len(here)

    def verify(self) -> None:
        """Read every file, and raise unless its checksum and its content agree with the manifest."""
        for name in self.manifest.files:
            self._check_bytes(name)
        if self.labels is not None:
            as_labels(np.asarray(self.labels), self.count, self.classes)
        check_unique(np.asarray(self.ids).tolist())
        for _, vectors in self.batches():
            as_vectors(vectors)   # finite
            if self.manifest.normalized:
                check_normalized(vectors)
        check_head(self.head, self.manifest)

    def _check_bytes(self, name: str) -> None:
        with storage(self.path / name, "read"):
            if sha256(self.path / name) == self.manifest.files[name].sha256:
                return
        if Manifest.load(self.path) != self.manifest:
            raise EmbeddingsError(f"{self.path} was overwritten after it was opened", cure="open it again")
        raise _damaged(self.path / name, "other bytes than were written")


def _classes(description: Description, labels: Any) -> Any:
    """The classes of the description; without any, the names in ``labels``."""
    classes = description.get("classes")
    none = classes is None or (isinstance(classes, list | tuple) and not classes)
    return class_names(labels) if none else classes


def _version(folder: Path) -> object:
    """A value that changes when another folder takes the place of ``folder``."""
    try:
        about = folder.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_ctime_ns


def _check_there(folder: Path) -> None:
    if folder.is_dir():
        return
    partial = folder.with_name(folder.name + PARTIAL) if folder.name else folder
    if partial.is_dir():
        raise EmbeddingsError(
            "these embeddings are not finished", got=partial, cure="run the command that wrote them again to resume"
        )
    raise EmbeddingsError("there must be an embeddings folder", got=folder, cure="check the path")


def _column(folder: Path, name: str, manifest: Manifest) -> Array | None:
    if name not in manifest.files:
        return None
    try:
        array = map_npy(folder / name)
    except OSError:   # too many open files, for example: the file may be intact
        raise
    except Exception as error:   # numpy's parser raises errors of many types for a damaged header
        raise _damaged(folder / name, str(error)) from error
    shape = (manifest.count, manifest.dim) if name == "vectors.npy" else (manifest.count,)
    dtype = manifest.dtype if name == "vectors.npy" else "int64"
    text = name == "ids.npy" and array.dtype.kind == "U"
    if array.shape != shape or not (text or array.dtype == dtype) or not array.dtype.isnative or array.flags.fnc:
        raise _damaged(folder / name, f"{array.dtype} {array.shape}, unlike the manifest")
    return array


def _damaged(path: Path, state: str) -> EmbeddingsError:
    return EmbeddingsError(
        f"{path} is damaged", got=state, cure="restore it from a copy, or write the embeddings again"
    )


def _chosen(rows: Any, count: int) -> Integers:
    """The row numbers of ``rows``: indices, which may count from the end, a mask or a slice."""
    if isinstance(rows, slice):
        return np.arange(count)[rows]
    array = as_array(rows, "rows", EmbeddingsError)
    array = array.astype(np.int64) if array.size == 0 else array
    mask = array.dtype == np.bool_ and array.shape == (count,)
    numbers = array.ndim == 1 and array.dtype.kind in "iu"
    if not mask and not (numbers and (not array.size or -count <= array.min() <= array.max() < count)):
        raise EmbeddingsError(
            f"rows must be indices below {count}, or a mask of {count} booleans",
            got=f"{array.dtype}, shape {array.shape}: {shown(rows)}",
            cure="pass a list of integers",
        )
    return np.arange(count)[array]
