"""LlamaIndex's conventions of vector stores: nodes come back whole, documents are deleted, filters and queries."""

import numpy as np
import pytest
from llama_index.core import Document, MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters, VectorStoreQuery

from matryo import Index, Plan
from matryo.errors import InputError
from matryo.integrations.llama_index import MatryoVectorStore

LEGS = [4, 4, 2, 0]
VECTORS = np.random.default_rng(0).normal(size=(4, 6))


def nodes():
    made = []
    for number, text in enumerate(["a cat", "a dog", "a bird", "a fish"]):
        source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc-{number // 2}")}
        made.append(TextNode(id_=f"n{number}", text=text, embedding=VECTORS[number].tolist(), relationships=source,
                             metadata={"legs": LEGS[number], "tags": ["pet", text[2:]]}))  # fmt: skip
    return made


@pytest.fixture
def store(tmp_path):
    with Index.create(tmp_path / "idx", nesting=[2, 6]) as index:
        made = MatryoVectorStore(index)
        assert made.add(nodes()) == ["n0", "n1", "n2", "n3"]
        yield made


def ask(store, top=4, **fields):
    return store.query(VectorStoreQuery(query_embedding=VECTORS[1].tolist(), similarity_top_k=top, **fields))


def test_the_nearest_nodes_come_back_whole(store):
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    found = ask(store, 3)
    assert found.ids == [f"n{row}" for row in np.argsort(-(unit @ unit[1]))[:3]]
    np.testing.assert_allclose(found.similarities, np.sort(unit @ unit[1])[::-1][:3], atol=1e-6)
    first = found.nodes[0]
    assert (first.get_content(), first.metadata, first.ref_doc_id) == ("a dog", nodes()[1].metadata, "doc-0")


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ([("legs", 4, "==")], {"n0", "n1"}),
        ([("legs", 4, "!=")], {"n2", "n3"}),
        ([("legs", 2, ">="), ("legs", 4, "<")], {"n2"}),
        ([("legs", [0, 2], "in")], {"n2", "n3"}),
        ([("legs", [0, 2], "nin")], {"n0", "n1"}),
        ([("tags", "cat", "contains")], {"n0"}),
        ([("tags", ["cat", "fish"], "any")], {"n0", "n3"}),
        ([("tags", ["pet", "fish"], "all")], {"n3"}),
        ([("name", None, "is_empty")], {"n0", "n1", "n2", "n3"}),
    ],
    ids=str,
)
def test_filters(store, filters, ids):
    made = MetadataFilters(filters=[MetadataFilter(key=k, value=v, operator=o) for k, v, o in filters])
    assert set(ask(store, filters=made).ids) == ids
    assert {node.node_id for node in store.get_nodes(filters=made)} == ids


def test_filters_within_filters(store):
    four, none = (MetadataFilter(key="legs", value=count) for count in (4, 0))
    either = MetadataFilters(filters=[four, none], condition="or")
    assert set(ask(store, filters=either).ids) == {"n0", "n1", "n3"}
    neither = MetadataFilters(filters=[either], condition="not")
    assert ask(store, filters=neither).ids == ["n2"]


def test_queries_among_documents_and_nodes(store):
    assert set(ask(store, doc_ids=["doc-1"]).ids) == {"n2", "n3"}
    assert ask(store, 1, node_ids=["n0", "n3"]).ids[0] in {"n0", "n3"}
    assert ask(store, doc_ids=["doc-1"], node_ids=["n0"]).ids == []
    with pytest.raises(InputError, match="query mode"):
        ask(store, mode="mmr")


def test_deleting(store):
    store.delete("doc-0")
    assert {node.node_id for node in store.get_nodes()} == {"n2", "n3"}
    store.delete("doc-0")   # again: nothing is there
    store.delete_nodes(["n2", "nobody"])
    assert [node.node_id for node in store.get_nodes()] == ["n3"]
    store.clear()
    assert store.get_nodes() == [] and ask(store).ids == []


def test_a_plan_is_used(store):
    cut = VECTORS[:, :2] / np.linalg.norm(VECTORS[:, :2], axis=1, keepdims=True)
    found = ask(MatryoVectorStore(store.client, plan=Plan.single(2)))
    assert found.ids == [f"n{row}" for row in np.argsort(-(cut @ cut[1]))]


def test_an_index_of_documents(tmp_path):
    with Index.create(tmp_path / "idx", nesting=[6]) as index:
        context = StorageContext.from_defaults(vector_store=MatryoVectorStore(index))
        documents = [Document(text="a cat", id_="one"), Document(text="a dog", id_="two")]
        made = VectorStoreIndex.from_documents(documents, context, embed_model=MockEmbedding(embed_dim=6))
        made.delete_ref_doc("one", delete_from_docstore=True)
    with Index.open(tmp_path / "idx") as index:   # from the folder alone
        again = VectorStoreIndex.from_vector_store(MatryoVectorStore(index), embed_model=MockEmbedding(embed_dim=6))
        assert [hit.get_content() for hit in again.as_retriever().retrieve("x")] == ["a dog"]
