"""Texts in files, one file per split: labelled tables, and corpora without labels.

A split is ``root/<split>.jsonl`` (or ``.tsv``, ``.csv``, each optionally with ``.gz``, or ``.parquet``), or numbered
parts, ``train-00000-of-00002.parquet``. Columns:

- ``text`` (or ``sentence``, ``document``): the text;
- ``label`` (optional): the class name; empty if unknown;
- ``id`` (or ``_id``, optional): a stable id. By default a text is named by split and row, "train#7".

All splits share the classes of ``train``; without a split ``train``, the sorted union. ``classes.txt`` (one class per
line) or ``classes.json`` (a list) overrides this, and labels may then also be indices. ``superclasses.json`` maps each
class to its superclass. A corpus has no labels and may also be plain text, ``<split>.txt``, with one document per line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.arguments import checked
from matryo.data.class_names import in_order, labels_by_name, listed_classes, superclasses
from matryo.data.dataset import Dataset
from matryo.data.split import align, check_distinct
from matryo.data.texts.rows import TextRows, TextStore
from matryo.data.texts.tables import TABLES, check_new_id, ending_of, lines_of, rows_of, split_files
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TEXT = ("text", "sentence", "document")
_ID = ("id", "_id")


@checked
def text_folder(root: Path | str, classes: Sequence[str] | None = None) -> Dataset[TextRows]:
    """Open the tables under ``root`` as a dataset of texts, in the format of this module's docstring.

    With ``classes``, for example those of a trained model, labels are indices into that list, and texts of other
    classes are UNKNOWN. Without, a label that does not occur in ``train`` is an error.
    """
    root = Path(root)
    tables = {split: _read(paths) for split, paths in split_files(root).items()}
    listed = listed_classes(root)
    naming = [tables["train"]] if "train" in tables else list(tables.values())
    names = listed or tuple(classes or in_order({key for table in naming for key in table.places}))
    check_distinct(names)
    splits = {}
    for split, table in tables.items():
        labels = labels_by_name(table.keys, names, table.places, indices=bool(listed), strict=not classes)
        splits[split] = TextRows(table.texts, labels, table.ids, source=split)
    groups, parents = superclasses(root, names, {}, strict=not classes)
    return align(Dataset(root.resolve().name, names, splits, groups, parents), classes)


@checked
def corpus_folder(root: Path | str, classes: Sequence[str] | None = None) -> Dataset[TextRows]:
    """Open documents without labels: the lines of ``.txt`` files, or the column ``text`` of tables.

    The dataset takes over ``classes``, so that it can be opened for any model; every label is UNKNOWN.
    """
    root = Path(root)
    splits = {
        split: TextRows(TextStore.pack(_documents(paths)), source=split)
        for split, paths in split_files(root, (*TABLES, "txt")).items()
    }
    return Dataset(root.resolve().name, tuple(classes or ()), splits)


def unlabelled_texts(paths: Sequence[Path]) -> TextRows:
    """Read the texts of tables, or the lines of ``.txt`` files, as one split without labels; ids are kept."""
    source = paths[0].name.split(".")[0]
    if ending_of(paths[0]) == "txt":
        return TextRows(_documents(paths), source=source)
    table = _read(paths)
    return TextRows(table.texts, names=table.ids, source=source)


@dataclass(frozen=True)
class _Table:
    """One split as read: texts, labels as written, the place where each label first occurs, and ids."""

    texts: TextStore
    keys: list[str | None]
    places: dict[str, str]
    ids: TextStore | None


def _read(paths: Sequence[Path]) -> _Table:
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
                check_new_id(row, row.id(*_ID), ids)
            if len(ids) not in (0, len(keys)):
                raise row.refused(
                    "all rows or no rows must have an id", "an id after rows without", "add the missing ids"
                )
            yield row.text(*_TEXT)

    store = TextStore.pack(texts())
    return _Table(store, keys, places, TextStore.pack(ids) if ids else None)


def _documents(paths: Sequence[Path]) -> Iterator[str]:
    if ending_of(paths[0]) != "txt":
        for row in rows_of(paths):
            yield row.text(*_TEXT)
        return
    empty = True
    for path in paths:
        for _, line in lines_of(path):
            empty = False
            yield line.strip()
    if empty:
        raise DataError(
            f"{paths[0].name} must hold a document", got="none", cure="write one document per line, or remove the file"
        )
