"""`truncate` takes lists, arrays of integers and tables, and explains what it cannot take."""

import numpy as np
import pytest

from matryo import truncate
from matryo.errors import NestingError

UNIT = [[0.6, 0.8]]


def test_lists_and_integers_are_normalised_as_float32() -> None:
    for vectors in ([[3, 4, 12]], np.array([[3, 4, 12]]), np.array([[3, 4, 12]], np.uint8)):
        unit = truncate(vectors, 2)
        assert unit.dtype == np.float32
        np.testing.assert_allclose(unit, UNIT, rtol=1e-6)
    assert truncate([3.0, 4.0, 12.0], 2).tolist() == UNIT[0]


def test_integer_tensors_are_normalised_as_float32() -> None:
    torch = pytest.importorskip("torch")
    unit = truncate(torch.tensor([[3, 4, 12]]), 2)
    assert unit.dtype == torch.float32
    torch.testing.assert_close(unit, torch.tensor(UNIT))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_tables_of_numbers_and_columns_of_lists(library: str) -> None:
    frames = pytest.importorskip(library)
    numbers = frames.DataFrame({"a": [3.0, 0.0], "b": [4.0, 1.0], "c": [12.0, 5.0]})
    lists = frames.DataFrame({"id": ["x", "y"], "vector": [[3.0, 4.0, 12.0], [0.0, 1.0, 5.0]]})
    for table in (numbers, lists, lists["vector"]):
        np.testing.assert_allclose(truncate(table, 2), [[0.6, 0.8], [0.0, 1.0]])
    with pytest.raises(NestingError, match="must be real numbers"):
        truncate(lists["id"], 1)


def test_an_arrow_table_with_a_column_of_lists() -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"id": ["x"], "vector": [[3.0, 4.0, 12.0]]})
    np.testing.assert_allclose(truncate(table, 2), UNIT)
    both = arrow.table({"title": [[3.0, 4.0]], "body": [[3.0, 4.0]]})
    with pytest.raises(NestingError, match=r"one column \(got title, body\): pass table\['title'\]"):
        truncate(both, 2)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([["a", "b"]], r"real numbers, one row per vector \(got <U1, shape \(1, 2\)\): select the numeric columns"),
        (7, r"real numbers.*shape \(\)"),
        ([[1, 2], [3]], r"lists of equal length \(got list: .*\): convert them with numpy"),
        (object(), "real numbers"),
        ([[1 + 2j]], "real numbers"),
    ],
)
def test_what_is_not_a_vector_gets_an_explanation(vectors: object, message: str) -> None:
    with pytest.raises(NestingError, match=message):
        truncate(vectors, 1)   # type: ignore[call-overload]
