"""A batch of new rows: vectors, ids and payloads, checked whole before anything is written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from matryo.embeddings.rows import as_ids
from matryo.errors import InputError
from matryo.retrieve.store.sql.where import is_unicode

if TYPE_CHECKING:
    from matryo.retrieve.store.sql.records import State

    Ids = list[int] | list[str]

__all__ = ["Batch", "as_known_ids", "as_new_ids", "as_payload"]

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_DEEPEST = 100   # SQLite's JSON functions read no deeper than 1000


class Batch(NamedTuple):
    """Rows to add together: what ``add`` takes."""

    vectors: Any
    ids: Any = None
    payload: Any = None


def as_new_ids(ids: Any, count: int, state: State) -> Ids:
    """``ids`` as ``count`` distinct ids of the store's kind; the next integers where none are given."""
    if ids is None:
        if state.kind == "str":
            raise InputError("the ids of this index are strings", got="none", cure="give each vector an id")
        if state.next_id + count > 2**63:
            raise InputError("ids must fit in 64 signed bits", got=state.next_id + count - 1, cure="give ids")
        return list(range(state.next_id, state.next_id + count))
    return _of_kind(as_ids(ids, count), state)


def as_known_ids(ids: Any) -> Ids:
    """``ids`` to look for, in order; one may come more than once."""
    try:
        each = list(np.ravel(ids).tolist() if isinstance(ids, np.ndarray) else ids)
    except TypeError:   # no list
        each = [ids]
    if not isinstance(ids, (str, int)):
        if all(isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in each):
            return [int(one) for one in each]
        if all(isinstance(one, str) and is_unicode(one) for one in each):
            return [str(one) for one in each]
    raise InputError("ids must be a list of integers or of strings", got=f"{ids!r:.60}", cure="one is [id]")


def as_payload(payload: Any, count: int) -> list[str | None]:
    """A JSON object a row as text, None for an empty one."""
    if payload is None:
        return [None] * count
    if isinstance(payload, (str, Mapping)) or not isinstance(payload, Sequence):
        raise InputError(
            "payload must be a list of dicts, one a vector", got=f"{payload!r:.60}", cure="wrap a single one in a list"
        )
    if len(payload) != count:
        raise InputError(
            f"payload must have one entry for each of the {count} vectors", got=len(payload), cure="use {} for none"
        )
    return [_as_text(one, row) for row, one in enumerate(payload)]


def _as_text(value: Any, row: int) -> str | None:
    if value is None or value == {}:
        return None
    try:
        text = _JSON.encode(value)
        same = isinstance(value, dict) and bool(json.loads(text) == value) and _depth(value, text) <= _DEEPEST
        text.encode()
    except (TypeError, ValueError, RecursionError):   # what JSON has not, NaN, half of a surrogate pair
        same = False
    if not same:
        raise InputError(
            "a payload must be a dict of plain JSON values",
            got=f"{value!r:.60} in row {row}",
            cure=f"use strings as keys, and strings, finite numbers, lists, True, False or None as values, at most "
            f"{_DEEPEST} deep",
        )
    return text


def _depth(value: Any, text: str) -> int:
    if text.count("{") + text.count("[") <= _DEEPEST:
        return 1   # the usual case, and quick: it cannot be deeper than that
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max((_depth(one, text) for one in inside), default=0)


def _of_kind(ids: Ids, state: State) -> Ids:
    """The same ids as Python's own integers or strings, which must be what this store has."""
    if not ids:
        return ids
    kind = "str" if isinstance(ids[0], str) else "int"
    if state.kind and kind != state.kind:
        words = {"int": "integers", "str": "strings"}
        raise InputError(f"the ids of this index are {words[state.kind]}", got=f"{ids[0]!r:.60}", cure="convert them")
    if kind == "int":
        return [int(one) for one in ids]
    strings = [str(one) for one in ids]
    bad = [one for one in strings if not one or not is_unicode(one)]
    if bad:   # the empty string stands for no row in search results
        raise InputError("ids must be non-empty strings of valid Unicode", got=repr(bad[0]), cure="name each row")
    return strings
