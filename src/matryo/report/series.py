"""Rows as lines of a figure: those of one model on one split, over its seeds, are a mean with its spread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from matryo.results import Row

    Floats = np.ndarray[Any, np.dtype[np.float64]]

__all__ = ["Curve", "Group", "Point", "curve", "gather", "over_seeds", "where"]


class _Readable(Protocol):
    """What the figures of a row are read as."""

    @property
    def model(self) -> str: ...

    @property
    def dataset(self) -> str: ...

    @classmethod
    def from_figures(cls, figures: Mapping[str, Any]) -> Any: ...


R = TypeVar("R", bound=_Readable)


@dataclass(frozen=True)
class Point:
    """One mark of a figure. A spread that is unknown is NaN."""

    dim: float
    y: float
    sd: float = math.nan
    x: float = math.nan
    """Where it stands, if not at its dim."""
    x_sd: float = math.nan
    trained: bool = True

    @property
    def position(self) -> float:
        """Where it stands on the x-axis."""
        return self.dim if math.isnan(self.x) else self.x


@dataclass(frozen=True)
class Curve:
    """One line of a figure, with what a table needs to name it."""

    place: str
    """The dataset and split."""
    name: str
    metric: str
    points: tuple[Point, ...]
    seeds: int = 1
    spread: str = ""
    """What the error bars are: "sd over 3 seeds", "95 % interval", …; empty where there are none."""

    def at(self, dim: float) -> Point | None:
        """The point of ``dim``, if there is one."""
        return next((point for point in self.points if point.dim == dim), None)

    @property
    def full(self) -> Point:
        """The point of the largest dim."""
        return max(self.points, key=lambda point: point.dim)


@dataclass(frozen=True)
class Group(Generic[R]):
    """The rows of one model on one split, one a seed."""

    name: str
    place: str
    rows: tuple[Row, ...]
    results: tuple[R, ...]

    @property
    def first(self) -> R:
        """The first seed's result, for what all seeds share."""
        return self.results[0]

    @property
    def spread(self) -> str:
        """What a deviation over these rows is called."""
        return f"sd over {len(self.results)} seeds" if len(self.results) > 1 else ""


def gather(
    rows: Iterable[Row], kind: str, result: type[R], same: Callable[[R], Hashable]
) -> list[Group[R]]:
    """Rows of ``kind`` grouped by model, dataset, split and whatever ``same`` says must agree, in order.

    Of two rows of one subject and seed the last counts. A model goes by its own name, or by that of its folder
    where two folders hold models of one name and seed.
    """
    read = [(row, _read(row, result)) for row in rows if row.kind == kind]
    latest = {(row.subject, row.seed, where(one), same(one)): (row, one) for row, one in read}.values()
    owners: dict[tuple[str, Hashable], set[str]] = {}
    for row, one in latest:
        owners.setdefault((one.model, (row.seed, where(one), same(one))), set()).add(row.subject)
    twins = {model for (model, _), subjects in owners.items() if len(subjects) > 1}
    groups: dict[tuple[str, str, Hashable], list[tuple[Row, R]]] = {}
    for row, one in latest:
        name = one.model if one.model and one.model not in twins else _folder(row, one)
        groups.setdefault((name, where(one), same(one)), []).append((row, one))
    return [
        Group(name, place, tuple(row for row, _ in pairs), tuple(one for _, one in pairs))
        for (name, place, _), pairs in groups.items()
    ]


def where(result: _Readable) -> str:
    """The dataset and split of a result, as captions name them."""
    return " / ".join(filter(None, (result.dataset, getattr(result, "split", ""))))


def over_seeds(results: Sequence[Any], figure: Callable[[Any], Any]) -> tuple[Floats, Floats]:
    """Mean and standard deviation of a figure over results; None counts as missing, one alone has no deviation.

    >>> over_seeds([1.0, 3.0], lambda one: (one, None))
    (array([ 2., nan]), array([1.41421356, nan]))
    """
    stack = np.array([figure(one) for one in results], dtype=np.float64)
    deviation = stack.std(0, ddof=1) if len(stack) > 1 else np.full(stack.shape[1:], np.nan)
    return stack.mean(0), deviation


def curve(
    group: Group[Any],
    figure: Callable[[Any], Any],
    *,
    metric: str,
    name: str = "",
    own: Callable[[Any], Any] | None = None,
    own_spread: str = "",
) -> Curve:
    """A figure by dim. With one seed its bars are the row's ``own`` spread, if it has one."""
    mean, deviation = over_seeds(group.results, figure)
    spread = group.spread
    if not spread and own is not None:
        deviation, spread = np.array(own(group.first), dtype=np.float64), own_spread
    points = zip(group.first.dims, mean.tolist(), deviation.tolist(), strict=True)
    kept = tuple(Point(dim, y, sd) for dim, y, sd in points if not math.isnan(y))
    return Curve(group.place, name or group.name, metric, kept, len(group.results), spread)


def _read(row: Row, result: type[R]) -> R:
    try:
        read: R = result.from_figures(row.figures)
        return read
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"a row of kind {row.kind!r} must have the figures of {result.__name__}",
            got=f"{row.subject!r}: {error}",
            cure="measure it again with this version, or leave that row out",
        ) from error


def _folder(row: Row, result: _Readable) -> str:
    tail = " ".join(filter(None, (result.dataset, getattr(result, "split", ""))))
    return row.subject.removesuffix(tail).strip() or row.subject
