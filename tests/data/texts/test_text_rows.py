"""Texts in memory: what goes in comes out, subsets keep names, and what is no text is refused."""

import multiprocessing
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.data import UNKNOWN, ImageSplit, PairSplit, TextRows, TextSplit, text_dataset
from matryo.data.split import align
from matryo.data.texts.rows import TextStore

WHOLE = st.text(st.characters(exclude_categories=["Cs"]))


@settings(deadline=None, max_examples=50)
@given(st.lists(WHOLE))
def test_texts_come_back_as_they_were(texts):
    store = TextStore.pack(texts)
    assert len(store) == len(texts)
    assert list(store) == texts
    rows = TextRows(texts)
    assert [rows.text(i) for i in range(len(rows))] == list(rows) == texts
    assert rows.labels.tolist() == [UNKNOWN] * len(texts)


@settings(deadline=None, max_examples=50)
@given(st.lists(WHOLE, min_size=1), st.data())
def test_a_subset_is_a_choice_of_rows_and_copies_no_text(texts, data):
    rows = TextRows(texts, np.arange(len(texts)), source="train")
    chosen = data.draw(st.lists(st.integers(0, len(texts) - 1)))
    part = rows.subset(chosen)
    assert list(part) == [texts[i] for i in chosen]
    assert part.labels.tolist() == chosen
    assert list(part.names()) == [f"train#{i}" for i in chosen]
    assert part._texts is rows._texts
    again = part.subset(np.arange(len(chosen)) % 2 == 0)
    assert list(again) == [texts[i] for i in chosen[::2]]


def test_the_protocols_tell_texts_from_images_and_pairs():
    rows = TextRows(["a"])
    assert isinstance(rows, TextSplit)
    assert not isinstance(rows, ImageSplit)
    assert not isinstance(rows, PairSplit)
    assert repr(rows) == "TextRows(1 texts)"


def test_labels_are_int64_and_mapped():
    rows = TextRows(["a", "b"], np.array([2049, -1], np.int16))
    assert rows.labels.dtype == np.int64
    assert rows.labels.tolist() == [2049, -1]
    assert TextRows(["a", "b"], [1, -1]).map_labels(np.array([3, 0, -1])).labels.tolist() == [0, -1]


def test_names_are_the_ids_of_texts():
    rows = TextRows(["a", "b"], names=["x", "ÿ"])
    assert list(rows.subset([1]).names()) == ["ÿ"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TextRows("a text"), ["texts must be a list", "'a text'", "pass [text]"]),
        (lambda: TextRows(["a", 1]), ["texts: item 1 must be a string", "got 1"]),
        (lambda: TextRows(["a", "\ud83d"], source="train"), ["train: item 1 must be a string", "ud83d", "surrogate"]),
        (lambda: TextRows(["a"], [0, 1]), ["every text needs one label", "1 texts, 2 labels"]),
        (lambda: TextRows(["a"], [0.5]), ["one class index per text", "float64"]),
        (lambda: TextRows(["a"], names=["x", "y"]), ["every text needs one name", "1 texts, 2 names"]),
        (lambda: TextRows(["a", "b"], names=["x", "x"]), ["ids must be unique", "'x' more than once"]),
        (lambda: TextRows(["a", "b"], names=["x", ""]), ["ids must be unique and not empty", "got ''"]),
        (lambda: TextRows(["a", "b"]).text(2), ["no text has this index", "got 2", "0…1"]),
        (lambda: TextRows(["a"]).name(-1), ["no text has this index"]),
        (lambda: TextRows([]).text(0), ["no text has this index", "this split has no texts"]),
        (lambda: TextRows(["a"]).subset([0.5]), ["one boolean per text", "float64"]),
        (lambda: text_dataset({}), ["a dataset must have a split", "got none"]),
        (lambda: text_dataset({"train": ("one", "two")}), ["train: a tuple must hold a list of texts"]),
        (lambda: text_dataset({"train": (["a"], [0], [1])}), ["a tuple of 3", "pass (texts, labels)"]),
        (lambda: text_dataset({"train": (["a"], [1])}, ["cat"]), ["below the number of classes, 1", "got 1"]),
    ],
)
def test_what_is_refused(refuses, make, words):
    with refuses(*words):
        make()


def test_text_dataset_names_classes_or_numbers_them():
    data = text_dataset({"train": (["a", "b"], [0, 2]), "more": ["c"]})
    assert data.classes == ("0", "1", "2")
    assert data.split("more").labels.tolist() == [UNKNOWN]
    assert text_dataset({"train": ["a"]}).classes == ()
    named = text_dataset({"train": (["a", "b"], [0, 1])}, ["cat", "dog"])
    assert align(named, ["dog"]).split("train").labels.tolist() == [UNKNOWN, 0]
    assert align(named, []) is named, "a model without classes asks for nothing"


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_worker_processes_read_the_same_texts(method):
    rows = TextRows(["eins", "zwei", "drei"], names=[*"abc"]).subset([2, 0])
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map(list, [rows]) == [["drei", "eins"]]
    assert list(pickle.loads(pickle.dumps(rows)).names()) == ["c", "a"]
