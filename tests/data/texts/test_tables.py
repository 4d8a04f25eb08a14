"""Rows of every kind of file, and what is said of files that are not right."""

import csv
import gzip
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.data.texts.tables import Row, check_new_id, lines_of, read_rows, rows_of, split_files
from matryo.errors import MissingExtra

PETS = [{"text": "Ein Kätzchen, „leise“", "label": "cat"}, {"text": 'says "woof"', "label": "dog"}]
WHOLE = st.text(st.characters(exclude_categories=["Cs"]))
# What fits a line of TSV; JSON and CSV hold anything.
FIELD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\r\n"), min_size=1).filter(str.strip)


def as_tsv(rows, end="\n"):
    return end.join(["\t".join(rows[0]), *("\t".join(row.values()) for row in rows)])


def as_csv(rows, end="\n"):
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0], lineterminator=end)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def as_jsonl(rows, end="\n"):
    return end.join(json.dumps(row, ensure_ascii=False) for row in rows)


WRITERS = {"jsonl": as_jsonl, "tsv": as_tsv, "csv": as_csv}


@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("packed", [False, True])
def test_every_kind_gives_the_same_rows(tmp_path, ending, end, mark, packed):
    data = (mark + end + WRITERS[ending](PETS, end) + end + end).encode() if not mark else (
        mark + WRITERS[ending](PETS, end) + end).encode()
    path = tmp_path / (f"pets.{ending}" + ".gz" * packed)
    path.write_bytes(gzip.compress(data) if packed else data)
    rows = list(read_rows(path))
    assert [dict(row.values) for row in rows] == PETS
    first = (1 if mark else 2) + (ending != "jsonl")
    assert [row.place for row in rows] == [f"{path.name}, line {first}", f"{path.name}, line {first + 1}"]


def test_parquet_gives_the_same_rows(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(PETS), tmp_path / "pets.parquet")
    rows = list(read_rows(tmp_path / "pets.parquet"))
    assert [row.values for row in rows] == PETS
    assert rows[1].place == "pets.parquet, row 2"


def test_parquet_that_is_damaged(tmp_path, refuses):
    pytest.importorskip("pyarrow")
    (tmp_path / "pets.parquet").write_bytes(b"PAR1 but no more")
    with refuses("pets.parquet cannot be read as parquet", "write it again"):
        list(read_rows(tmp_path / "pets.parquet"))


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'matryo\[arrow\]'"):
        list(read_rows(tmp_path / "pets.parquet"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.dictionaries(WHOLE, WHOLE), max_size=5))
def test_json_lines_come_back_as_they_were(folder, rows):
    path = folder / "any.jsonl"
    path.write_text(as_jsonl(rows), encoding="utf-8", newline="")
    assert [row.values for row in read_rows(path)] == rows


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=5))
def test_tabs_come_back_as_they_were(folder, rows):
    path = folder / "any.tsv"
    rows = [dict(zip("ab", row, strict=True)) for row in rows]
    path.write_text(as_tsv(rows), encoding="utf-8", newline="")
    assert [row.values for row in read_rows(path)] == rows


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(WHOLE.filter(bool), WHOLE.filter(bool)), min_size=1, max_size=5))
def test_commas_come_back_as_they_were(folder, rows):
    """Line ends inside quotes too; a bare carriage return, which ends no line of ours, is written as a line end."""
    path = folder / "any.csv"
    rows = [dict(zip("ab", (field.replace("\r", "\n") for field in row), strict=True)) for row in rows]
    path.write_text(as_csv(rows, "\r\n"), encoding="utf-8", newline="")
    assert [row.values for row in read_rows(path)] == rows


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": "y', ["a.jsonl, line 2: a line must be JSON", "column 10", "correct"]),
        ("a.jsonl", b'{"a": 1}\n\n[1, 2]\n', ["a.jsonl, line 3: a line must be a JSON object", "[1, 2]"]),
        ("a.jsonl", b"[" * 100_000, ["a.jsonl, line 1: a line must be JSON"]),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}', ["a.jsonl, line 2: files must be UTF-8", "xff", "save it as UTF-8"]),
        ("a.tsv", "text\nhé".encode("utf-16"), ["a.tsv, line 1: files must be UTF-8"]),
        ("a.tsv", b"text\tlabel\nx\ty\nx\n", ["a.tsv, line 3: a line must have one field", "got 1 fields", "JSONL"]),
        ("a.tsv", b"text\ttext\nx\ty\n", ["a.tsv: the first line must name the columns, each once", "add a header"]),
        ("a.csv", b'text,label\n"x,y\n', ["a.csv, line 2: a line must be CSV", "correct its quotes"]),
        ("a.csv", b'text,label\nx,y\n"a"b,y\n', ["a.csv, line 3: a line must be CSV"]),
        ("a.csv", b"text,label\nx,y,z\n", ["a.csv, line 2: a line must have one field", "3 fields"]),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 99, mtime=0)[:-9],
         ["a.jsonl.gz cannot be read as gzip", "EOFError"]),
        ("a.jsonl.gz", b"plain", ["a.jsonl.gz cannot be read as gzip", "BadGzipFile", "copy it again"]),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(tmp_path, refuses, name, data, words):
    (tmp_path / name).write_bytes(data)
    with refuses(*words):
        list(read_rows(tmp_path / name))


