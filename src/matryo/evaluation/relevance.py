"""Relevance judgements: which candidates are relevant to which query; read from qrels files in BEIR's format.

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

from matryo.arguments import checked
from matryo.arrays import as_array
from matryo.errors import EmbeddingsError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Floats, Integers
    from matryo.embeddings import EmbeddingSet

_LAYOUT = "query-id, corpus-id and score, separated by tabs"


@dataclass(frozen=True, eq=False)
class Relevance:
    """Relevant pairs, each once, sorted by row; make one with :meth:`of` or :meth:`open`."""

    pairs: Integers
    """[n, 2]: a row of the queries, and a row of the candidates that is relevant to it."""
    grades: Floats
    """[n]: the grades, above 0."""
    judged: tuple[Integers, Floats]
    """All pairs with their grades as given, including those of grade 0 and duplicates."""

    @classmethod
    def of(cls, pairs: Any, grades: Any = None) -> Relevance:
        """Return the relevance of pairs of rows, with grade 1 unless ``grades`` is given.

        Pairs of grade 0 or less are not relevant. Of duplicates the highest grade counts.

        >>> Relevance.of([[0, 3], [0, 1], [0, 3]], [1, 0, 2]).grades
        array([2.], dtype=float32)
        """
        rows = as_array(pairs, "pairs")
        values = np.ones(rows.shape[:1]) if grades is None else as_array(grades, "grades")
        kinds = rows.dtype.kind in "iu" and values.dtype.kind in "fiub"
        if not kinds or rows.ndim != 2 or rows.shape[1] != 2 or values.shape != rows.shape[:1]:
            raise InputError(
                "relevance must be integer pairs of rows [n, 2], with one grade per pair",
                got=f"pairs {rows.shape} {rows.dtype}, grades {values.shape}",
                cure="give [query row, candidate row] for each pair",
            )
        rows, values = rows.astype(np.int64), values.astype(np.float32)
        better = np.lexsort((-values, rows[:, 1], rows[:, 0]))
        sorted_rows, best = rows[better], values[better]
        first = np.r_[True, (np.diff(sorted_rows, axis=0) != 0).any(axis=1)][: len(rows)]
        kept = first & (best > 0)
        return cls(sorted_rows[kept], best[kept], (rows, values))

    @classmethod
    @checked
    def open(cls, path: str | Path, queries: EmbeddingSet, candidates: EmbeddingSet) -> Relevance:
        """Read a qrels file, with or without a header; its ids must be those of ``queries`` and ``candidates``."""
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("cannot read the relevance file", got=f"{path}: {error}", cure="check the path") from error
        # Only a line feed ends a line: ids may contain other characters that splitlines() splits at.
        numbered = {number: line.split("\t") for number, line in enumerate(text.split("\n"), 1) if line.strip()}
        if numbered and not _is_number(next(iter(numbered.values()))[-1]):
            del numbered[next(iter(numbered))]   # the header
        lines = list(numbered.values())
        for number, line in numbered.items():
            if len(line) != 3 or not _is_number(line[2]):
                raise InputError(
                    f"each line must have {_LAYOUT}", got=f"{path}, line {number}: {line}", cure="fix that line"
                )
        sides = ((queries, "queries"), (candidates, "candidates"))
        rows = [_rows([line[side] for line in lines], *of) for side, of in enumerate(sides)]
        return cls.of(np.stack(rows, axis=1), np.array([float(line[2]) for line in lines]))

    @property
    def reversed(self) -> Relevance:
        """The relevance of queries to candidates: both sides exchanged."""
        rows, grades = self.judged
        return Relevance.of(rows[:, ::-1], grades)

    @checked
    def check_fits(self, queries: int, candidates: int, *, judged: bool = False) -> None:
        """Raise unless there are relevant pairs (pairs of any grade with ``judged``), and all their rows exist."""
        pairs, grades = (self.judged[0], "") if judged else (self.pairs, ", with grades above 0")
        if len(pairs) == 0 or (pairs < 0).any() or (pairs >= np.array([queries, candidates])).any():
            raise InputError(
                f"relevance must name pairs among {queries} queries and {candidates} candidates",
                got=f"{len(pairs)} pairs up to rows {pairs.max(axis=0, initial=-1).tolist()}",
                cure=f"use the rows of these embeddings{grades}",
            )


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _rows(ids: Sequence[str], embeddings: EmbeddingSet, role: str) -> Integers:
    rows = {str(key): row for row, key in enumerate(np.asarray(embeddings.ids).tolist())}
    if missing := [key for key in ids if key not in rows]:
        raise EmbeddingsError(
            f"all ids in the relevance file must be ids of the {role}",
            got=f"{missing[0]!r} and {len(missing) - 1} more that {embeddings.path} lacks",
            cure="encode all of them, or remove those lines",
        )
    return np.array([rows[key] for key in ids], np.int64)
