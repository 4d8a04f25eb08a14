"""Pairs of texts in files, one file per split: a query, a positive and optional hard negatives per row.

Files are named as for texts (``train.jsonl``, ``test.tsv``, …). Columns:

- ``query`` (or ``anchor``, ``sentence1``);
- ``positive`` (or ``sentence2``): a text that is relevant to the query; in JSONL and parquet also a list of texts;
- ``negative`` or ``negatives`` (a text or a list), ``negative_1``, ``negative_2``, … (optional): hard negatives;
- ``score`` (or ``grade``, optional): the relevance of the pair; default 1, irrelevant 0.

Equal texts on one side become one row, so a query on two lines is one query with two positives. Rows with fewer
negatives than others repeat theirs.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.arguments import checked
from matryo.data.dataset import Dataset
from matryo.data.pairs.pairs import PairBuilder
from matryo.data.texts.tables import rows_of, split_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.data.pairs.pairs import Pairs
    from matryo.data.texts.tables import Row

_QUERY = ("query", "anchor", "sentence1")
_POSITIVE = ("positive", "sentence2")
_NEGATIVE = re.compile(r"negatives?|negative_(\d+)")
_GRADE = ("score", "grade")


@checked
def pair_folder(root: Path | str, classes: Sequence[str] | None = None) -> Dataset[Pairs]:
    """Open the tables under ``root`` as a dataset of pairs, in the format of this module's docstring.

    The dataset takes over ``classes``, so that it can be opened for any model; every label is UNKNOWN.
    """
    root = Path(root)
    splits = {split: _read(split, paths) for split, paths in split_files(root).items()}
    return Dataset(root.resolve().name, tuple(classes or ()), splits)


def _read(split: str, paths: Sequence[Path]) -> Pairs:
    builder = PairBuilder(split)
    for row in rows_of(paths):
        query, positives, negatives = row.text(*_QUERY), row.texts(*_POSITIVE), _negatives(row)
        if not positives:
            row.text(*_POSITIVE)   # raises the error for a missing text
        grade = row.number(*_GRADE) if row.has(*_GRADE) else 1.0
        if not 0 <= grade < float("inf"):
            raise row.refused("a score must be a number ≥ 0", grade, "use 0 for an irrelevant pair")
        for positive in positives:
            builder.add(query, positive, negatives, grade, place=row.place)
    return builder.build()


def _negatives(row: Row) -> list[str]:
    """Return the negatives in all columns of a row; some columns may be empty."""
    columns = tuple(row.values)
    negatives = [text for name in _negative_columns(columns) for text in row.texts(name)]
    if not negatives and (similar := _similar(columns)):
        rule = "hard negatives must be in the columns negative, negatives or negative_1, …"
        raise row.refused(rule, similar, "rename the column")
    return negatives


@lru_cache
def _negative_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns of negatives, numbered ones last and in numerical order."""
    matches = [match for name in columns if (match := _NEGATIVE.fullmatch(name))]
    return tuple(match[0] for match in sorted(matches, key=lambda match: int(match[1] or -1)))


@lru_cache
def _similar(columns: tuple[str, ...]) -> str:
    """Return a column whose name is close to "negative" but would be ignored; "" if there is none."""
    unread = (name for name in columns if not _NEGATIVE.fullmatch(name))
    return next((name for name in unread if get_close_matches(name.lower(), ("negative", "negatives"), cutoff=0.8)), "")