def test_a_field_of_csv_may_be_longer_than_the_module_allows(tmp_path):
    before = csv.field_size_limit()
    text = 'a "book", ' * before
    (tmp_path / "a.csv").write_text(as_csv([{"text": text, "label": "x"}, {"text": "short", "label": "y"}]))
    assert [row.text("text") for row in read_rows(tmp_path / "a.csv")] == [text, "short"]
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(("name", "data"), [("a.csv", 'text,label\n"",x\n'), ("a.tsv", "text\tlabel\n\tx\n")])
def test_an_empty_field_is_not_taken_for_a_missing_column(tmp_path, refuses, name, data):
    (tmp_path / name).write_text(data)
    (row,) = read_rows(tmp_path / name)
    assert not row.has("text")
    with refuses(f"{name}, line 2: text must be a text", "got none", "drop the row"):
        row.text("sentence", "text")


def test_a_file_that_is_gone(tmp_path, refuses):
    with refuses("a.jsonl cannot be read", "FileNotFoundError", "check the path"):
        list(read_rows(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(("name", "data"), [("a.jsonl", b"\n\n"), ("a.tsv", b"text\n"), ("a.csv", b""), ("a.tsv", b"")])
def test_empty_files(tmp_path, refuses, name, data):
    (tmp_path / name).write_bytes(data)
    with refuses(f"{name} must hold a row", "got none"):
        list(rows_of([tmp_path / name]))


def test_lines_end_at_line_feeds_alone(tmp_path):
    (tmp_path / "a.txt").write_bytes("one\u2028still one\r\n \n\x0bthree\n".encode())
    assert list(lines_of(tmp_path / "a.txt")) == [(1, "one\u2028still one"), (3, "\x0bthree")]


ROW = Row("a.tsv, line 7", {"text": "x", "blank": " ", "n": 3, "many": ["a", "b"], "bad": ["a", 1], "none": None,
                            "half": "\ud800", "yes": True, "float": 0.5, "word": "two"})  # fmt: skip


def test_fields_are_found_by_the_first_name_that_holds_something():
    assert ROW.text("sentence", "none", "text") == "x"
    assert ROW.text("blank", blank=True) == " "
    assert ROW.texts("many") == ["a", "b"]
    assert ROW.texts("text") == ["x"]
    assert ROW.texts("nothing") == []
    assert ROW.id("n") == "3"
    assert ROW.id("text") == "x"
    assert Row("", {"n": 7.0}).id("n") == "7"
    assert ROW.number("n") == 3.0
    assert ROW.number("float") == 0.5
    assert Row("", {"n": " 1.5 "}).number("n") == 1.5
    assert ROW.has("none", "n")
    assert not ROW.has("none", "nothing")


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda row: row.text("sentence", "title"), ["a text in the column sentence or title", "text, blank, n"]),
        (lambda row: row.text("none"), ["none must be a text", "got none", "drop the row"]),
        (lambda row: row.text("blank"), ["blank must be a text", "' '", "drop the row"]),
        (lambda row: row.text("n"), ["n must be a text", "got 3"]),
        (lambda row: row.texts("bad"), ["bad must be a text", "got 1"]),
        (lambda row: row.text("half"), ["valid Unicode", "ud800", "escapes"]),
        (lambda row: row.id("yes"), ["a row needs a name or an integer in the column yes", "True", "fill it in"]),
        (lambda row: row.id("float"), ["an integer in the column float", "0.5"]),
        (lambda row: Row(row.place, {"n": float("inf")}).id("n"), ["an integer in the column n", "inf"]),
        (lambda row: Row(row.place, {"n": 2.0**53}).id("n"), ["an integer in the column n", "9007199254740992"]),
        (lambda row: row.id("nothing", "id"), ["an integer in the column nothing or id", "got none"]),
        (lambda row: row.number("word"), ["a row needs a number in the column word", "'two'", "digits"]),
        (lambda row: row.number("many"), ["a row needs a number in the column many"]),
        (lambda row: row.number("yes"), ["a row needs a number in the column yes"]),
    ],
)
def test_fields_that_are_not_as_they_should(refuses, ask, words):
    with refuses("a.tsv, line 7: ", *words):
        ask(ROW)


