"""Check the arguments of public functions by their annotations, so that a wrong type is one line of text.

``@checked`` reads the annotations of a function, or of the fields of a dataclass, once. At each call, numpy scalars
become plain numbers, tensors and lists become arrays where an array is declared, and any other type is refused.
Lengths, ranges and rules between arguments are left to the function, which can assume the types.

>>> @checked
... def repeat(text: str, times: int = 2) -> str:
...     return text * times
>>> repeat("ab", times=3.5)
Traceback (most recent call last):
...
matryo.errors.InputError: times must be an integer (got 3.5): see help(repeat)
"""

from __future__ import annotations

import ast
import inspect
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import wraps
from itertools import islice
from numbers import Real
from typing import Any, NamedTuple, TypeVar

from matryo.errors import DataError, EmbeddingsError, InputError, NestingError, shown

__all__ = ["as_integer", "as_number", "as_path", "checked", "is_dense"]

Function = TypeVar("Function", bound=Callable[..., Any])
Convert = Callable[[Any], Any]
"""Returns the converted value, or _REFUSED."""

_REFUSED = object()
_LONGEST = 1_000_000   # entries that are read from an iterator, which may be endless
_CLASSES = {
    "BertConfig", "Blocks", "Dataset", "EmbeddingSet", "Evaluation", "Head", "Layers", "Limits", "Manifest",
    "Map", "Module", "Nesting", "Pairs", "Plan", "Predictions", "Promise", "Recipe", "Relevance", "Request", "Result",
    "Row", "Shortlist", "Stage", "Subject", "Tokens", "TrainedModel", "Trends", "Truncation",
}  # fmt: skip
_ERRORS = {"data": DataError, "embeddings": EmbeddingsError, "nesting": NestingError}   # of these rooms
_LEAST = {"seed": 0}   # the smallest integer that arguments of this name may be
_METHODS = {"ImageSplit": "image", "TextSplit": "text"}
_ARRAYS = {"Array": "fiubU", "ArrayLike": "fiubU", "Floats": "fiub", "Doubles": "fiub", "Vectors": "fiub",
           "Integers": "iu", "Indices": "iu", "Ids": "iu", "Bools": "b"}  # fmt: skip


class _Kind(NamedTuple):
    """A kind of value: the words for it in a message, and its conversion (None: anything)."""

    words: str
    convert: Convert | None = None


