"""Figures in words: percent, points, and the dims that a sentence is about."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matryo.report.series import Curve, Point

__all__ = ["bars", "dims", "ends", "enough", "listed", "percent", "plural", "points", "share", "spread", "stem"]

ENOUGH = 0.95
"""The share of its full figure that a dim must keep to be called enough."""


def percent(value: float, digits: int = 1) -> str:
    """A fraction in percent; the space does not break.

    >>> percent(0.949)
    '94.9\\xa0%'
    """
    return f"{100 * value:.{digits}f}\u00a0%"


def share(part: float, whole: float) -> str:
    """How much of a figure is kept, in percent: never 100 for less than all of it.

    >>> share(0.45, 0.9), share(0.897, 0.9), share(0.91, 0.9)
    ('50\\xa0%', '99.7\\xa0%', '101\\xa0%')
    """
    kept = part / whole
    return percent(kept, 1 if 0.99 < kept < 1 else 0)


def spread(mean: float, deviation: float, digits: int = 1) -> str:
    """A mean with its deviation, where it has one.

    >>> spread(75.46, 0.63), spread(75.46, math.nan)
    ('75.5 ± 0.6', '75.5')
    """
    return f"{mean:.{digits}f}" + ("" if math.isnan(deviation) else f" ± {deviation:.{digits}f}")


def points(value: float) -> str:
    """A difference of two fractions.

    >>> points(-0.0123)
    '1.2 points'
    """
    return f"{abs(100 * value):.1f} points"


def plural(count: int, word: str) -> str:
    """So many of something.

    >>> plural(1, "class"), plural(1200, "class"), plural(2, "seed")
    ('1 class', '1,200 classes', '2 seeds')
    """
    many = "es" if word.endswith("s") else "s"
    return f"{count:,} {word}{'' if count == 1 else many}"


def dims(value: float) -> str:
    """A number of dims: whole where it is, else with as many digits as matter.

    >>> dims(16), dims(21.375), dims(7.25)
    ('16', '21', '7.2')
    """
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def listed(names: Sequence[str]) -> str:
    """Names as a sentence lists them.

    >>> listed(["8"]), listed(["8", "16", "32"])
    ('8', '8, 16 and 32')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def enough(curve: Curve, share: float = ENOUGH) -> Point:
    """The point of the smallest dim that keeps ``share`` of the curve's figure at its full dim.

    Only trained dims count, unless nothing but the full dim was trained.
    """
    trained = [point for point in curve.points if point.trained]
    among = trained if len(trained) > 1 else list(curve.points)
    least = share * curve.full.y
    return min((point for point in among if point.y >= least), key=lambda point: point.dim, default=curve.full)


def ends(curve: Curve) -> tuple[Point, Point]:
    """Two points to tell a curve by: a dim that is enough (or the smallest, where none below full is), and full."""
    low = enough(curve)
    return (min(curve.points, key=lambda point: point.dim) if low.dim == curve.full.dim else low), curve.full


def bars(curves: Iterable[Curve]) -> str:
    """What the error bars of some curves are, as the end of a caption."""
    found = dict.fromkeys(
        one.spread for one in curves if one.spread and not all(math.isnan(point.sd) for point in one.points)
    )
    return f" Bars: {'; '.join(found)}." if found else ""


def stem(key: str, number: int, words: str) -> str:
    """The stem of a file's name: safe whatever the words are, and unlike the others by its number.

    >>> stem("accuracy", 1, "../Emoji / flat")
    'accuracy-1-emoji-flat'
    """
    return "-".join(filter(None, (key, str(number), re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:40])))
