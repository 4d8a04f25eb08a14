"""Retrieval sets in BEIR's layout: a corpus, queries, and for each split which documents answer which query.

- ``corpus.jsonl``: ``_id``, ``text`` and perhaps ``title`` a line; a document is read as its title, a space, its text;
- ``queries.jsonl``: ``_id`` and ``text`` a line;
- ``qrels/<split>.tsv``: a header line, then ``query-id``, ``corpus-id`` and ``score`` a line.

The first two may be compressed, ``corpus.jsonl.gz``. A score of 0 or less says that a document does not answer, and is
left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from matryo.data.dataset import Dataset
from matryo.data.pairs.pairs import Pairs
from matryo.data.texts.rows import TextRows, TextStore
from matryo.data.texts.tables import read_rows, unique
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from matryo.data.texts.tables import Row

__all__ = ["beir_folder"]

_ID = ("_id", "id")


def beir_folder(root: Path | str, classes: Sequence[str] | None = None) -> Dataset:
    """``corpus.jsonl``, ``queries.jsonl`` and ``qrels/<split>.tsv`` under ``root`` as a dataset of pairs, a split each.

    Queries are those that the split judges; candidates are the whole corpus, the same for all splits. Where documents
    have titles there is one more split, ``titles``, to train on without judgements: each title as a query, and the
    text below it as its only answer. ``classes`` are taken over; no text has one.
    """
    root = Path(root)
    judged = sorted((root / "qrels").glob("*.tsv"))
    if not judged:
        raise DataError(
            "a BEIR folder holds corpus.jsonl, queries.jsonl and qrels/<split>.tsv",
            got=f"no qrels in {root}" if root.is_dir() else f"{root}, which does not exist",
            cure="give the folder that BEIR's archive unpacks to",
        )
    documents, titles = _documents(_file(root, "corpus"))
    queries = _texts(_file(root, "queries"))
    splits = {}
    rows = [{id: row for row, id in enumerate(one.names())} for one in (queries, documents)]
    for path in judged:
        splits[path.stem] = _split(path, queries, documents, rows[0], rows[1])
    roles = {}
    if titles is not None and "titles" not in splits:
        splits["titles"] = titles
        roles["titles"] = "training without judgements: the titles of the corpus and the texts below them"
    return Dataset(root.resolve().name, tuple(classes or ()), splits, roles=roles)


def _file(root: Path, stem: str) -> Path:
    for name in (f"{stem}.jsonl", f"{stem}.jsonl.gz"):
        if (root / name).is_file():
            return root / name
    raise DataError(f"a BEIR folder holds {stem}.jsonl", got=f"none in {root}", cure="unpack all of BEIR's archive")


def _texts(path: Path) -> TextRows:
    ids: dict[str, str] = {}

    def texts() -> Iterator[str]:
        for row in read_rows(path):
            unique(row, row.id(*_ID), ids)
            yield row.text("text")

    return TextRows(TextStore.pack(texts()), names=TextStore.pack(ids), source=path.stem)


def _documents(path: Path) -> tuple[TextRows, Pairs | None]:
    """The corpus, and its titles with the texts below them, which share the corpus's bytes; None without titles."""
    ids: dict[str, str] = {}
    sizes: list[int] = []   # of the titles, in bytes

    def texts() -> Iterator[str]:
        for row in read_rows(path):
            unique(row, row.id(*_ID), ids)
            title, text = (_or_blank(row, column).strip() for column in ("title", "text"))
            sizes.append(len(title.encode()) if title and text else 0)
            yield f"{title} {text}".strip()

    store, names = TextStore.pack(texts()), TextStore.pack(ids)
    if not ids:
        raise DataError(f"{path.name} must hold a document", got="none", cure="unpack all of BEIR's archive")
    documents = TextRows(store, names=names, source="corpus")
    titled = np.flatnonzero(sizes)
    if not len(titled):
        return documents, None
    ends = store.starts + np.array(sizes)
    heads = TextRows(TextStore(store.blob, store.starts, ends), names=names, source="titles").subset(titled)
    bodies = TextRows(TextStore(store.blob, ends + (ends > store.starts), store.ends), names=names, source="texts")
    pairs = np.stack([np.arange(len(titled)), titled], axis=1)
    return documents, Pairs(heads, bodies, pairs, source="titles")


def _or_blank(row: Row, column: str) -> str:
    return row.text(column, blank=True) if row.has(column) else ""


def _split(
    path: Path, queries: TextRows, documents: TextRows, query_of: Mapping[str, int], document_of: Mapping[str, int]
) -> Pairs:
    name = f"qrels/{path.name}"
    pairs, grades = [], []
    seen: dict[tuple[str, str], str] = {}
    for row in read_rows(path, name):
        query, document = row.id("query-id"), row.id("corpus-id")
        for id, known, file in ((query, query_of, "queries"), (document, document_of, "corpus")):
            if id not in known:
                raise row.refused(
                    f"a judgement names a row of {file}.jsonl", repr(id), f"complete {file}.jsonl, or drop the line"
                )
        if (query, document) in seen:
            got = f"{query!r} and {document!r}, as in {seen[query, document]}"
            raise row.refused("a document is judged once for a query", got, "keep one of the lines")
        seen[query, document] = row.place
        score = row.number("score")
        if score > 0:
            pairs.append((query_of[query], document_of[document]))
            grades.append(score)
    if not pairs:
        raise DataError(f"{name} must judge a document as fitting", got="none", cure="remove it, or unpack it again")
    asked, rows = np.unique(np.array(pairs)[:, 0], return_inverse=True)
    answers = np.stack([rows.reshape(-1), np.array(pairs)[:, 1]], axis=1)
    return Pairs(queries.subset(asked), documents, answers, grades, source=path.stem)
