"""Pairs: rows of two splits that belong together, made by hand, of lists, by label and from files."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.data import Pairs, PairSplit, TextRows, TextSplit, pair_dataset, pair_folder, pairs_by_label, text_dataset
from matryo.data.dataset import UNKNOWN, Dataset
from matryo.data.split import align

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)


def two_by_three():
    return TextRows(["a", "b"], [0, 1], source="q"), TextRows(["x", "y", "z"], [1, 0, UNKNOWN], source="c")


def test_pairs_have_grades_of_one_and_no_negatives_unless_given():
    pairs = Pairs(*two_by_three(), [[0, 2], [1, 0]])
    assert isinstance(pairs, PairSplit)
    assert not isinstance(pairs, TextSplit)
    assert len(pairs) == 2
    assert pairs.pairs.dtype == pairs.negatives.dtype == np.int64
    assert pairs.grades.dtype == np.float32
    assert pairs.grades.tolist() == [1, 1]
    assert pairs.negatives.shape == (2, 0)
    assert len(Pairs(*two_by_three(), [])) == 0
    assert repr(pairs) == "Pairs(2 of TextRows(2 texts) and TextRows(3 texts))"


def test_a_subset_keeps_both_sides():
    pairs = Pairs(*two_by_three(), [[0, 2], [1, 0], [1, 1]], [1, 2, 0], [[0], [2], [2]])
    part = pairs.subset([2, 0])
    assert part.pairs.tolist() == [[1, 1], [0, 2]]
    assert part.grades.tolist() == [0, 1]
    assert part.negatives.tolist() == [[2], [0]]
    assert part.queries is pairs.queries
    assert pairs.subset([False, True, False]).pairs.tolist() == [[1, 0]]
    assert len(pairs) == 3


def test_both_sides_are_aligned_to_the_classes_of_a_model():
    data = Dataset("d", ("cat", "dog"), {"train": Pairs(*two_by_three(), [[0, 0]])})
    moved = align(data, ["dog"]).split("train")
    assert moved.queries.labels.tolist() == [UNKNOWN, 0]
    assert moved.candidates.labels.tolist() == [0, UNKNOWN, UNKNOWN]
    one = two_by_three()[0]
    same = align(Dataset("d", ("cat", "dog"), {"train": Pairs(one, one, [[0, 1]])}), ["dog"]).split("train")
    assert same.queries is same.candidates


def test_pairs_survive_being_pickled():
    pairs = pickle.loads(pickle.dumps(Pairs(*two_by_three(), [[0, 2]], negatives=[[1]])))
    assert pairs.candidates.text(int(pairs.pairs[0, 1])) == "z"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (([[0, 3]],), ["candidates of pairs must be rows of their split, 0 … 2", "got 3"]),
        (([[2, 0]],), ["queries of pairs must be rows of their split, 0 … 1", "got 2"]),
        (([[-1, 0]],), ["queries of pairs must be rows", "got -1"]),
        (([[0, 0, 0]],), ["pairs must be integers, [n, 2]", "[1, 3]"]),
        (([0, 0],), ["pairs must be integers, [n, 2]", "[2]"]),
        (([[0.0, 1.0]],), ["pairs must be integers", "float64"]),
        (([[0, 0]], [1, 2]), ["grades must be one number ≥ 0 per pair, [1]", "[2]"]),
        (([[0, 0]], [-1]), ["grades must be one number ≥ 0", "got -1.0"]),
        (([[0, 0]], [np.nan]), ["grades must be one number ≥ 0", "nan"]),
        (([[0, 0]], None, [[3]]), ["negatives must be rows of their split, 0 … 2", "got 3"]),
        (([[0, 0]], None, [[1], [2]]), ["every pair needs its negatives", "1 pairs, 2 rows"]),
        (([[0, 0]], None, [[1.5]]), ["negatives must be integers, [n, h]", "float64"]),
    ],
)
def test_what_is_no_pair_is_refused(refuses, more, words):
    with refuses("pairs: ", *words):
        Pairs(*two_by_three(), *more)


def test_a_subset_beyond_the_end(refuses):
    with refuses("no pair has this index", "got 5"):
        Pairs(*two_by_three(), [[0, 2]]).subset([5])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1))
def test_lists_of_texts_come_back_and_equal_texts_are_one_row(rows):
    split = pair_dataset({"train": rows}).split("train")
    back = [(split.queries.text(int(q)), split.candidates.text(int(c))) for q, c in split.pairs]
    assert back == rows
    assert len(split.queries) == len({query for query, _ in rows})
    assert len(split.candidates) == len({positive for _, positive in rows})


def test_negatives_are_candidates_and_shorter_lists_repeat_theirs():
    rows = [("q", "p", "n1", "n2", "n3"), ("r", "n1", "p", "m"), ("s", "p", "n2")]
    split = pair_dataset({"train": rows}).split("train")
    texts = [[split.candidates.text(int(i)) for i in own] for own in split.negatives]
    assert texts == [["n1", "n2", "n3"], ["p", "m", "p"], ["n2", "n2", "n2"]]
    assert list(split.candidates) == ["p", "n1", "n2", "n3", "m"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("a",)], ["train: a pair must be (query, positive)", "('a',), item 0"]),
        (["ab"], ["train: a pair must be (query, positive)", "'ab'"]),
        ([], ["train must hold a pair", "got none"]),
        ([("a", "b", "b")], ["train, item 0: a negative must not be the positive", "'b'", "drop that negative"]),
        ([("a", "b", "c"), ("d", "e")], ["train, item 1: all pairs or no pairs must have negatives"]),
        ([("a", 5)], ["item 0 must be a string", "got 5"]),
    ],
)
def test_lists_that_are_no_pairs(refuses, rows, words):
    with refuses(*words):
        pair_dataset({"train": rows})


def test_a_dataset_of_pairs_has_a_split(refuses):
    with refuses("a dataset must have a split", "(query, positive)"):
        pair_dataset({})


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-1, 4), min_size=1, max_size=40), st.integers(1, 5), st.integers(0, 9))
def test_pairs_by_label_join_different_items_of_one_label(labels, per_item, seed):
    split = text_dataset({"train": ([str(i) for i in range(len(labels))], labels)}).split("train")
    sizes = {label: labels.count(label) for label in labels}
    expected = [min(per_item, sizes[label] - 1) if label >= 0 else 0 for label in labels]
    if not sum(expected):
        with pytest.raises(ValueError, match="two items with the same label"):
            pairs_by_label(split, seed, per_item=per_item)
        return
    pairs = pairs_by_label(split, seed, per_item=per_item)
    assert pairs.queries is pairs.candidates is split
    assert [int((pairs.pairs[:, 0] == i).sum()) for i in range(len(labels))] == expected
    assert len({tuple(pair) for pair in pairs.pairs.tolist()}) == len(pairs), "no partner twice"
    for a, b in pairs.pairs.tolist():
        assert a != b
        assert labels[a] == labels[b] != UNKNOWN
    assert np.array_equal(pairs.pairs, pairs_by_label(split, seed, per_item=per_item).pairs)


def test_every_partner_is_as_likely_as_another():
    split = text_dataset({"train": (list("abcd"), [0] * 4)}).split("train")
    partners = np.array([pairs_by_label(split, seed).pairs[0, 1] for seed in range(600)])
    counts = np.bincount(partners, minlength=4)
    assert counts[0] == 0
    assert (np.abs(counts[1:] - 200) < 60).all()   # five standard deviations


def test_pairs_by_label_need_a_number_of_partners(refuses):
    with refuses("per_item must be at least 1", "got 0"):
        pairs_by_label(text_dataset({"train": (["a", "b"], [0, 0])}).split("train"), 0, per_item=0)


@pytest.fixture
def write(tmp_path):
    def write(name, rows):
        root = tmp_path / "qa"
        root.mkdir(exist_ok=True)
        text = rows if isinstance(rows, str) else "\n".join(json.dumps(row) for row in rows)
        (root / name).write_text(text, encoding="utf-8")
        return root

    return write


def read(split):
    """The pairs of a split as texts."""
    return [(split.queries.text(int(q)), split.candidates.text(int(c))) for q, c in split.pairs]


def test_files_of_pairs(write):
    write("test.tsv", "sentence1\tsentence2\tscore\na\tb\t5\na\tc\t0\nd\tb\t0.5\n")
    rows = [
        {"query": "q", "positive": ["p", "r"], "negatives": ["n"]},
        {"query": "u", "positive": "p", "negatives": "r"},
    ]
    data = pair_folder(write("train.jsonl", rows))
    train, test = data.split("train"), data.split("test")
    assert read(train) == [("q", "p"), ("q", "r"), ("u", "p")]
    assert [train.candidates.text(int(i)) for i in train.negatives[:, 0]] == ["n", "n", "r"]
    assert train.candidates.name(1) == "train#1"
    assert read(test) == [("a", "b"), ("a", "c"), ("d", "b")]
    assert test.grades.tolist() == [5, 0, 0.5]
    assert test.negatives.shape == (3, 0)
    assert data.classes == ()
    assert pair_folder(write("test.tsv", "query\tpositive\na\tb"), ["cat"]).classes == ("cat",)


def test_numbered_negatives(write):
    text = "anchor,positive,negative,negative_1,negative_2\na,b,c,d,e\n"
    split = pair_folder(write("train.csv", text)).split("train")
    assert [split.candidates.text(int(i)) for i in split.negatives[0]] == ["c", "d", "e"]


def test_negatives_behind_an_empty_column_are_read(write):
    text = "query,positive,negative_2,negative_10,negative_0,negative\na,b,,d,e,f\ng,h,i,,,\n"
    split = pair_folder(write("train.csv", text)).split("train")
    found = [[split.candidates.text(int(i)) for i in row] for row in split.negatives]
    assert found == [["f", "e", "d"], ["i", "i", "i"]]


def test_parquet_of_pairs(write):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    root = write("a.md", "")
    rows = [{"query": "a", "positive": "b", "negatives": ["c", "d"]}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), root / "train.parquet")
    split = pair_folder(root).split("train")
    assert read(split) == [("a", "b")]
    assert split.negatives.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "a", "positive": "b"}, ["the column query or anchor or sentence1", "question, positive"]),
        ({"query": "a"}, ["a row needs a text in the column positive or sentence2"]),
        ({"query": "a", "positive": []}, ["positive must be a text", "[]"]),
        ({"query": "a", "positive": ""}, ["positive must be a text"]),
        ({"query": "a", "positive": "b", "negatives": ["b"]}, ["a negative must not be the positive"]),
        ({"query": "a", "positive": "b", "negatives": [None]}, ["negatives must be a text"]),
        ({"query": "a", "positive": "b", "negativ": "c"}, ["hard negatives must be in", "negativ)", "rename"]),
        ({"query": "a", "positive": "b", "score": -1}, ["a score must be a number ≥ 0", "-1"]),
        ({"query": "a", "positive": "b", "score": "high"}, ["a number in the column score or grade", "'high'"]),
        ({"query": "a", "positive": "b", "score": "nan"}, ["a score must be a number ≥ 0", "nan"]),
    ],
)
def test_rows_that_are_no_pairs(write, refuses, row, words):
    with refuses("train.jsonl, line 2: ", *words):
        pair_folder(write("train.jsonl", [{"query": "x", "positive": "y"}, row]))


def test_an_empty_file_of_pairs(write, refuses):
    with refuses("train.tsv must hold a row", "got none"):
        pair_folder(write("train.tsv", "query\tpositive\n"))
