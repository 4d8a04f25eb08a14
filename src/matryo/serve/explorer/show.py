"""A row as the explorer shows it: a title, further text, a picture and a class, taken from the payload.

>>> cat = {"name": "cat", "kind": "animal", "picture": "data:image/png;base64,AAAA"}
>>> shown = Shown.of([cat, {**cat, "name": "pie", "kind": "food"}] * 3)
>>> shown
Shown(texts=('name',), image='picture', group='kind', urls=False)
>>> shown.item(7, {**cat, "name": "<b>cat</b>", "picture": "https://example.org/cat.png"})
{'id': 7, 'title': '<b>cat</b>', 'text': '', 'image': '', 'group': 'animal'}

Pictures from elsewhere are shown only if the field was named: otherwise a row could make a browser call any site.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError
from matryo.serve.explorer.thumbnails import thumbnail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Show", "Shown"]

_LONGEST = 300   # characters of a text
_LONG = 40   # characters of a text that says more than a title
_TITLES = ("title", "name", "text", "caption", "sentence", "question", "label", "path", "url")
_GROUPS = ("group", "class", "category", "label", "kind", "topic", "genre", "type", "lang", "language")
_MOST_GROUPS = 60
_REPEATS = 3   # rows per group, at least on average
_URL = re.compile(r"https?://[^\s\"'<>\\]+", re.IGNORECASE)


@dataclass(frozen=True)
class Show:
    """The fields that the user of the server chose to show; empty ones are found in the payloads."""

    fields: tuple[str, ...] = ()
    """Payload fields: the first text is the title; one may hold pictures, as data URLs or http(s) URLs."""
    group: str = ""
    """The payload field that colours the map."""
    credits: tuple[str, ...] = ()
    """Lines at the end of the page."""


@dataclass(frozen=True)
class Shown:
    """The payload fields that are shown of one index."""

    texts: tuple[str, ...] = ()
    image: str = ""
    group: str = ""
    urls: bool = False
    """Whether http(s) URLs of pictures are shown, which the browser loads from elsewhere."""

    @classmethod
    def of(cls, payloads: Sequence[Mapping[str, Any]], show: Show | None = None) -> Shown:
        """Choose the fields, from a sample of payloads."""
        show = show or Show()
        present = dict.fromkeys(name for payload in payloads for name in payload)
        unknown = [name for name in (*show.fields, show.group) if name and payloads and name not in present]
        if unknown:
            cure = f"use one of {', '.join(present)}" if present else "the rows of this index have no payload"
            raise InputError("a shown field must be in the payloads", got=unknown[0], cure=cure)
        named, columns = show.fields or tuple(present), {name: [row.get(name) for row in payloads] for name in present}
        images = [name for name in named if _are_images(columns.get(name, []), urls=bool(show.fields))]
        strings = [name for name in named if name not in images and _are_texts(columns.get(name, []))]
        texts = tuple(strings) if show.fields else _title_and_body(strings, columns)
        group = show.group or next(
            (name for name in sorted(columns, key=lambda name: _rank(name, columns[name]))
             if name not in (*texts[:1], *images) and _are_groups(columns[name])),
            "",
        )  # fmt: skip
        return cls(texts, images[0] if images else "", group, bool(show.fields))

    def item(self, identity: int | str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The row as the page shows it. All texts are plain text; the page never reads them as HTML."""
        words = self.words(payload)
        return {"id": identity, "title": (words[0] if words else "") or str(identity)[:_LONGEST],
                "text": " · ".join(word for word in words[1:] if word)[:_LONGEST],
                "image": self._picture(payload.get(self.image)), "group": self.group_of(payload)}  # fmt: skip

    def words(self, payload: Mapping[str, Any]) -> list[str]:
        """The texts of a row, the title first."""
        return [_as_text(payload.get(name)) for name in self.texts]

    def group_of(self, payload: Mapping[str, Any]) -> str:
        """The class of a row; "" if it has none."""
        return _as_text(payload.get(self.group)) if self.group else ""

    def _picture(self, value: Any) -> str:
        if not isinstance(value, str):
            return ""
        if self.urls and _URL.fullmatch(value):
            return value
        return thumbnail(value)


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_as_text(one) for one in value[:20])[:_LONGEST]
    return "" if value is None or isinstance(value, dict) else str(value)[:_LONGEST]


def _are_images(values: Sequence[Any], *, urls: bool) -> bool:
    given = [value for value in values if value]
    return bool(given) and all(
        isinstance(value, str) and (value.startswith("data:image/") or (urls and _URL.fullmatch(value) is not None))
        for value in given
    )


def _are_texts(values: Sequence[Any]) -> bool:
    return any(isinstance(value, str | list | int | float) for value in values)


def _are_groups(values: Sequence[Any]) -> bool:
    """Whether the values divide the rows: few of them, each of several rows."""
    given = [value for value in values if isinstance(value, str | int) and value != ""]
    count = len(Counter(given))
    return 2 <= count <= _MOST_GROUPS and count * _REPEATS <= len(given) and 2 * len(given) >= len(values)


def _rank(name: str, values: Sequence[Any]) -> tuple[int, bool]:
    """Known names first, then texts: years and other numbers divide rows, but rarely into classes."""
    return _GROUPS.index(name) if name in _GROUPS else len(_GROUPS), any(isinstance(value, int) for value in values)


def _title_and_body(names: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """The field of a title, and that of the longest texts if they are long."""
    texts = [name for name in names if any(isinstance(value, str) for value in columns[name])]
    titles = [name for name in _TITLES if name in names] or texts or list(names)
    lengths = {name: np.median([len(value) if isinstance(value, str) else 0 for value in columns[name]])
               for name in names if name not in titles[:1]}  # fmt: skip
    longest = max(lengths, key=lambda name: lengths[name], default="")
    return (*titles[:1], longest) if longest and lengths[longest] >= _LONG else tuple(titles[:1])
