"""CSV and TSV files of vectors: numeric columns or JSON lists, ids and payload; errors name the file and the line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import Index
from matryo.cli import main
from matryo.errors import InputError
from matryo.retrieve.sources import open_source

VECTORS = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
TEXTS = [f'number {row}, "quoted"' + "\nand a second line" * (row == 3) for row in range(50)]


def write(path: Path, header: list[str], rows: Any, delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([header, *rows] if header else rows)
    return path


def read(path: Path, **options: Any) -> tuple[list[list[float]], list[Any], list[Any]]:
    batches = list(open_source(path, **options).batches(7))
    ids = [id for batch in batches for id in (batch.ids or [])]
    return np.concatenate([batch.vectors for batch in batches]).tolist(), ids, [p for b in batches for p in b.payload]


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t")])
def test_numeric_columns_are_the_vector(tmp_path: Path, name: str, delimiter: str) -> None:
    rows = [[f"d{row}", *map(repr, VECTORS[row].tolist()), TEXTS[row]] for row in range(50)]
    path = write(tmp_path / name, ["id", "a", "b", "c", "d", "text"], rows, delimiter)
    vectors, ids, payload = read(path)
    np.testing.assert_array_equal(np.float32(vectors), VECTORS)
    assert ids == [f"d{row}" for row in range(50)]
    assert payload == [{"text": text} for text in TEXTS]


def test_json_lists_ids_and_payload_values(tmp_path: Path) -> None:
    rows = [[row, json.dumps(VECTORS[row].tolist()), 2000 + row, "" if row else "007", "1.5"] for row in range(50)]
    path = write(tmp_path / "a.csv", ["key", "emb", "year", "code", "x"], rows)
    vectors, ids, payload = read(path, id_column="key", vector_column="emb")
    np.testing.assert_array_equal(np.float32(vectors), VECTORS)
    assert ids == list(range(50))
    assert payload[:2] == [{"year": 2000, "code": "007", "x": 1.5}, {"year": 2001, "code": None, "x": 1.5}]


def test_named_payload_columns_are_not_part_of_the_vector(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", ["year", "a", "b"], [[2020, 1, 2], [2021, 3, 4]])
    assert read(path)[0] == [[2020, 1, 2], [2021, 3, 4]]
    assert read(path, payload_columns=["year"]) == ([[1, 2], [3, 4]], [], [{"year": 2020}, {"year": 2021}])


def test_a_file_of_numbers_needs_no_header(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "a.csv", VECTORS, delimiter=",", fmt="%.9g")
    np.testing.assert_array_equal(np.float32(read(tmp_path / "a.csv")[0]), VECTORS)


def test_the_command_line_makes_and_asks_an_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[f"d{row}", *VECTORS[row].tolist(), "en"] for row in range(50)]
    path = write(tmp_path / "a.txt", ["id", "a", "b", "c", "d", "lang"], rows)
    folder = str(tmp_path / "idx")
    assert main(["index", folder, str(path), "--format", "csv", "--batch", "20"]) == 0
    with Index.open(folder) as index:
        np.testing.assert_array_equal(index["d7"].vector, VECTORS[7])
        assert index["d7"].payload == {"lang": "en"}
    capsys.readouterr()
    assert main(["search", folder, str(path), "--format", "csv", "-k", "1", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["hits"][0]["id"] for line in told] == [line["query"] for line in told] == [row[0] for row in rows]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.csv must hold a vector (got an empty file): check"),
        ("a,b\n", "a.csv must hold a vector (got only a header): check"),
        ("a,b\nx,y\n", "a.csv must have columns of numbers (got a, b): specify a column of JSON lists"),
        ("a,b\n1,2\n3\n", "a.csv, line 3: a row must have 2 columns, like the first one (got 1): fix or drop"),
        ("a,b\n1,2\n\n3,x\n", "a.csv, line 4: column 2 must be a number, as in the first row (got 'x'): fix or drop"),
        ("a,b\n1,2\n3,\n", "a.csv, line 3: column 2 must be a number, as in the first row (got '')"),
        ("a,b\n1,2\n3,nan\n", "a.csv, line 3: a vector must have finite numbers in float32 (got nan at 1)"),
        ("id,a\n1,2\nx,3\n", "a.csv, line 3: an id must be an integer, like the first one (got 'x')"),
        ("id,a\nx,2\n,3\n", "a.csv, line 3: every row must have an id (got an empty cell): fill it in"),
        ('vector\n"[1, 2]"\n"[1, 2, 3]"\n', "a.csv, line 3: a vector must have 2 numbers, like the first one (got 3)"),
        ('vector\n"[1, 2]"\n[1\n', "a.csv, line 3: a vector must be a JSON list of numbers (got [1): write it as"),
        ('t,a\n"two\nlines",1\nx,y\n', "a.csv, line 4: column 2 must be a number, as in the first row (got 'y')"),
        ("a\n1\n\udcff\n", "must be a readable csv file (got 'utf-8' codec can't decode"),
    ],
)
def test_errors_name_the_file_and_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError) as stop:
        list(open_source(path).batches())
    assert message in str(stop.value)


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", ["a", "b"], [[1, 2]])
    with pytest.raises(InputError, match=r"a.csv has no column key \(got a, b\): use one of these names"):
        open_source(path, id_column="key")
    with pytest.raises(InputError, match=r"b.csv, line 1: must be a readable csv file \(got .*No such file"):
        open_source(tmp_path / "b.csv")
