"""Rows as curves: rows of one model on one split with different seeds become a mean with an error bar."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from matryo.results import Row

    Floats = np.ndarray[Any, np.dtype[np.float64]]

Z95 = 1.96
"""Half the width of a 95 % interval, in standard errors."""


R = TypeVar("R")
"""A result that a row's figures are parsed into: it has a model, a dataset and mostly a split."""


@dataclass(frozen=True)
class Point:
    """One mark of a figure. An unknown error bar is NaN."""

    dim: float
    y: float
    sd: float = math.nan
    x: float = math.nan
    """Position on the x-axis, where that is not the dim."""
    x_sd: float = math.nan
    trained: bool = True

    @property
    def position(self) -> float:
        """Position on the x-axis."""
        return self.dim if math.isnan(self.x) else self.x


@dataclass(frozen=True)
class Curve:
    """One line of a figure, with the names that a table needs."""

    place: str
    """The dataset and split."""
    name: str
    metric: str
    points: tuple[Point, ...]
    seeds: int = 1
    spread: str = ""
    """The meaning of the error bars: "sd over 3 seeds", "95 % interval", …; empty without error bars."""

    def at(self, dim: float) -> Point | None:
        """The point of ``dim``, or None."""
        return next((point for point in self.points if point.dim == dim), None)

    @property
    def full(self) -> Point:
        """The point of the largest dim."""
        return max(self.points, key=lambda point: point.dim)


@dataclass(frozen=True)
class Group(Generic[R]):
    """The rows of one model on one split, one per seed."""

    name: str
    place: str
    rows: tuple[Row, ...]
    results: tuple[R, ...]

    @property
    def first(self) -> R:
        """The result of the first seed, for fields that all seeds share."""
        return self.results[0]

    @property
    def spread(self) -> str:
        """The meaning of a standard deviation over these rows."""
        return f"sd over {len(self.results)} seeds" if len(self.results) > 1 else ""


def gather(rows: Iterable[Row], result: type[R], same: Callable[[Any], Hashable]) -> list[Group[R]]:
    """Group the rows of one kind by model, dataset, split and the value of ``same``, in order.

    Of two rows with one subject and seed the later one counts. A model is called by its own name, or by the name of
    its folder where two folders hold models with the same name and seed.
    """
    readable: Any = result
    parsed = [(row, _parse(row, readable)) for row in rows if row.kind == readable.kind]
    latest = {(row.subject, row.seed, where(one), same(one)): (row, one) for row, one in parsed}.values()
    owners: dict[tuple[str, Hashable], set[str]] = {}
    for row, one in latest:
        owners.setdefault((one.model, (row.seed, where(one), same(one))), set()).add(row.subject)
    shared_names = {model for (model, _), subjects in owners.items() if len(subjects) > 1}
    groups: dict[tuple[str, str, Hashable], list[tuple[Row, Any]]] = {}
    for row, one in latest:
        name = one.model if one.model and one.model not in shared_names else _folder(row, one)
        groups.setdefault((name, where(one), same(one)), []).append((row, one))
    return [
        Group(name, place, tuple(row for row, _ in pairs), tuple(one for _, one in pairs))
        for (name, place, _), pairs in groups.items()
    ]


def where(result: Any) -> str:
    """The dataset and split of a result, as figures name them."""
    return " / ".join(filter(None, (result.dataset, getattr(result, "split", ""))))


def over_seeds(results: Sequence[Any], figure: Callable[[Any], Any]) -> tuple[Floats, Floats]:
    """Mean and standard deviation of a figure over results. None is missing; one result has no deviation.

    >>> over_seeds([1.0, 3.0], lambda one: (one, None))
    (array([ 2., nan]), array([1.41421356, nan]))
    """
    stack = np.array([figure(one) for one in results], dtype=np.float64)
    deviation = stack.std(0, ddof=1) if len(stack) > 1 else np.full(stack.shape[1:], np.nan)
    return stack.mean(0), deviation


def sampling_variance(y: float, count: int) -> float:
    """The variance of a mean score ``y`` over ``count`` queries, each scored between 0 and 1.

    It is exact for accuracies (binomial) and an upper bound for mAP and nDCG.
    """
    return max(0.0, y * (1 - y)) / count if count else math.nan


def curve(
    group: Group[Any], figure: Callable[[Any], Any], *, metric: str, own: Callable[[Any], Any] | None = None,
    own_spread: str = "",
) -> Curve:  # fmt: skip
    """A figure by dim. With one seed the error bars are those that the row itself stores (``own``), if any."""
    mean, deviation = over_seeds(group.results, figure)
    spread = group.spread
    if not spread and own is not None:
        deviation, spread = np.array(own(group.first), dtype=np.float64), own_spread
    points = zip(group.first.dims, mean.tolist(), deviation.tolist(), strict=True)
    kept = tuple(Point(dim, y, sd) for dim, y, sd in points if not math.isnan(y))
    return Curve(group.place, group.name, metric, kept, len(group.results), spread)


def _parse(row: Row, result: Any) -> Any:
    try:
        return result.from_figures(row.figures)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"a row of kind {row.kind!r} must have the figures of {result.__name__}",
            got=f"{row.subject!r}: {error}",
            cure="measure it again with this version, or remove that row",
        ) from error


def _folder(row: Row, result: Any) -> str:
    tail = " ".join(filter(None, (result.dataset, getattr(result, "split", ""))))
    return row.subject.removesuffix(tail).strip() or row.subject
