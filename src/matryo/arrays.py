"""The array types that annotations share, and the conversion of lists, tensors, tables and columns to arrays.

Tables and columns of pandas, polars, Arrow and Hugging Face ``datasets`` are recognised by their methods, so none of
these libraries is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from matryo.errors import InputError, shown

__all__ = ["Array", "Bools", "Doubles", "Floats", "Integers", "appended", "as_array"]

Array = np.ndarray[Any, np.dtype[Any]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

Kind = TypeVar("Kind", bound=Array)


def as_array(values: Any, name: str = "vectors", error: type[InputError] = InputError) -> Array:
    """Return ``values`` as an array; a column of lists becomes [rows, dim]. ``name`` and ``error`` are for messages.

    A table with one column of lists is read as that column. Any other table must hold numbers only.

    >>> as_array([[1, 2], [3, 4]]).shape
    (2, 2)
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).tobytes().strip(b"\0"):
        raise error(f"{name} must have no masked entries", got=shown(values), cure="fill them, or drop their rows")
    if isinstance(values, np.ndarray) and values.dtype != object:
        return np.asarray(values)   # a matrix or a record array behaves differently
    try:
        column = _column_of(values, name, error)
        if hasattr(column, "detach"):   # a torch tensor, perhaps on a GPU; numpy has neither bfloat16 nor float8
            column = column.detach().cpu()
            foreign = "bfloat16" in str(column.dtype) or "float8" in str(column.dtype)
            column = column.float() if foreign else column
        elif hasattr(column, "to_numpy"):
            column = column.to_numpy()
        elif isinstance(column, Sequence):
            column = column[:]   # a column of Hugging Face datasets reads all rows at once when sliced
        array = np.asarray(column)
        return np.array(array.tolist()) if array.dtype == object else array   # an array of lists
    except InputError:
        raise
    except Exception as cause:   # each library raises errors of its own
        raise error(
            f"{name} must be an array, a table or lists of equal length",
            got=f"{type(values).__name__}: {cause!s:.120}",
            cure="convert them with numpy.asarray first",
        ) from cause


def _column_of(table: Any, name: str, error: type[InputError]) -> Any:
    """Return the only column of lists of a table; anything else unchanged."""
    columns = getattr(table, "column_names", None)   # Arrow and Hugging Face; .columns of Arrow holds the values
    columns = getattr(table, "columns", None) if columns is None else columns
    if columns is None or not len(table):
        return table
    first_row = table[:1]
    of_lists = [column for column in columns if _is_list(next(iter(first_row[column])))]
    if len(of_lists) > 1:
        raise error(
            f"{name} must come from one column", got=", ".join(map(str, of_lists)), cure=f"pass table[{of_lists[0]!r}]"
        )
    return table[of_lists[0]] if of_lists else table


def _is_list(cell: Any) -> bool:
    value = cell.as_py() if hasattr(cell, "as_py") else cell   # an Arrow scalar
    return hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict))


def appended(array: Kind, new: Kind) -> Kind:
    """Return ``array`` followed by ``new``, in the spare room of the buffer of ``array`` if there is some.

    Growing an array step by step then takes time proportional to its final length. Each array may be extended once.
    """
    count, buffer = len(array) + len(new), array.base
    if not isinstance(buffer, np.ndarray) or len(buffer) < count or buffer.shape[1:] != array.shape[1:]:
        buffer = np.empty((2 * count, *array.shape[1:]), array.dtype)
        buffer[: len(array)] = array
    buffer[len(array) : count] = new
    view = buffer[:count]
    view.flags.writeable = False
    return view   # type: ignore[return-value]
