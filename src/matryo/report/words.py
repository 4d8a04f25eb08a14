"""Numbers as words: percentages, differences, and the dims that a sentence mentions."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matryo.report.series import Curve, Point

ENOUGH = 0.95
"""A claim compares the full dim with the smallest dim that keeps this share of its figure."""


def percent(value: float, digits: int = 1) -> str:
    """A fraction in percent, with a non-breaking space.

    >>> percent(0.949)
    '94.9\\xa0%'
    """
    return f"{100 * value:.{digits}f}\u00a0%"


def spread(mean: float, deviation: float, digits: int = 1) -> str:
    """A mean with its deviation, if known.

    >>> spread(75.46, 0.63), spread(75.46, math.nan)
    ('75.5 ± 0.6', '75.5')
    """
    return f"{mean:.{digits}f}" + ("" if math.isnan(deviation) else f" ± {deviation:.{digits}f}")


def points(value: float) -> str:
    """A difference of two fractions, without its sign.

    >>> points(-0.0123)
    '1.2 points'
    """
    return f"{abs(100 * value):.1f} points"


def plural(count: int, word: str) -> str:
    """A count with its noun.

    >>> plural(1, "class"), plural(1200, "class"), plural(2, "seed")
    ('1 class', '1,200 classes', '2 seeds')
    """
    many = "es" if word.endswith("s") else "s"
    return f"{count:,} {word}{'' if count == 1 else many}"


def dims(value: float) -> str:
    """A number of dims: an integer, or one decimal below 10.

    >>> dims(16), dims(21.375), dims(7.25)
    ('16', '21', '7.2')
    """
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    >>> listed(["8"]), listed(["8", "16", "32"])
    ('8', '8, 16 and 32')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def ends(curve: Curve) -> tuple[Point, Point]:
    """The smallest dim that keeps ENOUGH of the full dim's figure (else the smallest dim), and the full dim."""
    full, trained = curve.full, [point for point in curve.points if point.trained]
    among = trained if len(trained) > 1 else list(curve.points)
    low = min((point for point in among if point.y >= ENOUGH * full.y), key=lambda point: point.dim, default=full)
    return (min(among, key=lambda point: point.dim) if low.dim == full.dim else low), full


def hardest(curves: Sequence[Curve]) -> Curve:
    """Of the first model's curves for its first metric, the one with the lowest figure at the full dim."""
    first = curves[0]
    return min((c for c in curves if (c.name, c.metric) == (first.name, first.metric)), key=lambda c: c.full.y)


def reach(curves: Sequence[Curve]) -> str:
    """A claim about the first model on its hardest split: its figure at a small dim and at the full dim."""
    curve = hardest(curves)
    (low, full), others = ends(curve), {one.place for one in curves} - {curve.place}
    where = f" on {curve.place}, the hardest split" if others else ""
    start = f"{curve.name} reaches "
    if low.dim == full.dim:
        return f"{start}{percent(full.y)} at {dims(full.dim)} dims{where}"
    return f"{start}{percent(low.y)} at {dims(low.dim)} dims and {percent(full.y)} at {dims(full.dim)}{where}"


def bars(curves: Iterable[Curve]) -> str:
    """The meaning of the error bars of some curves, as a sentence with a leading space."""
    meanings = dict.fromkeys(
        one.spread for one in curves if one.spread and not all(math.isnan(point.sd) for point in one.points)
    )
    return f" Bars: {'; '.join(meanings)}." if meanings else ""


def stem(key: str, number: int, words: str) -> str:
    """A safe file name without its suffix, unique by its number.

    >>> stem("accuracy", 1, "../Emoji / flat")
    'accuracy-1-emoji-flat'
    """
    return "-".join(filter(None, (key, str(number), re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:40])))
