"""LlamaIndex's vector store over an index: a node is a row, and its metadata are fields of the payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from matryo.errors import InputError, MissingExtra

with MissingExtra.unless_installed("llama-index-core", "llama-index", module="llama_index"):
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        FilterCondition,
        FilterOperator,
        MetadataFilter,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
        VectorStoreQueryResult,
    )
    from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from matryo.retrieve import Index, Plan

__all__ = ["MatryoVectorStore"]

_COMPARISONS = {
    FilterOperator.EQ: "$eq", FilterOperator.NE: "$ne", FilterOperator.GT: "$gt", FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt", FilterOperator.LTE: "$lte", FilterOperator.IN: "$in", FilterOperator.NIN: "$nin",
    FilterOperator.CONTAINS: "$contains", FilterOperator.TEXT_MATCH: "$contains",
}  # fmt: skip


class MatryoVectorStore(BasePydanticVectorStore):
    """Nodes in an index.

    ``index`` is an open index; one that is open for reading can be queried. ``plan`` is used by each query, for example
    ``index.plan(recall=0.99)``; by default, searches are exact.

    >>> store = MatryoVectorStore(Index.create("idx", nesting=[64, 384]))                       # doctest: +SKIP
    >>> context = StorageContext.from_defaults(vector_store=store)                              # doctest: +SKIP
    >>> VectorStoreIndex.from_documents(documents, context, embed_model=model)                  # doctest: +SKIP
    """

    stores_text: bool = True
    flat_metadata: bool = False
    _index: Index = PrivateAttr()
    _plan: Plan | None = PrivateAttr()

    def __init__(self, index: Index, *, plan: Plan | None = None) -> None:
        super().__init__()
        self._index, self._plan = index, plan

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex stores settings."""
        return "MatryoVectorStore"

    @property
    def client(self) -> Index:
        """The index."""
        return self._index

    def add(self, nodes: Sequence[BaseNode], **options: Any) -> list[str]:   # noqa: ARG002
        """Add nodes, or replace those that exist, in one commit; returns their ids."""
        if not nodes:
            return []
        ids = [node.node_id for node in nodes]
        payload = [node_to_metadata_dict(node, remove_text=False, flat_metadata=False) for node in nodes]
        self._index.upsert(np.array([node.get_embedding() for node in nodes], np.float32), ids, payload)
        return ids

    def delete(self, ref_doc_id: str, **options: Any) -> None:   # noqa: ARG002
        """Delete the nodes of a document."""
        self._delete(self._index.where({"ref_doc_id": ref_doc_id}).ids().tolist())

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None,
        **options: Any,   # noqa: ARG002
    ) -> None:  # fmt: skip
        """Delete the nodes with these ids, or that match; of both, the nodes that do both."""
        if node_ids is None and filters is None:
            raise InputError("delete_nodes needs node_ids or filters", got="neither", cure="use clear() to delete all")
        self._delete(self._ids(node_ids, filters))

    def clear(self) -> None:
        """Delete all nodes."""
        self._delete(self._index.ids.tolist())

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """The nodes with these ids, or that match; by default, all of them."""
        ids = self._ids(node_ids, filters)
        return [self._node(payload) for payload in self._index.get(ids)[1]] if ids else []

    def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:   # noqa: ARG002
        """The nodes that are nearest to the query; higher similarities are nearer."""
        if query.mode != VectorStoreQueryMode.DEFAULT:
            raise InputError("this store has the query mode default", got=query.mode, cure="drop mode")
        if query.query_embedding is None:
            raise InputError("a query needs an embedding", got="none", cure="pass query_embedding")
        where = _where(query.filters)
        allowed = query.node_ids or None   # LlamaIndex sends an empty list for none
        if query.doc_ids:
            allowed = self._of_documents(query.doc_ids, allowed)
        if not len(self._index) or allowed == []:
            return VectorStoreQueryResult(nodes=[], similarities=[], ids=[])
        # Nodes that are named are few: all hits are looked at.
        k = min(query.similarity_top_k if allowed is None else len(self._index), len(self._index))
        vector = np.asarray(query.query_embedding, np.float32)
        plan = self._plan if allowed is None else None
        hits = self._index.search(vector, k, plan, where=where, payload=True)[0]
        if allowed is not None:
            hits = [hit for hit in hits if hit.id in set(allowed)][: query.similarity_top_k]
        nodes = [self._node(hit.payload or {}) for hit in hits]
        return VectorStoreQueryResult(nodes=nodes, similarities=[hit.score for hit in hits],
                                      ids=[str(hit.id) for hit in hits])  # fmt: skip

    def _of_documents(self, documents: list[str], node_ids: list[str] | None) -> list[str]:
        ids: list[str] = self._index.where({"ref_doc_id": {"$in": documents}}).ids().tolist()
        return ids if node_ids is None else [id for id in ids if id in set(node_ids)]

    def _ids(self, node_ids: list[str] | None, filters: MetadataFilters | None) -> list[str]:
        where = _where(filters)
        if where is None:
            return self._index.ids.tolist() if node_ids is None else [id for id in node_ids if id in self._index]
        ids: list[str] = self._index.where(where).ids().tolist()
        return ids if node_ids is None else [id for id in ids if id in set(node_ids)]

    def _delete(self, ids: list[str]) -> None:
        if ids:
            self._index.delete(ids)

    def _node(self, payload: dict[str, Any]) -> BaseNode:
        return metadata_dict_to_node(payload)


def _where(filters: MetadataFilters | None) -> dict[str, Any] | None:
    """LlamaIndex's filters as a ``where`` of :meth:`Index.search`."""
    if filters is None or not filters.filters:
        return None
    parts = [_one(one) for one in filters.filters]
    if filters.condition == FilterCondition.OR:
        return {"$or": parts}
    return {"$not": {"$or": parts}} if filters.condition == FilterCondition.NOT else {"$and": parts}


def _one(given: MetadataFilter | MetadataFilters) -> dict[str, Any]:
    if isinstance(given, MetadataFilters):
        return _where(given) or {}
    if given.operator in _COMPARISONS:
        return {given.key: {_COMPARISONS[given.operator]: given.value}}
    if given.operator in (FilterOperator.ANY, FilterOperator.ALL):
        values = given.value if isinstance(given.value, list) else [given.value]
        parts = [{given.key: {"$contains": value}} for value in values]
        return {"$or" if given.operator == FilterOperator.ANY else "$and": parts}
    if given.operator == FilterOperator.IS_EMPTY:
        return {given.key: {"$exists": False}}
    cure = f"use one of {', '.join(sorted(one.value for one in _COMPARISONS))}, any, all, is_empty"
    raise InputError("this store has no such filter", got=given.operator.value, cure=cure)