def checked(function: Function) -> Function:
    """Decorate a function, method or dataclass: each call checks and converts the arguments by their annotations.

    Unknown annotations, such as type variables, are not checked.
    """
    if inspect.isclass(function):
        function.__init__ = checked(function.__init__)   # type: ignore[method-assign]
        return function
    parameters = inspect.signature(function).parameters.values()
    by_name = {parameter.name: _converter(parameter, function) for parameter in parameters}
    positional = [by_name[p.name] for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((by_name[p.name] for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    others = next((_parse(p.annotation) for p in parameters if p.kind is p.VAR_KEYWORD), _Kind(""))

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = list(args)
        for place, value in enumerate(args):
            convert = positional[place] if place < len(positional) else rest
            if convert is not None:
                values[place] = convert(value)
        for key, value in kwargs.items():
            convert = by_name.get(key)
            if convert is not None:
                kwargs[key] = convert(value)
            elif key not in by_name and others.convert is not None:
                kwargs[key] = _or_raise(others, value, key, function)
        return function(*values, **kwargs)

    return call   # type: ignore[return-value]


def as_integer(value: Any, name: str, low: int, high: int | None = None, *, cure: str = "") -> int:
    """Return ``value`` as an integer from ``low`` to ``high``, or raise.

    >>> as_integer(0, "seed", 1)
    Traceback (most recent call last):
    ...
    matryo.errors.InputError: seed must be an integer of at least 1 (got 0): pass seed=1
    """
    number = _integer(value)
    if number is _REFUSED or number < low or (high is not None and number > high):
        rule = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InputError(f"{name} must be an integer {rule}", got=shown(value), cure=cure or f"pass {name}={low}")
    return int(number)


def as_number(value: Any, name: str, low: float, high: float = math.inf, *, cure: str) -> float:
    """Return ``value`` as a number from ``low`` to ``high``, or raise."""
    number = _number(value)
    if number is _REFUSED or not low <= number <= high:
        rule = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise InputError(f"{name} must be a number {rule}", got=shown(value), cure=cure)
    return float(number)


def as_path(value: Any, name: str = "path") -> str | os.PathLike[str]:
    """Return ``value`` unchanged if a file system can have such a path, or raise."""
    if _path(value) is _REFUSED:
        raise InputError(f"{name} must be a {_PATH}", got=shown(value), cure="pass text or a pathlib.Path")
    path: str | os.PathLike[str] = value
    return path


def _converter(parameter: inspect.Parameter, function: Callable[..., Any]) -> Callable[[Any], Any] | None:
    kind = _Kind("") if parameter.annotation is parameter.empty else _parse(parameter.annotation)
    if kind.convert is None or parameter.kind is parameter.VAR_KEYWORD:
        return None
    if parameter.name in _LEAST:
        kind = _at_least(kind, _LEAST[parameter.name])
    return lambda value: _or_raise(kind, value, parameter.name, function)


def _at_least(kind: _Kind, least: int) -> _Kind:
    def convert(value: Any) -> Any:
        converted = kind.convert(value) if kind.convert is not None else value
        return _REFUSED if isinstance(converted, int) and converted < least else converted

    return _Kind(kind.words.replace("an integer", f"an integer of at least {least}"), convert)


def _or_raise(kind: _Kind, value: Any, name: str, function: Callable[..., Any]) -> Any:
    assert kind.convert is not None
    converted = kind.convert(value)
    if converted is _REFUSED:
        room = "nesting" if name in ("dim", "dims") else function.__module__.removeprefix("matryo.").partition(".")[0]
        cure = f"see help({function.__qualname__.removesuffix('.__init__')})"
        raise _ERRORS.get(room, InputError)(f"{name} must be {kind.words}", got=shown(value), cure=cure)
    return converted


def _parse(annotation: Any) -> _Kind:
    """The kind of value that an annotation declares, from its text: many names exist for type checkers only."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "Any")
    return _of(ast.parse(text, mode="eval").body)


def _of(node: ast.expr) -> _Kind:
    if isinstance(node, ast.BinOp):
        return _union([_of(side) for side in _sides(node)])
    if isinstance(node, ast.Attribute):   # nn.Module
        node = ast.Name(node.attr)
    if isinstance(node, ast.Constant) and node.value is None:
        return _Kind("None", lambda value: None if value is None else _REFUSED)
    if isinstance(node, ast.Name):
        return _named(node.id)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return _generic(node.value.id, inner)
    return _Kind("")


def _sides(node: ast.expr) -> list[ast.expr]:
    return [*_sides(node.left), *_sides(node.right)] if isinstance(node, ast.BinOp) else [node]


def _union(kinds: list[_Kind]) -> _Kind:
    if any(kind.convert is None or kind.words == "a Nesting" for kind in kinds):
        return _Kind("")   # as_nesting checks a nesting or a list of dims
    if _PLAIN["Path"] in kinds:   # str | Path is a path
        kinds = [kind for kind in kinds if kind is not _PLAIN["str"]]
    # Plain numbers last: a tensor that may be a float or a tensor stays a tensor.
    ordered = sorted(kinds, key=lambda kind: kind in _PLAIN.values())
    converts = [kind.convert for kind in ordered if kind.convert is not None]

    def convert(value: Any) -> Any:
        for attempt in converts:
            converted = attempt(value)
            if converted is not _REFUSED:
                return converted
        return _REFUSED

    *most, last = (kind.words for kind in kinds)
    return _Kind(f"{', '.join(most)} or {last}" if most else last, convert)


def _named(name: str) -> _Kind:
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "Tensor":
        return _Kind("a dense Tensor, not float8", _tensor)
    if name in _CLASSES:
        article = "an" if name[0] in "AEIO" else "a"
        return _Kind(f"{article} {name}", lambda value: value if _is_named(value, name) else _REFUSED)
    if name in _METHODS:
        method = _METHODS[name]
        return _Kind(f"a split with the method {method}", lambda value: value if hasattr(value, method) else _REFUSED)
    if name in _ARRAYS:
        words = {"iu": "an array of integers", "b": "an array of booleans"}.get(_ARRAYS[name], "an array of numbers")
        return _Kind(words, lambda value: _array(value, _ARRAYS[name]))
    return _Kind("")


def _generic(name: str, inner: list[ast.expr]) -> _Kind:
    if name == "Literal":
        options = [node.value for node in inner if isinstance(node, ast.Constant)]
        words = f"one of {', '.join(map(repr, options))}"
        return _Kind(words, lambda value: value if isinstance(value, str) and value in options else _REFUSED)
    if name in ("Callable", "type"):
        return _Kind("a function" if name == "Callable" else "a class", _callable)
    if name in ("Mapping", "dict"):
        return _Kind("a dict", lambda value: value if isinstance(value, Mapping) else _REFUSED)
    several = [node for node in inner if not (isinstance(node, ast.Constant) and node.value is ...)]
    if name == "tuple" and len(several) == len(inner) > 1:
        return _Kind(f"a tuple of {len(inner)}", _tuple_of([_of(node) for node in inner]))
    if name in ("Sequence", "list", "tuple", "Iterable"):
        kind = _of(inner[0])
        if name == "Iterable" and (kind.convert is None or kind is _PLAIN["str"]):
            return _Kind("a list", _iterable)   # may be long, and is read once
        words = f"a list of entries that are {kind.words}" if kind.words else "a list"
        # The keys of a dict are an iterable, in order; they are not a sequence.
        keys = name == "Iterable"
        return _Kind(words, lambda value: _list(list(value) if keys and isinstance(value, Mapping) else value, kind))
    return _named(name)


def _is_named(value: Any, name: str) -> bool:
    kind = type(value)
    return kind.__name__ == name or any(base.__name__ == name for base in kind.__mro__)


def _tensor(value: Any) -> Any:
    return value if is_usable(value) else _REFUSED


def is_usable(value: Any) -> bool:
    """Whether ``value`` is a tensor that torch can compute with: most operations take no sparse ones and no float8."""
    return _is_named(value, "Tensor") and is_dense(value) and "float8" not in str(value.dtype)


def is_dense(tensor: Any) -> bool:
    """Whether a torch tensor has a place in memory for each number."""
    return not (tensor.is_sparse or tensor.is_sparse_csr or tensor.is_mkldnn)


def _integer(value: Any) -> Any:
    if type(value) is not int:
        if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
            return _REFUSED
        try:
            value = operator.index(value)
        except Exception:   # objects of other libraries raise errors of their own
            return _REFUSED
    return value if -(2**63) <= value < 2**63 else _REFUSED


def _number(value: Any) -> Any:
    if type(value) is not float:
        kind = getattr(getattr(value, "dtype", None), "kind", "f")   # of numpy; tensors have none
        real = isinstance(value, Real) or (hasattr(value, "dtype") and kind in "fiu")
        if not real or isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
            return _REFUSED
        try:
            number = float(value) if getattr(value, "ndim", 0) == 0 else None
        except Exception:
            return _REFUSED
        value = value if type(value) is int else number
    return _REFUSED if value is None else value   # NaN is left to the check of the range


def _boolean(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    number = type(value) is int and value in (0, 1)
    return bool(value) if number or type(value).__name__ in ("bool", "bool_") else _REFUSED   # the latter of numpy


def _text(value: Any) -> Any:
    try:
        return value if isinstance(value, str) and value.encode() is not None else _REFUSED
    except UnicodeEncodeError:   # an unpaired surrogate
        return _REFUSED


def _path(value: Any) -> Any:
    try:
        name = os.fsencode(os.fspath(value)) if not isinstance(value, bytes) else b"\0"
    except Exception:
        return _REFUSED
    fits = b"\0" not in name and len(name) < 4096 and all(len(part) < 256 for part in name.split(b"/"))
    return value if fits else _REFUSED


def _callable(value: Any) -> Any:
    return value if callable(value) else _REFUSED


def _iterable(value: Any) -> Any:
    listed = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    return value if listed and getattr(value, "ndim", None) != 0 else _REFUSED   # no array without axes


def _list(value: Any, kind: _Kind) -> Any:
    if _iterable(value) is _REFUSED or isinstance(value, (set, frozenset, Mapping)):
        return _REFUSED
    try:
        entries = list(islice(value, None if isinstance(value, Sized) else _LONGEST))
    except Exception:   # an array without axes, for example
        return _REFUSED
    if kind.convert is not None:
        entries = [kind.convert(entry) for entry in entries]
        if any(entry is _REFUSED for entry in entries):
            return _REFUSED
    return tuple(entries) if isinstance(value, tuple) else entries


def _tuple_of(kinds: list[_Kind]) -> Convert:
    def convert(value: Any) -> Any:
        entries = _list(value, _Kind(""))
        if entries is _REFUSED or len(entries) != len(kinds):
            return _REFUSED
        converted = [kind.convert(entry) if kind.convert else entry for kind, entry in zip(kinds, entries, strict=True)]
        return _REFUSED if any(entry is _REFUSED for entry in converted) else tuple(converted)

    return convert


def _array(value: Any, kinds: str) -> Any:
    import numpy as np

    from matryo.arrays import as_array

    try:
        array = as_array(value)
    except InputError:
        return _REFUSED
    if kinds == "iu" and array.dtype.kind == "f" and array.size == 0:   # numpy makes floats of an empty list
        array = array.astype(np.int64)
    # A mask stays a mask: as integers it would be the rows 0 and 1.
    return array if array.dtype.kind in kinds or (kinds == "iu" and array.dtype.kind == "b") else _REFUSED


_PATH = "path whose names have at most 255 bytes and no NUL"
_PLAIN = {
    "int": _Kind("an integer", _integer),
    "float": _Kind("a number", _number),
    "bool": _Kind("True or False", _boolean),
    "str": _Kind("valid text", _text),
    "bytes": _Kind("bytes", lambda value: value if isinstance(value, bytes) else _REFUSED),
    "Path": _Kind(f"a {_PATH}", _path),
}
