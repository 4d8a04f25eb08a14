"""A batch of new rows, and the checks of its ids. A batch is checked as a whole before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from matryo.embeddings.rows import as_ids
from matryo.errors import InputError, shown
from matryo.retrieve.store.payload import is_unicode

if TYPE_CHECKING:
    from matryo.retrieve.store.sql.records import State

    Ids = list[int] | list[str]


class Batch(NamedTuple):
    """Rows to add together: the arguments of ``add``."""

    vectors: Any
    ids: Any = None
    payload: Any = None


def as_new_ids(ids: Any, count: int, state: State) -> Ids:
    """``ids`` as ``count`` distinct ids of the type that the store has; the next integers if ``ids`` is None."""
    if ids is None:
        if state.kind == "str":
            raise InputError("the ids of this index are strings", got="no ids", cure="pass ids, one per vector")
        if state.next_id + count > 2**63:
            raise InputError("ids must fit in 64 signed bits", got=state.next_id + count - 1, cure="pass ids")
        return list(range(state.next_id, state.next_id + count))
    return _of_kind(as_ids(ids, count), state)


def as_existing_ids(ids: Any) -> Ids:
    """``ids`` to look up, in order and with repetitions, as plain integers or strings."""
    try:
        each = list(np.ravel(ids).tolist() if isinstance(ids, np.ndarray) else ids)
    except TypeError:   # not iterable
        each = [ids]
    if not isinstance(ids, (str, int)):
        if all(isinstance(id, (int, np.integer)) and not isinstance(id, (bool, np.timedelta64)) for id in each):
            return [int(id) for id in each]
        if all(isinstance(id, str) and is_unicode(id) for id in each):
            return [str(id) for id in each]
    raise InputError(
        "ids must be a list of integers or of strings", got=shown(ids), cure="put a single id into a list: [id]"
    )


def _of_kind(ids: Ids, state: State) -> Ids:
    """``ids`` as plain integers or strings, which must be the type that the store has."""
    if not ids:
        return ids
    kind = "str" if isinstance(ids[0], str) else "int"
    if state.kind and kind != state.kind:
        words = {"int": "integers", "str": "strings"}
        raise InputError(
            f"the ids of this index are {words[state.kind]}", got=shown(ids[0]), cure=f"use {state.kind}(id)"
        )
    if kind == "int":
        return [int(id) for id in ids]
    strings = [str(id) for id in ids]
    bad = [id for id in strings if not id or not is_unicode(id)]
    if bad:   # search results use the empty string for "no row"
        raise InputError("ids must be non-empty strings of valid Unicode", got=repr(bad[0]), cure="rename that id")
    return strings
