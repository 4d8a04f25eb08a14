"""A filter on a field that no payload has is an error with the similar field, not an empty result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import Index
from matryo.cli import main
from matryo.errors import InputError


@pytest.fixture
def index(tmp_path: Path) -> Any:
    with Index.create(tmp_path / "idx", nesting=[2]) as made:
        made.add(np.eye(2), payload=[{"year": 2020, "tags": {"lang": "en"}}, {"year": None}])
        yield made


@pytest.mark.parametrize(
    ("where", "field", "cure"),
    [
        ({"yeer": 2020}, "yeer", "did you mean year"),
        ({"yeer": {"$ne": 2020}}, "yeer", "did you mean year"),
        ({"$or": [{"year": 2020}, {"$not": {"tgas": 1}}]}, "tgas", "did you mean tags"),
        ({"tags.lnag": "en"}, "tags.lnag", "did you mean tags.lang"),
        ({"price": {"$gt": 3, "$exists": True}}, "price", "the fields are year, tags"),
        ({"year.month": 3}, "year.month", "its vectors have no such payload: pass payload=… to add or upsert"),
    ],
)
def test_the_similar_field_is_named(index: Index, where: dict[str, Any], field: str, cure: str) -> None:
    with pytest.raises(InputError) as stop:
        index.search([1, 0], where=where)
    assert str(stop.value) == f"where compares a field that no payload has (got {field!r}): {cure}"


@pytest.mark.parametrize("where", [{"year": 1900}, {"tags.lang": "de"}, {"yeer": {"$exists": True}}, {"$or": []}])
def test_a_known_field_without_a_match_finds_nothing(index: Index, where: dict[str, Any]) -> None:
    assert index.search([1, 0], k=2, where=where).ids.tolist() == [[-1, -1]]


def test_a_missing_field_may_be_asked_about(index: Index) -> None:
    assert index.search([1, 0], k=2, where={"yeer": {"$exists": False}}).ids.tolist() == [[0, 1]]


def test_an_empty_index_has_no_fields_to_know(tmp_path: Path) -> None:
    with Index.create(tmp_path / "empty", nesting=[2]) as empty:
        assert empty.search([1, 0], k=1, where={"year": 2020}).ids.tolist() == [[-1]]


def test_fields_of_another_process_are_known_at_once(index: Index) -> None:
    folder = str(index.path)
    index.close()
    code = f"from matryo import Index; Index.open({folder!r}, writable=True).upsert([[1, 1]], [1], [{{'size': 3}}])"
    with Index.open(folder) as reader:
        with pytest.raises(InputError, match="the fields are year, tags"):
            reader.search([1, 0], where={"size": 3})
        subprocess.run([sys.executable, "-c", code], check=True)
        assert reader.search([1, 0], k=1, where={"size": 3}).ids.tolist() == [[1]]


def test_payloads_are_read_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    from matryo.retrieve.store.sql import records

    reads: list[tuple[int, int]] = []
    read = records.row_payloads
    monkeypatch.setattr(records, "row_payloads", lambda *args: reads.append(args[1:]) or read(*args))
    for year in range(2018, 2022):
        index.search([1, 0], where={"year": year})
    assert reads == [(0, 1)]
    index.delete([1])
    assert index.search([1, 0], k=1, where={"year": 2020}).ids.tolist() == [[0]]
    assert reads == [(0, 1)]
    index.add([[1, 1]], payload=[{"year": 2020}])
    assert index.search([1, 0], k=2, where={"year": 2020}).ids.tolist() == [[0, 2]]
    assert reads == [(0, 1), (0, 2)]


def test_a_field_whose_last_row_is_deleted_is_unknown(index: Index) -> None:
    index.add([[1, 1]], payload=[{"size": 1}])
    assert index.search([1, 1], k=1, where={"size": 1}).ids.tolist() == [[2]]
    index.delete([2])
    with pytest.raises(InputError, match="no payload has"):
        index.search([1, 1], where={"size": 1})


def test_the_command_line_names_it_too(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(index.path)
    assert main(["search", folder, "--like", "0", "--where", json.dumps({"yeer": 2020})]) == 1
    assert "no payload has (got 'yeer'): did you mean year" in capsys.readouterr().err
