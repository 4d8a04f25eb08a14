"""LangChain's standard tests of vector stores, and what they leave out: filters, scores, plans and other indexes."""

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from matryo import Index, Plan
from matryo.errors import InputError
from matryo.integrations.langchain import MatryoVectorStore

MODEL = DeterministicFakeEmbedding(size=6)
TEXTS = ["a cat", "a dog", "a bird", "a fish"]
LEGS = [{"legs": 4}, {"legs": 4}, {"legs": 2}, {"legs": 0}]


class TestStandard(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path):
        with Index.create(tmp_path / "idx", nesting=[2, 6]) as index:
            yield MatryoVectorStore(index, self.get_embeddings())


@pytest.fixture
def store(tmp_path):
    made = MatryoVectorStore.from_texts(TEXTS, MODEL, LEGS, ids=list("abcd"), folder=tmp_path / "idx", nesting=[2, 6])
    yield made
    made.index.close()


def cosines(query):
    vectors = np.array(MODEL.embed_documents(TEXTS))
    one = np.array(MODEL.embed_query(query))
    return vectors @ one / np.linalg.norm(vectors, axis=1) / np.linalg.norm(one)


def test_the_nearest_come_first_with_their_cosine(store):
    scores = cosines("a cat")
    found = store.similarity_search_with_score("a cat", k=3)
    assert [document.id for document, _ in found] == ["abcd"[row] for row in np.argsort(-scores)[:3]]
    np.testing.assert_allclose([score for _, score in found], np.sort(scores)[::-1][:3], atol=1e-6)
    relevance = store.similarity_search_with_relevance_scores("a cat", k=1)[0][1]
    assert relevance == pytest.approx((1 + scores.max()) / 2, abs=1e-6)
    assert store.similarity_search_by_vector(MODEL.embed_query("a fish"), k=1)[0].page_content == "a fish"


def test_filters_are_those_of_the_index(store):
    assert {one.id for one in store.similarity_search("x", k=4, filter={"legs": {"$gte": 3}})} == {"a", "b"}
    retriever = store.as_retriever(search_kwargs={"k": 4, "filter": {"legs": 0}})
    assert retriever.invoke("x") == [Document(id="d", page_content="a fish", metadata={"legs": 0})]


def test_relevant_and_different(store):
    best = store.similarity_search("a cat", k=1)[0].id
    ids = [one.id for one in store.max_marginal_relevance_search("a cat", k=3, fetch_k=4, lambda_mult=0.5)]
    assert ids[0] == best and len(set(ids)) == 3
    alike = [one.id for one in store.max_marginal_relevance_search("a cat", k=3, fetch_k=4, lambda_mult=1.0)]
    assert alike == [one.id for one in store.similarity_search("a cat", k=3)]


def test_a_plan_is_used_and_an_index_for_reading_is_enough(store, tmp_path):   # noqa: ARG001 - it makes the index
    with Index.open(tmp_path / "idx") as index:
        reading = MatryoVectorStore(index, MODEL, plan=Plan.single(2))
        vectors = np.array(MODEL.embed_documents(TEXTS))[:, :2]
        scores = vectors @ vectors[1] / np.linalg.norm(vectors, axis=1)
        assert [one.id for one in reading.similarity_search("a dog", k=4)] == ["abcd"[n] for n in np.argsort(-scores)]
        with pytest.raises(InputError, match="open for reading"):
            reading.add_texts(["a horse"])


def test_an_index_with_numbers_as_ids(tmp_path):
    with Index.create(tmp_path / "idx", nesting=[6]) as index:
        index.add(np.array(MODEL.embed_documents(TEXTS)), payload=[{"body": text} for text in TEXTS])
        store = MatryoVectorStore(index, MODEL, text="body")
        assert store.get_by_ids(["2", "9", "x"]) == [Document(id="2", page_content="a bird", metadata={})]
        assert store.delete(["2"]) and len(index) == 3


def test_what_would_be_lost_is_refused(store):
    with pytest.raises(InputError, match="the text of a document is stored in a field"):
        store.add_texts(["a horse"], [{"text": "mine"}])
    with pytest.raises(InputError, match="no such option"):
        store.similarity_search("x", score_threshold=0.5)
    with pytest.raises(InputError, match="needs a folder"):
        MatryoVectorStore.from_texts(TEXTS, MODEL)
