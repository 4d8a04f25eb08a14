"""Payloads: what may be stored beside a vector, and its form as JSON text.

A payload is a dict of JSON values. numpy scalars become plain numbers, text and booleans. Dates and times become ISO
8601 text, so they are compared as text. A table is one payload per row.

>>> from datetime import date
>>> as_payload([{"year": np.int16(2020), "day": date(2020, 5, 1)}, {}], 2)
['{"year": 2020, "day": "2020-05-01"}', None]
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Any

import numpy as np

from matryo.errors import InputError, shown

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_DEEPEST = 100   # SQLite's JSON functions read no deeper than 1000
_BITS = 1024   # of integers; larger floats are not finite
PAYLOAD_BYTES = 16 << 20
"""The largest payload, as JSON in UTF-8."""


def as_payload(payload: Any, count: int) -> list[str | None]:
    """One JSON object per vector as text; None for an empty one."""
    if payload is None:
        return [None] * count
    rows = _as_dicts(payload)
    if isinstance(rows, (str, Mapping)) or not isinstance(rows, Sequence):
        raise InputError(
            "payload must be a list of dicts, one per vector, or a table",
            got=shown(payload),
            cure="put a single payload into a list: [payload]",
        )
    if len(rows) != count:
        raise InputError(
            f"payload must have one entry for each of the {count} vectors", got=len(rows), cure="use {} for no payload"
        )
    return [_as_text(entry, row) for row, entry in enumerate(rows)]


def is_unicode(text: str) -> bool:
    """Whether SQLite can store ``text``: an unpaired surrogate has no UTF-8 bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain_scalar(value: Any) -> Any:
    """``value`` as text, a finite number, a boolean or None; numpy scalars and dates are converted, others refused.

    >>> plain_scalar(np.float32(0.5)), plain_scalar(np.datetime64("2020-05-01"))
    (0.5, '2020-05-01')
    """
    if isinstance(value, np.datetime64) and not np.isnat(value):
        days = np.datetime_data(value)[0] in ("Y", "M", "W", "D")
        value = value.astype("M8[D]" if days else "M8[us]").item()
    elif isinstance(value, np.generic) and value.dtype.kind not in "mM":
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and (value.isascii() or is_unicode(value)):
        return str(value)
    if isinstance(value, int) and value.bit_length() <= _BITS:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, (date, time)) and value == value:   # pandas' NaT is a date that does not equal itself
        return value.isoformat()
    raise TypeError(value)


def _as_dicts(payload: Any) -> Any:
    """The rows of a table (pandas, polars, Arrow, datasets) as dicts; anything else unchanged."""
    if hasattr(payload, "notna") and hasattr(payload, "columns"):   # pandas, where a missing value may be NaN
        return payload.astype(object).where(payload.notna(), None).to_dict("records")
    for method in ("to_dicts", "to_pylist", "to_list"):   # polars, Arrow, datasets (and columns of dicts)
        if hasattr(payload, method):
            return getattr(payload, method)()
    return payload


def _as_text(entry: Any, row: int) -> str | None:
    if not isinstance(entry, dict) and entry is not None:
        raise InputError("a payload must be a dict", got=f"{shown(entry)} in row {row}", cure='wrap it: {"text": …}')
    text = _JSON.encode(_plain(entry, row, "", 0)) if entry else None
    if text is not None and 4 * len(text) > PAYLOAD_BYTES and len(text.encode()) > PAYLOAD_BYTES:
        raise InputError(
            f"a payload must have at most {PAYLOAD_BYTES:,} bytes as JSON",
            got=f"{len(text.encode()):,} in row {row}",
            cure="store large content in a file, and its path in the payload",
        )
    return text


def _plain(value: Any, row: int, field: str, depth: int) -> Any:
    """``value`` as plain JSON values; an error names ``row`` and ``field``."""
    if depth > _DEEPEST:
        rule = f"a payload must be at most {_DEEPEST} levels deep"
        raise InputError(rule, got=f"more in row {row}", cure="store it as text: json.dumps(value)")
    if isinstance(value, dict):
        return {_key(key, row): _plain(inner, row, f"{field}.{key}", depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, row, f"{field}[{place}]", depth + 1) for place, inner in enumerate(value)]
    try:
        return plain_scalar(value)
    except TypeError:
        raise InputError(
            "payload values must be valid text, finite numbers, booleans, None, dates, or lists and dicts of these",
            got=f"{shown(value)} in field {shown(field[1:])} of row {row}",
            cure="convert the value, or drop the field",
        ) from None


def _key(key: Any, row: int) -> str:
    if not isinstance(key, str) or not is_unicode(key):
        raise InputError("payload keys must be valid text", got=f"{shown(key)} in row {row}", cure="use str(key)")
    return str(key)
