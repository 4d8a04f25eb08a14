"""What an evaluation found, dim by dim, and several of them lined up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Comparison", "DimRow", "Evaluation", "beside"]


@dataclass(frozen=True)
class DimRow:
    """The figures at one dim, as fractions."""

    dim: int
    trained: bool
    """Whether the dim is one of the nesting's; the others are interpolated."""
    top1: float
    """1-NN accuracy."""
    top5: float
    top10: float
    map_at: Mapping[int, float]
    """mAP@k by k."""
    precision_at: Mapping[int, float]
    """P@k by k."""
    mflops: float
    """Millions of multiply-adds a query, for the exact search."""
    head_top1: float | None = None
    head_top5: float | None = None
    recall_at: Mapping[int, float] = field(default_factory=dict)
    """Recall@k by k; rows stored before it was measured have none."""
    knn: Mapping[int, float] = field(default_factory=dict)
    """k-NN accuracy by k, by majority; 1-NN is ``top1``. Rows stored before it was measured have none."""

    def to_figures(self) -> dict[str, Any]:
        """As plain JSON values, without the dim."""
        graded = {f"{at}{k}": value for at, name in _GRADED.items() for k, value in getattr(self, name).items()}
        return {name: getattr(self, name) for name in _PLAIN} | graded

    @classmethod
    def from_figures(cls, dim: int, figures: Mapping[str, Any]) -> DimRow:
        """The inverse of :meth:`to_figures`."""

        def by_k(at: str) -> dict[int, float]:
            return {int(key.removeprefix(at)): value for key, value in figures.items() if key.startswith(at)}

        values: dict[str, Any] = {name: figures[name] for name in _PLAIN}
        values |= {name: by_k(at) for at, name in _GRADED.items()}
        return cls(dim=dim, **values)


@dataclass(frozen=True)
class Evaluation:
    """What one model's embeddings of one query split are worth."""

    kind: ClassVar[str] = "evaluate"
    model: str
    dataset: str
    split: str
    database: int
    """How many vectors were searched."""
    queries: int
    """How many queries were used."""
    left_out: int
    """How many were not: of unknown class, or of one that the database lacks."""
    rows: tuple[DimRow, ...]
    """One a dim, smallest first."""

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims, smallest first."""
        return tuple(row.dim for row in self.rows)

    def at(self, dim: int) -> DimRow:
        """The row of ``dim``."""
        for row in self.rows:
            if row.dim == dim:
                return row
        raise InputError("dim must be an evaluated one", got=dim, cure=f"choose one of {self.dims}")

    def to_figures(self) -> dict[str, Any]:
        """As plain JSON values, for the figures of a stored result row."""
        about = {name: getattr(self, name) for name in _ABOUT}
        return {**about, "dims": {str(row.dim): row.to_figures() for row in self.rows}}

    @classmethod
    def from_figures(cls, figures: Mapping[str, Any]) -> Evaluation:
        """The inverse of :meth:`to_figures`: published tables are made from stored rows."""
        rows = tuple(DimRow.from_figures(int(dim), row) for dim, row in figures["dims"].items())
        return cls(**{name: figures[name] for name in _ABOUT}, rows=rows)


_PLAIN = ("trained", "head_top1", "head_top5", "top1", "top5", "top10", "mflops")
_GRADED = {"map@": "map_at", "p@": "precision_at", "recall@": "recall_at", "knn@": "knn"}   # as stored: field
_SAME = ("dataset", "split", "database", "queries", "left_out")
_ABOUT = ("model", *_SAME)


@dataclass(frozen=True)
class Comparison:
    """Several models on the same queries, lined up by dim."""

    dataset: str
    split: str
    database: int
    queries: int
    left_out: int
    names: tuple[str, ...]
    dims: tuple[int, ...]
    rows: tuple[tuple[DimRow | None, ...], ...]
    """One a dim, with one entry a name: None where that model was not evaluated at that dim."""


def beside(named: Iterable[tuple[str, Evaluation]]) -> Comparison:
    """Line up evaluations of the same queries by dim.

    Evaluations under one name become one column, so that models trained for a single dim each stand together.
    """
    given = list(named)
    if not given:
        raise InputError("there must be an evaluation to compare", got=0, cure="evaluate something first")
    found: dict[str, dict[int, DimRow]] = {}
    for name, one in given:
        _check_same(given[0][1], one)
        rows = found.setdefault(name, {})
        if twice := sorted(rows.keys() & {*one.dims}):
            raise InputError("a name may have each dim once", got=f"{name!r}: {twice}", cure="rename one")
        rows.update({row.dim: row for row in one.rows})
    dims = tuple(sorted({dim for rows in found.values() for dim in rows}))
    return Comparison(
        **{name: getattr(given[0][1], name) for name in _SAME},
        names=tuple(found),
        dims=dims,
        rows=tuple(tuple(rows.get(dim) for rows in found.values()) for dim in dims),
    )


def _check_same(first: Evaluation, one: Evaluation) -> None:
    if any(getattr(one, name) != getattr(first, name) for name in _SAME):
        raise InputError(
            "evaluations beside each other must be of the same queries, in databases of one size",
            got="; ".join(f"{e.dataset} {e.split}: {e.queries} in {e.database}" for e in (first, one)),
            cure="make one comparison a split",
        )
