"""Payloads take numpy scalars, dates, None and tables; what cannot be stored is named by field and row."""

from __future__ import annotations

from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import Index
from matryo.errors import InputError


@pytest.fixture
def index(tmp_path: Path) -> Any:
    with Index.create(tmp_path / "idx", nesting=[2]) as made:
        yield made


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (np.int16(-3), -3), (np.uint8(7), 7), (np.float32(0.1), float(np.float32(0.1))), (np.float64(0.1), 0.1),
        (np.bool_(True), True), (np.str_("é"), "é"), (None, None),
        ([np.int64(1), {"a": np.float16(0.5)}], [1, {"a": 0.5}]),
        (date(2020, 5, 1), "2020-05-01"), (datetime(2020, 5, 1, 12, 30), "2020-05-01T12:30:00"),
        (time(12, 30), "12:30:00"), (np.datetime64("2020-05-01"), "2020-05-01"),
        (np.datetime64("2020-05"), "2020-05-01"),
        (np.datetime64("2020-05-01T12:30:00.000000000"), "2020-05-01T12:30:00"),
    ],
)  # fmt: skip
def test_values_are_stored_as_json(index: Index, value: Any, stored: Any) -> None:
    index.add([[1, 0]], payload=[{"x": value}])
    found = index[0].payload["x"]
    assert (found, type(found)) == (stored, type(stored))
    if not isinstance(value, list):
        assert index.search([1, 0], k=1, where={"x": value}).ids.tolist() == [[0]]


def test_dates_are_compared_as_text(index: Index) -> None:
    days = [date(2019, 12, 31), date(2020, 1, 1), date(2020, 2, 1)]
    index.add(np.ones((3, 2)), payload=[{"day": day} for day in days])
    for least in (date(2020, 1, 1), "2020", np.datetime64("2020-01-01")):
        hits = index.search([1, 1], k=3, where={"day": {"$gte": least}}).ids
        assert hits.tolist() == [[1, 2, -1]]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"), (np.float32("inf"), "inf"), ((1, 2), "(1, 2)"), ({1}, "{1}"), (b"x", "b'x'"),
        (np.array([1, 2]), "array([1, 2])"), (np.datetime64("NaT"), "NaT"), (np.timedelta64(1, "D"), "timedelta64"),
        (1j, "1j"), (object, "<class 'object'>"), ("\ud800", "'\\ud800'"),
    ],
)  # fmt: skip
def test_other_values_are_refused_by_field_and_row(index: Index, value: Any, shown: str) -> None:
    with pytest.raises(InputError) as stop:
        index.add(np.ones((2, 2)), payload=[{}, {"a": {"b": value}}])
    assert "payload values must be valid text, finite numbers, booleans, None, dates" in str(stop.value)
    assert shown in str(stop.value)
    assert str(stop.value).endswith("in field 'a.b' of row 1): convert the value, or drop the field")
    assert len(index) == 0


ROWS = [{"year": 2020, "lang": "en", "day": "2020-05-01"}, {"year": 2021, "lang": None, "day": None}]


def check(index: Index, table: Any) -> None:
    index.add(np.ones((2, 2)), payload=table)
    assert [index[row].payload for row in range(2)] == ROWS


def test_pandas(index: Index) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"year": [2020, 2021], "lang": ["en", float("nan")]})
    frame["day"] = pandas.to_datetime(["2020-05-01", None]).date
    check(index, frame)
    times = pandas.DataFrame({"at": pandas.to_datetime(["2020-05-01 12:00", None])})
    index.add(np.ones((2, 2)), payload=times)
    assert [index[row].payload for row in (2, 3)] == [{"at": "2020-05-01T12:00:00"}, {"at": None}]


def test_polars(index: Index) -> None:
    polars = pytest.importorskip("polars")
    check(index, polars.DataFrame({"year": [2020, 2021], "lang": ["en", None], "day": [date(2020, 5, 1), None]}))


def test_arrow(index: Index) -> None:
    arrow = pytest.importorskip("pyarrow")
    check(index, arrow.table({"year": [2020, 2021], "lang": ["en", None], "day": [date(2020, 5, 1), None]}))


def test_datasets(index: Index) -> None:
    datasets = pytest.importorskip("datasets")
    check(index, datasets.Dataset.from_list(ROWS))


def test_a_table_of_another_length_is_refused(index: Index) -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match=r"one entry for each of the 3 vectors \(got 2\)"):
        index.add(np.ones((3, 2)), payload=pandas.DataFrame({"a": [1, 2]}))
