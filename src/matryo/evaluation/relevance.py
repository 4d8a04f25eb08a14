"""Relevance: which candidates answer which query, and how well; read from qrels files as BEIR has them.

::

    query-id	corpus-id	score
    31	100	1
    42	7	2
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.embeddings import EmbeddingSet

    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Relevance"]

_LAYOUT = "query-id, corpus-id and score, with tabs between"


@dataclass(frozen=True, eq=False)
class Relevance:
    """Pairs that belong together, each once, in the order of their rows; make one with :meth:`of` or :meth:`open`."""

    pairs: Integers
    """[n, 2]: a row of the queries, and a row of the candidates that answers it."""
    grades: Floats
    """[n]: how well it does, above 0."""
    judged: tuple[Integers, Floats]
    """All pairs with their grades, as they were given: those of grade 0 and those that come twice, too."""

    @classmethod
    def of(cls, pairs: Any, grades: Any = None) -> Relevance:
        """Pairs of rows, of grade 1 unless ``grades`` says; those of grade 0 or less answer nothing.

        Of a pair that comes twice the better grade counts.

        >>> Relevance.of([[0, 3], [0, 1], [0, 3]], [1, 0, 2]).grades
        array([2.], dtype=float32)
        """
        rows: Any = np.asarray(pairs)
        values: Any = np.ones(len(rows)) if grades is None else np.asarray(grades)
        if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind not in "iu" or values.shape != rows.shape[:1]:
            raise InputError(
                "relevance must be pairs of rows [n, 2], integers, with a grade each",
                got=f"pairs {rows.shape} {rows.dtype}, grades {values.shape}",
                cure="give a row of the queries and one of the candidates for each",
            )
        rows, values = rows.astype(np.int64), values.astype(np.float32)
        better = np.lexsort((-values, rows[:, 1], rows[:, 0]))
        sorted_rows, best = rows[better], values[better]
        first = np.r_[True, (np.diff(sorted_rows, axis=0) != 0).any(axis=1)][: len(rows)]
        kept = first & (best > 0)
        return cls(sorted_rows[kept], best[kept], (rows, values))

    @classmethod
    def open(cls, path: str | Path, queries: EmbeddingSet, candidates: EmbeddingSet) -> Relevance:
        """Read a qrels file, with or without a header; its ids must be those of ``queries`` and ``candidates``."""
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("relevance must be in a file", got=f"{path}: {error}", cure="check the path") from error
        # An id may hold what splitlines() takes for the end of a line: a line ends at a line feed alone.
        numbered = {number: line.split("\t") for number, line in enumerate(text.split("\n"), 1) if line.strip()}
        if numbered and not _is_number(next(iter(numbered.values()))[-1]):
            del numbered[next(iter(numbered))]   # the header
        lines = list(numbered.values())
        for number, line in numbered.items():
            if len(line) != 3 or not _is_number(line[2]):
                raise InputError(
                    f"each line must have {_LAYOUT}", got=f"{path}, line {number}: {line}", cure="write it so"
                )
        sides = ((queries, "queries"), (candidates, "candidates"))
        rows = [_rows([line[side] for line in lines], *of) for side, of in enumerate(sides)]
        return cls.of(np.stack(rows, axis=1), np.array([float(line[2]) for line in lines]))

    @property
    def reversed(self) -> Relevance:
        """The same pairs, asked the other way round."""
        rows, grades = self.judged
        return Relevance.of(rows[:, ::-1], grades)

    def check_fits(self, queries: int, candidates: int) -> None:
        """Raise unless there are pairs that belong together, and rows for them."""
        _check_rows(self.pairs, queries, candidates, ", with grades above 0")

    def check_judged(self, queries: int, candidates: int) -> None:
        """Raise unless there are pairs of any grade, and rows for them."""
        _check_rows(self.judged[0], queries, candidates)


def _check_rows(pairs: Integers, queries: int, candidates: int, grades: str = "") -> None:
    if len(pairs) == 0 or (pairs < 0).any() or (pairs >= np.array([queries, candidates])).any():
        raise InputError(
            f"relevance must name pairs among {queries} queries and {candidates} candidates",
            got=f"{len(pairs)} pairs up to rows {pairs.max(axis=0, initial=-1).tolist()}",
            cure=f"give the rows of these very embeddings{grades}",
        )


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _rows(ids: Sequence[str], embeddings: EmbeddingSet, role: str) -> Integers:
    places = {str(one): row for row, one in enumerate(np.asarray(embeddings.ids).tolist())}
    if missing := [one for one in ids if one not in places]:
        raise EmbeddingsError(
            f"relevance may only name ids of the {role}",
            got=f"{missing[0]!r}, and {len(missing) - 1} more lines, of which {embeddings.path} has none",
            cure="encode all of them, or leave those lines out",
        )
    return np.array([places[one] for one in ids], np.int64)