def test_ids_met_twice_name_both_places(refuses):
    seen = {}
    check_new_id(Row("a.tsv, line 2", {}), "x", seen)
    with refuses("a.tsv, line 7: ids must be unique", "'x', as in a.tsv, line 2"):
        check_new_id(ROW, "x", seen)


def touch(folder, *names):
    for name in names:
        (folder / name).touch()


def test_splits_are_named_by_files_and_parts_are_in_order(tmp_path):
    touch(tmp_path, "train-00001-of-00002.parquet", "train-00000-of-00002.parquet", "test.tsv.gz", "imagenet-a.csv",
          ".hidden.tsv", "README.tsv", "LICENSE.txt", "notes.md", "classes.json")  # fmt: skip
    (tmp_path / "folder.tsv").mkdir()
    found = {split: [path.name for path in paths] for split, paths in split_files(tmp_path).items()}
    assert found == {
        "imagenet-a": ["imagenet-a.csv"],
        "test": ["test.tsv.gz"],
        "train": ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"],
    }


def test_parts_with_a_hash_behind_are_parts(tmp_path):
    names = [f"my-train-0000{part}-of-00002-a09b74b3ef9c3b5{part}.parquet" for part in range(2)]
    touch(tmp_path, *names)
    assert split_files(tmp_path) == {"my-train": [tmp_path / name for name in names]}


@pytest.mark.parametrize("names", [("a-0-of-3.tsv", "a-2-of-3.tsv"), ("a-0-of-2.tsv", "a-1.tsv"), ("a-0-of-2.tsv",)])
def test_a_part_that_is_missing(tmp_path, refuses, names):
    touch(tmp_path, *names)
    with refuses("split 'a' must have all its parts", f"{len(names)}: {names[0]}", "copy the missing parts"):
        split_files(tmp_path)


@pytest.mark.parametrize(
    "names", [("train.tsv", "train.jsonl"), ("train.tsv", "train-0.tsv"), ("a.tsv", "a.tsv.gz"), ("a-0.tsv", "a-1.csv")]
)
def test_a_split_in_two_kinds_of_file(tmp_path, refuses, names):
    touch(tmp_path, *names)
    with refuses("must be one file, or numbered parts of one kind", names[0], names[1], "keep one"):
        split_files(tmp_path)


def test_one_file_alone_is_train(tmp_path, refuses):
    touch(tmp_path, "reviews.jsonl", "reviews.doc")
    assert split_files(tmp_path / "reviews.jsonl") == {"train": [tmp_path / "reviews.jsonl"]}
    with refuses("the file format is not supported", "reviews.doc", ".jsonl, .tsv, .csv, .parquet"):
        split_files(tmp_path / "reviews.doc")


def test_no_files(tmp_path, refuses):
    with refuses("a folder with one file per split", f"none in {tmp_path}", "train.jsonl"):
        split_files(tmp_path)
    with refuses("a folder with one file per split", "which does not exist"):
        split_files(tmp_path / "nowhere")
