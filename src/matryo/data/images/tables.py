"""Images in Parquet tables, as Hugging Face publishes datasets: an image file and a label per row. For packing.

A split is the files ``train-00000-of-00294.parquet``, … at any depth; its name ends at the first dash. The column
``image`` (or ``img``, ``jpg``) holds the bytes of a file, alone or in a struct with ``bytes`` and ``path``; the column
``label`` (or ``labels``, ``cls``) holds class indices. Class names come from the metadata of the table if it has them.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from matryo.arguments import checked
from matryo.data.dataset import Dataset
from matryo.data.images.decode import EncodedImages
from matryo.data.split import as_labels, class_names
from matryo.errors import DataError, MissingExtra

_IMAGE, _LABEL = ("image", "img", "jpg"), ("label", "labels", "cls")
_KEPT = 4   # groups of rows in memory: threads read neighbouring rows


class TableImages(EncodedImages):
    """The images of Parquet files, read a group of rows at a time: fast in order, slow at random."""

    def __init__(self, root: Path, paths: list[Path]) -> None:
        with MissingExtra.unless_installed("pyarrow", "arrow"):
            import pyarrow.parquet as parquet
        self._paths, self._names = paths, [path.relative_to(root).as_posix() for path in paths]
        self._groups: list[tuple[int, int]] = []   # the file and the number in it, of each group of rows
        counts, labels = [], []
        for number, path in enumerate(paths):
            with _readable(path), parquet.ParquetFile(path) as file:
                self._image = _column(file.schema_arrow.names, _IMAGE, path)
                label = _column(file.schema_arrow.names, _LABEL, path)
                self._groups += [(number, group) for group in range(file.num_row_groups)]
                counts += [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
                labels.append(np.asarray(file.read(columns=[label])[label]))
        self._starts = np.cumsum([0, *counts])
        super().__init__(as_labels(np.concatenate(labels), int(self._starts[-1]), root.name))
        self._cache: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def encoded(self, index: int) -> bytes:
        """Return the encoded bytes of image ``index``."""
        row = self._row(index)
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        value = self._column_of(group)[row - int(self._starts[group])].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise DataError(
                f"image {self.name(index)} must be stored in the table",
                got=f"{type(data).__name__} in its column {self._image}",
                cure="write the bytes of the image files to the table",
            )
        return data

    def name(self, index: int) -> str:
        """Return the path of the table relative to the root, and the row in its file."""
        row = self._row(index)
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        file = self._groups[group][0]
        first = next(i for i, (number, _) in enumerate(self._groups) if number == file)
        return f"{self._names[file]}#{row - int(self._starts[first])}"

    def _column_of(self, group: int) -> Any:
        import pyarrow.parquet as parquet

        with self._lock:   # one thread reads a group, and the others wait for it
            if group not in self._cache:
                file, number = self._groups[group]
                with _readable(self._paths[file]), parquet.ParquetFile(self._paths[file]) as table:
                    self._cache[group] = table.read_row_group(number, columns=[self._image])[self._image]
                if len(self._cache) > _KEPT:
                    self._cache.popitem(last=False)
            return self._cache[group]


@checked
def table_dataset(root: Path | str) -> Dataset[TableImages]:
    """Open the Parquet files under ``root``, in the layout of this module's docstring."""
    root, files = Path(root), {}   # type: ignore[var-annotated]
    for path in sorted(root.rglob("*.parquet")):
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            files.setdefault(path.stem.split("-")[0], []).append(path)
    if not files:
        raise DataError(
            "a dataset of tables must be a folder with .parquet files",
            got=f"none in {root}" if root.is_dir() else f"{root}, which does not exist",
            cure="check the path; files are named by their split, as train-00000-of-00294.parquet",
        )
    splits = {name: TableImages(root, paths) for name, paths in files.items()}
    return Dataset(root.resolve().name, class_names(splits, _names(next(iter(files.values()))[0])), splits)


def _names(path: Path) -> list[str] | None:
    """Return the class names in the metadata that Hugging Face's library writes, or None."""
    import pyarrow.parquet as parquet

    metadata = parquet.read_schema(path).metadata or {}
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        names = next(features[name]["names"] for name in _LABEL if name in features)
        return [str(name) for name in names]
    except (LookupError, ValueError, TypeError, StopIteration):
        return None


def _column(present: list[str], wanted: tuple[str, ...], path: Path) -> str:
    found = next((name for name in wanted if name in present), None)
    if found is None:
        raise DataError(
            f"{path.name} must have a column {wanted[0]}", got=", ".join(present), cure="rename the column"
        )
    return found


class _readable:
    """Errors of reading a table name its file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        import pyarrow

        if isinstance(error, pyarrow.ArrowException | OSError):
            raise DataError(
                f"{self.path.name} cannot be read as a Parquet table", got=error, cure="copy it again"
            ) from error
