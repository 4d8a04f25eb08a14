"""Pairs of texts in files: a query, what belongs to it, and perhaps hard negatives a row; a file a split.

Files are named as for texts (``train.jsonl``, ``test.tsv``, …). Columns:

- ``query`` (or ``anchor``, ``sentence1``);
- ``positive`` (or ``sentence2``): what belongs to the query, a text or in JSONL and parquet a list of them;
- ``negative`` or ``negatives``, perhaps, a text or a list, and ``negative_1``, ``negative_2``, …: what looks right for
  the query and is wrong;
- ``score`` (or ``grade``), perhaps: how well the two belong together, 1 where it is not said, 0 if not at all.

Equal texts of a side are one row, so that a query on two lines is one query with two positives. Where rows differ in
how many negatives they have, those with fewer repeat theirs.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.data.dataset import Dataset
from matryo.data.pairs.pairs import PairBuilder
from matryo.data.texts.tables import rows_of, split_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.data.pairs.pairs import Pairs
    from matryo.data.texts.tables import Row

__all__ = ["pair_folder"]

_QUERY = ("query", "anchor", "sentence1")
_POSITIVE = ("positive", "sentence2")
_NEGATIVE = re.compile(r"negatives?|negative_(\d+)")
_GRADE = ("score", "grade")


def pair_folder(root: Path | str, classes: Sequence[str] | None = None) -> Dataset:
    """The tables under ``root`` as a dataset of pairs; this module's docstring says what they may hold.

    ``classes`` are taken over, so that any source may be opened for any model; no text has one.
    """
    root = Path(root)
    splits = {split: _read(split, paths) for split, paths in split_files(root).items()}
    return Dataset(root.resolve().name, tuple(classes or ()), splits)


def _read(split: str, paths: Sequence[Path]) -> Pairs:
    builder = PairBuilder(split)
    for row in rows_of(paths):
        query, positives, negatives = row.text(*_QUERY), row.texts(*_POSITIVE), _negatives(row)
        if not positives:
            row.text(*_POSITIVE)   # says what is missing
        grade = row.number(*_GRADE) if row.has(*_GRADE) else 1.0
        if not 0 <= grade < float("inf"):
            raise row.refused("a score is a number ≥ 0", grade, "write 0 for what does not belong together")
        for positive in positives:
            builder.add(query, positive, negatives, grade, place=row.place)
    return builder.build()


def _negatives(row: Row) -> list[str]:
    """All that the row holds: of several columns one may be empty, where a query has fewer."""
    columns = tuple(row.values)
    found = [text for name in _negative_columns(columns) for text in row.texts(name)]
    if not found and (near := _near(columns)):
        raise row.refused("hard negatives stand under negative, negatives or negative_1, …", near, "name the column so")
    return found


@lru_cache
def _negative_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Those that hold negatives, numbered ones last and by their number."""
    named = [match for name in columns if (match := _NEGATIVE.fullmatch(name))]
    return tuple(match[0] for match in sorted(named, key=lambda match: int(match[1] or -1)))


@lru_cache
def _near(columns: tuple[str, ...]) -> str:
    """A column that was probably meant to hold negatives, and would go unread."""
    unread = (name for name in columns if not _NEGATIVE.fullmatch(name))
    return next((name for name in unread if get_close_matches(name.lower(), ("negative", "negatives"), cutoff=0.8)), "")
