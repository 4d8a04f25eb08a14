"""LangChain's vector store over an index: the text and the metadata of a document are the payload of its row.

The metadata are fields of the payload, so ``filter`` takes the conditions of :meth:`Index.search`'s ``where``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError, MissingExtra

with MissingExtra.unless_installed("langchain-core", "langchain", module="langchain_core"):
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import VectorStore
    from langchain_core.vectorstores.utils import maximal_marginal_relevance

from matryo.retrieve import Index, Plan

if TYPE_CHECKING:
    from matryo.retrieve.hits import Hit

__all__ = ["MatryoVectorStore"]


class MatryoVectorStore(VectorStore):
    """Documents in an index.

    ``index`` is an open index; one that is open for reading can be searched. ``plan`` is used by each search, for
    example ``index.plan(recall=0.99)``; by default, searches are exact. ``text`` is the field of the payload with the
    text of a document: name another one for an index that was filled by other means.

    >>> store = MatryoVectorStore(Index.create("idx", nesting=[64, 384]), embedding)    # doctest: +SKIP
    >>> store.add_texts(["a cat", "a dog"], [{"legs": 4}, {"legs": 4}])                 # doctest: +SKIP
    >>> store.similarity_search("kitten", k=1, filter={"legs": {"$gte": 2}})            # doctest: +SKIP
    """

    def __init__(self, index: Index, embedding: Embeddings, *, plan: Plan | None = None, text: str = "text") -> None:
        self.index, self._embedding, self.plan, self.text = index, embedding, plan, text

    @property
    def embeddings(self) -> Embeddings:
        """The model that encodes texts."""
        return self._embedding

    @classmethod
    def from_texts(
        cls, texts: list[str], embedding: Embeddings, metadatas: list[dict[str, Any]] | None = None, *,
        ids: list[str] | None = None, folder: str | Path | None = None, nesting: Any = None, **options: Any,
    ) -> MatryoVectorStore:  # fmt: skip
        """Create an index in ``folder`` with these texts; the default ``nesting`` is the full dim alone.

        ``options`` are those of the constructor.
        """
        if folder is None:
            raise InputError("a new index needs a folder", got="none", cure='pass folder="idx"')
        vectors = embedding.embed_documents(texts)
        index = Index.create(folder, nesting=nesting if nesting is not None or not vectors else [len(vectors[0])])
        store = cls(index, embedding, **options)
        store._upsert(texts, vectors, metadatas, ids)
        return store

    def add_texts(
        self, texts: Iterable[str], metadatas: list[dict[str, Any]] | None = None, *, ids: list[str] | None = None,
        **options: Any,
    ) -> list[str]:  # fmt: skip
        """Add texts, or replace those whose ids exist, in one commit; returns the ids."""
        _refuse(options)
        listed = list(texts)
        return self._upsert(listed, self._embedding.embed_documents(listed), metadatas, ids)

    def delete(self, ids: Sequence[str] | None = None, **options: Any) -> bool:
        """Delete documents; without ``ids``, all of them. Ids that do not exist are skipped."""
        _refuse(options)
        stored = self.index.ids.tolist() if ids is None else self._stored(ids)
        if stored:
            self.index.delete(stored)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids; ids that do not exist are skipped."""
        stored = self._stored(ids)
        payloads = self.index.get(stored)[1] if stored else []
        return [self._document(id, payload) for id, payload in zip(stored, payloads, strict=True)]

    def similarity_search(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **options: Any
    ) -> list[Document]:
        """The documents that are nearest to a text."""
        return [document for document, _ in self.similarity_search_with_score(query, k, filter, **options)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **options: Any
    ) -> list[tuple[Document, float]]:
        """The documents that are nearest to a text with their scores; higher is nearer."""
        _refuse(options)
        hits = self._hits(self._embedding.embed_query(query), k, filter)
        return [(self._document(hit.id, hit.payload), hit.score) for hit in hits]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Mapping[str, Any] | None = None, **options: Any
    ) -> list[Document]:
        """The documents that are nearest to a vector."""
        _refuse(options)
        return [self._document(hit.id, hit.payload) for hit in self._hits(embedding, k, filter)]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5,
        filter: Mapping[str, Any] | None = None, **options: Any,
    ) -> list[Document]:  # fmt: skip
        """The ``k`` of the ``fetch_k`` nearest documents that are near to a text and differ from each other."""
        vector = self._embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, filter, **options)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5,
        filter: Mapping[str, Any] | None = None, **options: Any,
    ) -> list[Document]:  # fmt: skip
        """As :meth:`max_marginal_relevance_search`, for a vector."""
        _refuse(options)
        hits = self._hits(embedding, fetch_k, filter)
        if not hits:
            return []
        vectors = list(self.index.get([hit.id for hit in hits])[0])
        chosen = maximal_marginal_relevance(np.array(embedding, np.float32), vectors, lambda_mult, k)
        return [self._document(hits[place].id, hits[place].payload) for place in chosen]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        if self.index.metric != "cosine":
            rule = "relevance from 0 to 1 is defined for the metric cosine"
            raise InputError(rule, got=self.index.metric, cure="use similarity_search_with_score")
        return lambda score: (1 + score) / 2

    def _upsert(
        self, texts: list[str], vectors: Any, metadatas: list[dict[str, Any]] | None, ids: Sequence[str | None] | None
    ) -> list[str]:
        made = [id or str(uuid.uuid4()) for id in ids or [None] * len(texts)]
        payload = [{**metadata, self.text: text} for text, metadata in zip(texts, metadatas or [{}] * len(texts),
                                                                           strict=True)]  # fmt: skip
        if any(self.text in metadata for metadata in metadatas or ()):
            rule = "the text of a document is stored in a field that its metadata must not have"
            raise InputError(rule, got=repr(self.text), cure='pass another name: text="page_content"')
        if texts:
            self.index.upsert(np.asarray(vectors, np.float32), made, payload)
        return made

    def _hits(self, vector: list[float], k: int, where: Mapping[str, Any] | None) -> list[Hit]:
        if not len(self.index) or k < 1:
            return []
        query = np.asarray(vector, np.float32)
        hits: list[Hit] = self.index.search(query, min(k, len(self.index)), self.plan, where=where, payload=True)[0]
        return hits

    def _stored(self, ids: Sequence[str]) -> list[int | str]:
        """The ids as the index has them, of the rows that exist."""
        if self.index.snapshot().text_ids:
            return [id for id in ids if id in self.index]
        return [int(id) for id in ids if id.isdigit() and int(id) in self.index]

    def _document(self, id: int | str, payload: Mapping[str, Any] | None) -> Document:
        metadata = dict(payload or {})
        return Document(page_content=metadata.pop(self.text, ""), metadata=metadata, id=str(id))


def _refuse(options: Mapping[str, Any]) -> None:
    if options:
        raise InputError("this store has no such option", got=", ".join(options), cure="drop it")
