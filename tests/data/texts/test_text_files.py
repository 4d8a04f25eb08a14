"""Texts in files: labels by name, one list of classes, ids, and a corpus."""

import gzip
import json

import numpy as np
import pytest

from matryo.data import UNKNOWN, corpus_folder, open_dataset, text_folder


@pytest.fixture
def write(tmp_path):
    """``write({"train.jsonl": [{…}], "a.txt": "text"})``: those files; the folder."""

    def write(files):
        root = tmp_path / "pets"
        root.mkdir(exist_ok=True)
        for name, content in files.items():
            text = content if isinstance(content, str) else "\n".join(json.dumps(row) for row in content)
            data = text.encode()
            (root / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return root

    return write


TRAIN = [{"text": "purr", "label": "cat"}, {"text": "woof", "label": "dog"}, {"text": "tweet", "label": "bird"}]


def test_splits_share_the_classes_of_train(write):
    root = write({"train.jsonl": TRAIN, "test.tsv": "label\ttext\ndog\tbark\n\thm\n", "val.csv": "sentence\n\"a, b\""})
    data = text_folder(root)
    assert data.name == "pets"
    assert data.classes == ("bird", "cat", "dog")
    assert list(data.split("train")) == ["purr", "woof", "tweet"]
    assert data.split("train").labels.tolist() == [1, 2, 0]
    assert list(data.split("test")) == ["bark", "hm"]
    assert data.split("test").labels.tolist() == [2, UNKNOWN]
    assert list(data.split("val")) == ["a, b"]
    assert data.split("train").name(1) == "train#1"


def test_labels_that_are_numbers_are_in_order_and_written_alike(write):
    rows = [{"text": "x", "label": label} for label in (10, 9, "2")]
    data = text_folder(write({"train.jsonl": rows, "test.tsv": "text\tlabel\ny\t10\n"}))
    assert data.classes == ("2", "9", "10")
    assert data.split("train").labels.tolist() == [2, 1, 0]
    assert data.split("test").labels.tolist() == [2]


def test_listed_classes_may_be_named_by_their_index(write):
    rows = [{"text": "x", "label": label} for label in (1, "2", "ant", None)]
    root = write({"train.jsonl": rows, "classes.txt": "ant\nbee\ncat\n"})
    data = text_folder(root)
    assert data.classes == ("ant", "bee", "cat")
    assert data.split("train").labels.tolist() == [1, 2, 0, UNKNOWN]
    assert text_folder(root, ["cat", "ant"]).split("train").labels.tolist() == [UNKNOWN, 0, 1, UNKNOWN]


def test_without_train_classes_are_the_union_and_without_labels_none(write):
    root = write({"a.jsonl": TRAIN[:1], "b.jsonl": TRAIN[1:]})
    assert text_folder(root).classes == ("bird", "cat", "dog")
    assert text_folder(write({"a.jsonl": [{"text": "x"}], "b.jsonl": [{"text": "y"}]})).classes == ()


def test_the_classes_of_a_model(write):
    root = write({"train.jsonl": TRAIN, "test.jsonl": [{"text": "moo", "label": "cow"}]})
    data = text_folder(root, ["cow", "cat"])
    assert data.classes == ("cow", "cat")
    assert data.split("train").labels.tolist() == [1, UNKNOWN, UNKNOWN]
    assert data.split("test").labels.tolist() == [0], "found by name even where train never shows it"
    assert data.split("train").labels.dtype == np.int64


def test_superclasses(write):
    given = {"cat": "furry", "dog": "furry", "bird": "feathered"}
    root = write({"train.jsonl": TRAIN, "superclasses.json": json.dumps(given)})
    data = text_folder(root)
    assert data.superclasses == ("feathered", "furry")
    assert data.superclass_of == (0, 1, 1)
    assert text_folder(root, ["cow"]).superclasses == ()


def test_ids_and_numbered_parts(write):
    parts = {f"train-{i}.jsonl.gz": [{"text": f"t{i}", "id": f"i{i}"}] for i in (1, 0)}
    data = text_folder(write(parts))
    assert list(data.split("train")) == ["t0", "t1"]
    assert list(data.split("train").names()) == ["i0", "i1"]


def test_parquet(write):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    root = write({})
    parquet.write_table(pyarrow.Table.from_pylist(TRAIN), root / "train.parquet")
    data = text_folder(root)
    assert list(data.split("train")) == ["purr", "woof", "tweet"]
    assert data.split("train").labels.tolist() == [1, 2, 0]


def test_parquet_of_pandas_has_whole_numbers_with_gaps_as_floats(write):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    root = write({})
    table = pyarrow.table({"text": ["a", "b", "c"], "label": pyarrow.array([3.0, None, 11.0], pyarrow.float64())})
    parquet.write_table(table, root / "train.parquet")
    dataset = text_folder(root)
    assert dataset.classes == ("3", "11")
    assert dataset.split("train").labels.tolist() == [0, -1, 1]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"train.jsonl": [{"txt": "x"}]}, ["train.jsonl, line 1", "the column text or sentence or document", "txt"]),
        ({"train.jsonl": [{"text": "  "}]}, ["train.jsonl, line 1: text must be a text", "drop the row"]),
        ({"train.jsonl": [*TRAIN, {"text": ["x"]}]}, ["train.jsonl, line 4: text must be a text", "['x']"]),
        ({"train.jsonl": [{"text": "x", "label": 0.5}]},
         ["train.jsonl, line 1: a row needs a name or an integer in the column label", "0.5"]),
        ({"train.jsonl": TRAIN, "test.tsv": "text\tlabel\nx\tcat\nx\tcow"},
         ["test.tsv, line 3: a label must be one of the 3 classes", "'cow'", "classes.txt"]),
        ({"train.jsonl": [{"text": "x", "label": 3}], "classes.txt": "ant\nbee"},
         ["train.jsonl, line 1: a label must be one of the 2 classes", "'3'"]),
        ({"train.jsonl": [{"text": "x", "id": 1}, {"text": "y", "id": "1"}]},
         ["train.jsonl, line 2: ids must be unique", "'1', as in train.jsonl, line 1"]),
        ({"train.jsonl": [{"text": "x", "id": 1}, {"text": "y"}]},
         ["train.jsonl, line 2: a row needs a name or an integer in the column id or _id"]),
        ({"train.jsonl": [{"text": "x"}, {"text": "y", "id": 1}]}, ["line 2: all rows or no rows must have an id"]),
        ({"train.jsonl": ""}, ["train.jsonl must hold a row"]),
        ({"train.jsonl": TRAIN, "classes.txt": "cat\ncat"}, ["names must be unique", "'cat' more than once"]),
    ],
)  # fmt: skip
def test_what_is_refused(write, refuses, files, words):
    with refuses(*words):
        text_folder(write(files))


def test_a_corpus_is_a_document_a_line_or_a_row(write):
    root = write({"train.txt": "\ufeffeins\r\n\r\n zwei \r\n", "more.jsonl": [{"text": "drei", "label": 9}],
                  "README.txt": "no data"})  # fmt: skip
    data = corpus_folder(root)
    assert sorted(data.splits) == ["more", "train"]
    assert list(data.split("train")) == ["eins", "zwei"]
    assert list(data.split("more")) == ["drei"]
    assert data.split("more").labels.tolist() == [UNKNOWN]
    assert data.classes == ()
    assert corpus_folder(root, ["cat"]).classes == ("cat",)


def test_a_corpus_may_be_one_file(write):
    root = write({"reviews.txt.gz": "gut\nschlecht\n"})
    data = open_dataset("corpus", root / "reviews.txt.gz")
    assert list(data.split("train")) == ["gut", "schlecht"]
    assert list(data.split("train").names()) == ["train#0", "train#1"]


def test_a_corpus_without_documents(write, refuses):
    with refuses("train.txt must hold a document", "one document per line"):
        corpus_folder(write({"train.txt": "\n \n"}))
    with refuses("a folder with one file per split", ".txt"):
        corpus_folder(write({}) / "nowhere")
