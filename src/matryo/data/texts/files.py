"""Texts in files: labelled ones, and a corpus without labels; a file a split.

A split is ``root/<split>.jsonl`` (or ``.tsv``, ``.csv``, ``.parquet``, and ``.gz`` behind the first three), or numbered
parts of one, ``train-00000-of-00002.parquet``. Columns:

- ``text`` (or ``sentence``, ``document``), the text;
- ``label``, perhaps: the name of its class, or none where that is unknown;
- ``id`` (or ``_id``), perhaps: a stable id; without, a text is called by its split and place, "train#7".

All splits share one list of classes: that of ``train``, or without one the union, sorted. ``classes.txt`` (one a line)
or ``classes.json`` (a list) fixes it instead, and a label may then be an index. ``superclasses.json`` gives each
class its superclass. A corpus has no labels, and may be plain text, ``<split>.txt``, one document a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.data.class_names import in_order, labels_by_name, listed_classes, superclasses
from matryo.data.dataset import Dataset
from matryo.data.split import align, all_different
from matryo.data.texts.rows import TextRows, TextStore
from matryo.data.texts.tables import TABLES, lines_of, rows_of, split_files, unique
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["corpus_folder", "text_folder"]

_TEXT = ("text", "sentence", "document")
_ID = ("id", "_id")


def text_folder(root: Path | str, classes: Sequence[str] | None = None) -> Dataset:
    """The tables under ``root`` as a dataset of texts; this module's docstring says what they may hold.

    With ``classes`` (say, those of a trained model) labels are indices into that list, and texts of any other class
    are UNKNOWN. Without, a label that is not in ``train`` is an error.
    """
    root = Path(root)
    read = {split: _read(paths) for split, paths in split_files(root).items()}
    listed = listed_classes(root)
    known = [read["train"]] if "train" in read else list(read.values())
    names = listed or tuple(classes or in_order({key for one in known for key in one.places}))
    all_different(names)
    splits = {}
    for split, one in read.items():
        labels = labels_by_name(one.keys, names, one.places, indices=bool(listed), strict=not classes)
        splits[split] = TextRows(one.texts, labels, one.ids, source=split)
    groups, parents = superclasses(root, names, {}, strict=not classes)
    return align(Dataset(root.resolve().name, names, splits, groups, parents), classes)


def corpus_folder(root: Path | str, classes: Sequence[str] | None = None) -> Dataset:
    """Documents without labels: a line of a ``.txt`` file each, or the column ``text`` of a table.

    ``classes`` are taken over, so that any source may be opened for any model; no document has one.
    """
    root = Path(root)
    splits = {
        split: TextRows(TextStore.pack(_documents(paths)), source=split)
        for split, paths in split_files(root, (*TABLES, "txt")).items()
    }
    return Dataset(root.resolve().name, tuple(classes or ()), splits)


@dataclass(frozen=True)
class _Read:
    """One split as it was read: the texts, the label of each as written, where each label was met first, and ids."""

    texts: TextStore
    keys: list[str | None]
    places: dict[str, str]
    ids: TextStore | None


def _read(paths: Sequence[Path]) -> _Read:
    keys: list[str | None] = []
    places: dict[str, str] = {}
    ids: dict[str, str] = {}

    def texts() -> Iterator[str]:
        for row in rows_of(paths):
            key = row.id("label") if row.has("label") else None
            keys.append(key)
            if key is not None:
                places.setdefault(key, row.place)
            if row.has(*_ID) or ids:
                unique(row, row.id(*_ID), ids)
            if len(ids) not in (0, len(keys)):
                raise row.refused("where one row has an id, all have", "an id after rows without", "give each an id")
            yield row.text(*_TEXT)

    store = TextStore.pack(texts())
    return _Read(store, keys, places, TextStore.pack(ids) if ids else None)


def _documents(paths: Sequence[Path]) -> Iterator[str]:
    if paths[0].name.removesuffix(".gz").endswith(".txt"):
        empty = True
        for path in paths:
            for _, line in lines_of(path):
                empty = False
                yield line.strip()
        if empty:
            raise DataError(f"{paths[0].name} must hold a document", got="none", cure="write one a line, or remove it")
        return
    for row in rows_of(paths):
        yield row.text(*_TEXT)
