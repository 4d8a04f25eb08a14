"""Rows whose text has the words that were typed: how words find rows where no model reads texts.

>>> catalogue = Catalogue()
>>> for id, texts in enumerate([["black cat"], ["dog", "not a cat"], ["cat"], ["catfish"], ["bird"]]):
...     catalogue.add(id, texts)
>>> catalogue.find("Cat", 10)
[2, 0, 1, 3]
"""

from __future__ import annotations

import heapq
import re
import unicodedata
from collections.abc import Sequence

__all__ = ["MOST_ROWS", "Catalogue"]

MOST_ROWS = 200_000
"""Rows that words are compared with; further rows of an index are not found by words."""
_WORD = re.compile(r"\w+")
_TYPED = 12   # words of a query that count


class Catalogue:
    """The texts of rows, without case and accents."""

    def __init__(self) -> None:
        self._rows: list[tuple[int | str, str, str]] = []

    def add(self, identity: int | str, texts: Sequence[str]) -> None:
        """Add a row: its title, then its other texts."""
        words = [_folded(text) for text in texts]
        self._rows.append((identity, words[0] if words else "", " ".join(words[1:])))

    def find(self, typed: str, count: int) -> list[int | str]:
        """The ids of the rows that have all words: equal titles first, then words of titles, of texts, and beginnings.

        Rows with a title that was found before come last, so that the first ones differ.
        """
        wanted = _folded(typed).split()[:_TYPED]
        if not wanted:
            return []
        phrase, seen = " ".join(wanted), dict[str, int]()
        ranked = []
        for number, (_, title, text) in enumerate(self._rows):
            tier = _tier(phrase, wanted, title, text)
            if tier is not None:
                again = seen[title] = seen.get(title, -1) + 1
                ranked.append((again, tier, len(title), number))
        return [self._rows[number][0] for *_, number in heapq.nsmallest(count, ranked)]


def _tier(phrase: str, wanted: list[str], title: str, text: str) -> int | None:
    """How well a row fits, 0 best; None if it does not."""
    if title == phrase:
        return 0
    if not all(word in title or word in text for word in wanted):
        return None
    in_title, in_text = f" {title} ", f" {text} "
    if all(f" {word} " in in_title for word in wanted):
        return 1
    if all(f" {word} " in in_title or f" {word} " in in_text for word in wanted):
        return 2
    return 3 if all(f" {word}" in in_title or f" {word}" in in_text for word in wanted) else None


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.casefold())
    return " ".join(_WORD.findall("".join(letter for letter in plain if not unicodedata.combining(letter))))
