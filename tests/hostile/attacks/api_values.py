"""Hypothesis strategies for arguments that no caller should pass, and for unusual ones that functions take."""

from __future__ import annotations

import datetime
import decimal
import importlib.util
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

HAS_TORCH = importlib.util.find_spec("torch") is not None


class Opaque:
    """An object whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Wrong:
    """An object that claims to be an array, with many lines of text."""

    dtype, shape, ndim = "float32", (2, 2), 2

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not\nreally\nan array")

    def __repr__(self) -> str:
        return "a\nb\nc"


def deep(levels: int, of: type) -> Any:
    """A list or dict of many levels."""
    value: Any = of()
    for _ in range(levels):
        value = [value] if of is list else {"inner": value}
    return value


SCALARS = [
    None,
    True,
    False,
    np.True_,
    -1,
    0,
    1,
    3,
    7,
    2**63,
    10**30,
    -(2**63),
    np.int8(3),
    np.uint64(2**63),
    0.5,
    -1.0,
    2.0,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e308,
    5e-324,
    np.float32(0.5),
    np.longdouble(0.5),
    1j,
    decimal.Decimal("0.5"),
    datetime.date(2020, 5, 1),
    np.datetime64("2020-05-01"),
    np.timedelta64(3, "s"),
    ...,
]
TEXTS = [
    "",
    "a",
    "abc",
    "NUL\0here",
    "\ud800",
    "x" * 300,
    "é" * 200,
    "two\nlines",
    "cosine",
    "float32",
    "auto",
    b"bytes",
    b"\xff",
    np.str_("abc"),
    pathlib.Path("a/b"),
    pathlib.Path("x" * 300),
    "{}",
    "[1, 2]",
    "greedy",
]
LISTS = [
    [],
    (),
    {},
    set(),
    {1, 2},
    frozenset("ab"),
    [1, 2],
    [2, 1],
    (4, 8),
    [1.5],
    ["a"],
    ["a", 1, None],
    [[1, 2], [3]],
    [[], []],
    [None],
    [[]],
    {"a": 1},
    {1: "a"},
    {8: [[1.0]]},
    [{}],
    [{"a": {1, 2}}],
    range(3),
    range(0),
    [2**70],
    [float("nan")],
    [10**400],
    [True, False],
    [[1, "a"]],
    ["\ud800"],
    ["a\0b"],
    [b"a"],
    "ab",
]


STRANGE: list[Callable[[], Any]] = [
    Opaque,
    Wrong,
    object,
    lambda: int,
    lambda: len,
    lambda: lambda *_: None,
    lambda: iter([1, 2]),
    lambda: (number for number in range(3)),
    lambda: memoryview(b"ab"),
    lambda: bytearray(b"ab"),
    lambda: deep(2000, list),
    lambda: deep(2000, dict),
    lambda: slice(3),
    lambda: Exception("e"),
    lambda: open,
]


def tensors() -> list[Callable[[], Any]]:
    """Tensors of every kind, many of which numpy cannot represent."""
    import torch

    rows = torch.arange(32.0).reshape(4, 8)
    plain = [
        rows,
        rows.bfloat16(),
        rows.half(),
        rows.double(),
        rows.to(torch.int8),
        rows.bool(),
        rows.to(torch.complex64),
        rows.to_sparse(),
        rows.to("meta"),
        torch.empty(0),
        torch.tensor(3),
        torch.tensor(0.5),
        torch.tensor(True),
        rows.T,
        rows[:, ::2],
        torch.full((4, 8), torch.nan),
        torch.arange(4),
        torch.zeros(2, 2, 2),
        torch.nn.Linear(8, 2),
        torch.tensor([0, 1, 2, 10**12]),
        rows.to(torch.float8_e4m3fn),
        torch.tensor([-1, 0, 1, 2]),
    ]
    return [*(lambda tensor=tensor: tensor for tensor in plain), lambda: rows.clone().requires_grad_()]


DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="="),
    hnp.integer_dtypes(endianness=">"),
    hnp.floating_dtypes(),
    hnp.floating_dtypes(endianness=">"),
    hnp.complex_number_dtypes(),
    hnp.datetime64_dtypes(),
    hnp.timedelta64_dtypes(),
    hnp.unicode_string_dtypes(max_len=3),
    hnp.byte_string_dtypes(max_len=3),
    st.sampled_from([np.dtype("longdouble"), np.dtype(object), np.dtype([("a", "f4"), ("b", "i4")])]),
)
SHAPES = st.one_of(
    st.sampled_from([(4, 8), (8,), (40, 8), (40,), (1, 8), (3, 8), (2, 4, 5)]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """An array of any dtype, shape and layout."""
    dtype, shape = draw(DTYPES), draw(SHAPES)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    numbers = rng.integers(-3, 9, shape) if draw(st.booleans()) else rng.standard_normal(shape)
    try:
        array = numbers.astype(dtype) if dtype.kind not in "SUV" else np.zeros(shape, dtype)
    except (TypeError, ValueError):
        array = np.zeros(shape, dtype)
    if array.dtype.kind == "f" and array.size and draw(st.integers(0, 4)) == 0:
        array.flat[0] = draw(st.sampled_from([np.nan, np.inf, 0, 1e30 if array.itemsize > 2 else 6e4, 1e-40]))
    return draw(st.sampled_from(LAYOUTS))(array)


def read_only(array: Any) -> Any:
    """The array, without permission to write."""
    array.flags.writeable = False
    return array


LAYOUTS = [
    lambda array: array,
    np.asfortranarray,
    lambda array: np.repeat(array, 2, 0)[::2] if array.ndim else array,
    lambda array: array[::-1] if array.ndim else array,
    read_only,
    lambda array: array.view(np.recarray),
    lambda array: np.ma.masked_array(array, mask=np.arange(array.size).reshape(array.shape) % 2 == 0),
    lambda array: array.tolist(),
    lambda array: np.asmatrix(array) if array.ndim == 2 else array,
    list,
]
LAYOUTS[-1] = lambda array: list(array) if array.ndim else array


def values() -> st.SearchStrategy[Any]:
    """Any value."""
    makers = [*STRANGE, *(tensors() if HAS_TORCH else [])]
    made = st.sampled_from(makers).map(lambda make: make())
    return st.one_of(st.sampled_from(SCALARS), st.sampled_from(TEXTS), st.sampled_from(LISTS), arrays(), made)
