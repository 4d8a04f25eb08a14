"""Retrieval datasets in the layout of BEIR: a corpus, queries, and relevance judgements (qrels) for each split.

- ``corpus.jsonl``: one object per line with ``_id``, ``text`` and optionally ``title``; a document is "title text";
- ``queries.jsonl``: one object per line with ``_id`` and ``text``;
- ``qrels/<split>.tsv``: a header line, then ``query-id``, ``corpus-id`` and ``score`` per line.

The first two may be compressed, ``corpus.jsonl.gz``. Judgements with a score of 0 or less are ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from matryo.arguments import checked
from matryo.data.dataset import Dataset
from matryo.data.pairs.pairs import Pairs
from matryo.data.texts.rows import TextRows, TextStore
from matryo.data.texts.tables import check_new_id, read_rows
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from matryo.data.texts.tables import Row

_ID = ("_id", "id")


@checked
def beir_folder(root: Path | str, classes: Sequence[str] | None = None) -> Dataset[Pairs]:
    """Open the BEIR folder at ``root`` as a dataset of pairs, with one split per file in ``qrels/``.

    The queries of a split are those it judges. The candidates are the whole corpus, shared by all splits. If documents
    have titles, the additional split ``titles`` serves for training without judgements: each title is a query, and the
    text of its document is the only positive. The dataset takes over ``classes``; every label is UNKNOWN.
    """
    root = Path(root)
    qrels = sorted((root / "qrels").glob("*.tsv"))
    if not qrels:
        raise DataError(
            "a BEIR folder must hold corpus.jsonl, queries.jsonl and qrels/<split>.tsv",
            got=f"no qrels in {root}" if root.is_dir() else f"{root}, which does not exist",
            cure="use the unpacked folder of a BEIR archive",
        )
    documents, titles = _documents(_file(root, "corpus"))
    queries = _texts(_file(root, "queries"))
    splits = {}
    rows = [{id: row for row, id in enumerate(texts.names())} for texts in (queries, documents)]
    for path in qrels:
        splits[path.stem] = _split(path, queries, documents, rows[0], rows[1])
    roles = {}
    if titles is not None and "titles" not in splits:
        splits["titles"] = titles
        roles["titles"] = "training without judgements: the titles of the corpus and their texts"
    return Dataset(root.resolve().name, tuple(classes or ()), splits, roles=roles)


def _file(root: Path, stem: str) -> Path:
    for name in (f"{stem}.jsonl", f"{stem}.jsonl.gz"):
        if (root / name).is_file():
            return root / name
    raise DataError(f"a BEIR folder must hold {stem}.jsonl", got=f"none in {root}", cure="unpack the whole archive")


def _texts(path: Path) -> TextRows:
    ids: dict[str, str] = {}

    def texts() -> Iterator[str]:
        for row in read_rows(path):
            check_new_id(row, row.id(*_ID), ids)
            yield row.text("text")

    return TextRows(TextStore.pack(texts()), names=TextStore.pack(ids), source=path.stem)


def _documents(path: Path) -> tuple[TextRows, Pairs | None]:
    """Return the corpus and the pairs (title, text), which share its bytes; None instead of pairs without titles."""
    ids: dict[str, str] = {}
    sizes: list[int] = []   # of the titles in bytes

    def texts() -> Iterator[str]:
        for row in read_rows(path):
            check_new_id(row, row.id(*_ID), ids)
            title, text = (_or_blank(row, column).strip() for column in ("title", "text"))
            sizes.append(len(title.encode()) if title and text else 0)
            yield f"{title} {text}".strip()

    store, names = TextStore.pack(texts()), TextStore.pack(ids)
    if not ids:
        raise DataError(f"{path.name} must hold a document", got="none", cure="unpack the whole archive")
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
        for id, row_of, file in ((query, query_of, "queries"), (document, document_of, "corpus")):
            if id not in row_of:
                rule = f"a judgement must refer to a row of {file}.jsonl"
                raise row.refused(rule, repr(id), f"complete {file}.jsonl, or drop the line")
        if (query, document) in seen:
            got = f"{query!r} and {document!r}, as in {seen[query, document]}"
            raise row.refused("a document must be judged once per query", got, "keep one of the lines")
        seen[query, document] = row.place
        score = row.number("score")
        if score > 0:
            pairs.append((query_of[query], document_of[document]))
            grades.append(score)
    if not pairs:
        raise DataError(f"{name} must hold a score above 0", got="none", cure="remove the file, or unpack it again")
    judged, rows = np.unique(np.array(pairs)[:, 0], return_inverse=True)
    relevant = np.stack([rows.reshape(-1), np.array(pairs)[:, 1]], axis=1)
    return Pairs(queries.subset(judged), documents, relevant, grades, source=path.stem)
