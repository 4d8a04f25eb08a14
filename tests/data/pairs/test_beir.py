"""BEIR's layout: judged pairs, the whole corpus as candidates, and titles with their texts."""

import gzip
import json

import numpy as np
import pytest

from matryo.data import beir_folder, open_dataset

CORPUS = [
    {"_id": "d1", "title": "Über Katzen", "text": "They purr."},
    {"_id": 2, "title": "", "text": "They bark."},
    {"_id": "d3", "title": "Birds", "text": "", "metadata": {"year": 2021}},
    {"_id": "d4", "title": "Fish", "text": "They swim."},
]
QUERIES = [{"_id": "q1", "text": "who purrs?"}, {"_id": "q2", "text": "who barks?"}, {"_id": "q3", "text": "who?"}]
HEADER = "query-id\tcorpus-id\tscore\n"
QRELS = {"test": "q3\td4\t2\nq1\td1\t1\nq3\td1\t1\nq3\td3\t0\n", "train": "q2\t2\t1\n"}


@pytest.fixture
def write(tmp_path):
    def write(corpus=CORPUS, queries=QUERIES, qrels=QRELS):
        root = tmp_path / "pets"
        (root / "qrels").mkdir(parents=True, exist_ok=True)
        for name, rows in (("corpus", corpus), ("queries", queries)):
            if rows is not None:
                (root / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        for name, lines in qrels.items():
            (root / "qrels" / f"{name}.tsv").write_text(HEADER + lines, encoding="utf-8")
        return root

    return write


def judged(split):
    """{query id: {document id: grade}}, as retrieval tools read judgements."""
    found = {}
    for (query, document), grade in zip(split.pairs, split.grades, strict=True):
        found.setdefault(split.queries.name(int(query)), {})[split.candidates.name(int(document))] = float(grade)
    return found


def test_judgements_queries_and_corpus(write):
    data = open_dataset("beir", write())
    assert data.name == "pets"
    assert sorted(data.splits) == ["test", "titles", "train"]
    test, train = data.split("test"), data.split("train")
    assert judged(test) == {"q1": {"d1": 1}, "q3": {"d4": 2, "d1": 1}}
    assert judged(train) == {"q2": {"2": 1}}
    assert list(test.queries) == ["who purrs?", "who?"], "those that the split judges, in the order of their file"
    assert list(test.candidates) == ["Über Katzen They purr.", "They bark.", "Birds", "Fish They swim."]
    assert train.candidates is test.candidates, "one corpus for all splits"
    assert data.split("titles").negatives.shape == (2, 0)


def test_titles_are_pairs_with_the_texts_below_and_share_their_bytes(write):
    data = beir_folder(write())
    titles = data.split("titles")
    pairs = [(titles.queries.text(int(q)), titles.candidates.text(int(c))) for q, c in titles.pairs]
    assert pairs == [("Über Katzen", "They purr."), ("Fish", "They swim.")]
    assert [titles.queries.name(i) for i in range(2)] == ["d1", "d4"]
    assert list(titles.candidates) == ["They purr.", "They bark.", "Birds", "They swim."]
    assert np.shares_memory(titles.candidates._texts.blob, data.split("test").candidates._texts.blob)
    assert np.shares_memory(titles.queries._texts.blob, data.split("test").candidates._texts.blob)
    assert "titles" in data.roles


def test_a_corpus_without_titles_has_no_such_split(write):
    data = beir_folder(write(corpus=[{"_id": row["_id"], "text": "x"} for row in CORPUS]))
    assert sorted(data.splits) == ["test", "train"]
    assert data.roles == {}


def test_compressed_files(write):
    root = write()
    for name in ("corpus", "queries"):
        path = root / f"{name}.jsonl"
        path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert judged(beir_folder(root).split("train")) == {"q2": {"2": 1}}


def test_judgements_written_on_windows(write):
    root = write()
    path = root / "qrels" / "test.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + (HEADER + QRELS["test"]).replace("\n", "\r\n").encode())
    assert judged(beir_folder(root).split("test")) == {"q1": {"d1": 1}, "q3": {"d4": 2, "d1": 1}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"corpus": None}, ["a BEIR folder must hold corpus.jsonl", "got none in"]),
        ({"queries": None}, ["a BEIR folder must hold queries.jsonl"]),
        ({"corpus": []}, ["corpus.jsonl must hold a document", "got none"]),
        ({"qrels": {}}, ["corpus.jsonl, queries.jsonl and qrels/<split>.tsv", "no qrels in"]),
        ({"qrels": {"test": "q1\td9\t1\n"}}, ["qrels/test.tsv, line 2", "a row of corpus.jsonl", "'d9'"]),
        ({"qrels": {"test": "q1\td1\t1\nq9\td1\t1\n"}}, ["qrels/test.tsv, line 3", "a row of queries.jsonl", "'q9'"]),
        ({"qrels": {"test": "q1\td1\t1\nq1\td1\t2\n"}}, ["line 3: a document must be judged", "'q1' and 'd1', as"]),
        ({"qrels": {"test": "q1\td1\tyes\n"}}, ["line 2: a row needs a number in the column score", "'yes'"]),
        ({"qrels": {"test": "q1\td1\n"}}, ["qrels/test.tsv, line 2: a line must have one field per column"]),
        ({"qrels": {"test": "q1\td1\t0\n"}}, ["qrels/test.tsv must hold a score above 0", "got none"]),
        ({"qrels": {"test": ""}}, ["qrels/test.tsv must hold a score above 0"]),
        ({"corpus": [*CORPUS, CORPUS[0]]}, ["corpus.jsonl, line 5: ids must be unique", "'d1', as in corpus"]),
        ({"queries": [*QUERIES, {"_id": "q1", "text": "x"}]}, ["queries.jsonl, line 4: ids must be unique"]),
        ({"queries": [{"_id": "q1"}]}, ["queries.jsonl, line 1: a row needs a text in the column text"]),
        ({"corpus": [{"text": "x"}]}, ["line 1: a row needs a name or an integer in the column _id or id"]),
        ({"corpus": [{"_id": 1, "text": 7}]}, ["corpus.jsonl, line 1: text must be a text", "got 7"]),
    ],
)
def test_what_is_refused(write, refuses, change, words):
    with refuses(*words):
        beir_folder(write(**change))


def test_no_folder(tmp_path, refuses):
    with refuses("a BEIR folder must hold", "which does not exist"):
        beir_folder(tmp_path / "nowhere")
