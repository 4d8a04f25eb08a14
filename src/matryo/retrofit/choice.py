"""The choice between rungs at each dim: a rung above identity and PCA must prove that it is not worse.

At a dim, a rung is compared query by query with identity and with PCA. It is taken only if the lower confidence bound
of both mean differences is at least 0. The error probability is divided by the number of comparisons (Bonferroni), so
that one statement covers all dims and rungs: with the given confidence, no rung that was taken is worse.

>>> gains = np.tile([0.0, 0.1, 0.2, 0.1], 25)
>>> round(lower_bound(gains, 0.05), 3), lower_bound(gains - 0.1, 0.05) < 0
(0.088, True)
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matryo.arrays import Doubles

SIMPLE = ("identity", "pca", "centred")
"""The rungs that need no proof, from the simplest on."""
LAST = ("adaptor",)
"""The rungs that are no rotation: they must also be better than every rotation, and serve single dims only."""
FEWEST = 40
"""With fewer test queries than this, nothing above PCA is considered."""
_FEWEST_CHANGED = 10   # queries for which a rung makes a difference: with fewer the mean is far from normal
_ROUNDING = 5e-4   # the mean difference of two maps whose prefixes span the same
_WHOLE = ("identity", "pca")   # of the simple rungs, those that keep every full-dim score


@dataclass(frozen=True)
class Taken:
    """The rung that is taken at a dim, and why."""

    dim: int
    rung: str
    quality: Mapping[str, float]
    """The mean quality of each rung on the held-out queries."""
    over: str
    """The best of the simple rungs, with which the taken one is compared."""
    gain: float
    """The mean quality of the taken rung less that of ``over``."""
    lower: float
    """The lower bound of that gain, over all queries of this kind."""
    confidence: float
    """The probability that the bounds of all dims and rungs hold together."""
    why: str


def choose(
    worth: Mapping[str, Doubles], dims: Sequence[int], confidence: float,
    prior: Mapping[str, Doubles] | None = None,
) -> tuple[tuple[Taken, ...], str]:  # fmt: skip
    """The rung for each of ``dims``, and the one map that serves all of them.

    ``worth`` holds the quality per query and dim of each rung, [queries, dims]. ``prior`` is another quality of the
    simple rungs, on other queries: it chooses between them as long as ``worth`` does not prove it wrong. A few labels
    can not tell identity from PCA.
    """
    above = [name for name in worth if name not in SIMPLE]
    level = (1 - confidence) / max(1, len(above) * len(dims))
    usual = [None if prior is None else _best_simple(_at_dim(prior, place), 1 - confidence)
             for place in range(len(dims))]  # fmt: skip
    taken = tuple(_at(_at_dim(worth, place), dim, usual[place], above, level, confidence)
                  for place, dim in enumerate(dims))  # fmt: skip
    return taken, _whole(worth, taken, above, confidence, worth if prior is None else prior)


def _at_dim(worth: Mapping[str, Doubles], place: int) -> dict[str, Doubles]:
    return {name: each[:, place] for name, each in worth.items()}


def _at(
    values: Mapping[str, Doubles], dim: int, usual: str | None, above: Sequence[str], level: float, confidence: float
) -> Taken:
    quality = {name: float(value.mean()) for name, value in values.items()}
    simple = _best_simple(values, 1 - confidence, usual)
    bounds = {
        name: min(lower_bound(values[name] - values[other], level) for other in values if _precedes(other, name))
        for name in above
    }
    proved = [name for name, bound in bounds.items() if bound >= 0 and quality[name] > quality[simple]]
    if proved:
        name = max(proved, key=lambda name: (name in LAST, bounds[name]))
        gain = quality[name] - max(quality[other] for other in SIMPLE if other in quality)
        why = f"better than identity and PCA, with {confidence:.0%} confidence over all dims and rungs"
        return Taken(dim, name, quality, simple, gain, bounds[name], confidence, why)
    why = "the best of identity and PCA" + (" by recall" if usual == simple else "")
    if above:
        near = max(above, key=lambda name: bounds[name])
        few = len(next(iter(values.values()))) < FEWEST
        why += f"; too few held-out queries to prove {near}" if few else f"; {near} is not proved better"
    return Taken(dim, simple, quality, simple, 0.0, 0.0, confidence, why)


def _precedes(other: str, name: str) -> bool:
    """Whether the rung ``name`` must be better than ``other`` to be taken."""
    return other in SIMPLE or (name in LAST and other not in LAST)


def _best_simple(values: Mapping[str, Doubles], level: float, usual: str | None = None) -> str:
    """The best of identity and PCA; PCA around the mean changes full-dim scores, so it must be better beyond chance.

    With a ``usual`` rung, each of the others must be better than it beyond chance.
    """
    if usual is not None:
        better = [name for name in SIMPLE if name in values and lower_bound(values[name] - values[usual], level) > 0]
        return max(better, key=lambda name: values[name].mean()) if better else usual
    first = [name for name in _WHOLE if name in values]
    best = max(first, key=lambda name: (values[name].mean(), -SIMPLE.index(name)))
    if "centred" in values and lower_bound(values["centred"] - values[best], level) > 0:
        return "centred"
    return best


def _whole(
    worth: Mapping[str, Doubles], taken: Sequence[Taken], above: Sequence[str], confidence: float,
    prior: Mapping[str, Doubles],
) -> str:  # fmt: skip
    """The map for all dims: a rung that is proved at some dims and equal to PCA elsewhere, or PCA unless it harms."""
    if not taken or "pca" not in worth:
        return "identity"
    for name in (name for name in above if name not in LAST):
        apart = np.abs(worth[name] - worth["pca"]).mean(axis=0)
        same = [entry.rung == name or apart[place] < _ROUNDING for place, entry in enumerate(taken)]
        if all(same) and any(entry.rung == name for entry in taken):
            return name
    level = (1 - confidence) / len(taken)
    each = [source["pca"] - source["identity"] for source in (worth, prior)]
    harmed = any(lower_bound(-gains[:, place], level) > 0 for gains in each for place in range(len(taken)))
    if each[1].mean() > 0 and not harmed:
        return "pca"
    return "blocks" if "blocks" in worth and _never_worse(worth["blocks"] - worth["identity"], level) else "identity"


def _never_worse(gains: Doubles, level: float) -> bool:
    """Whether no dim loses, but for rounding, and some dim gains beyond chance."""
    bounds = [lower_bound(gains[:, place], level) for place in range(gains.shape[1])]
    return bool((gains.mean(axis=0) >= -1e-3).all() and max(bounds) > 0)


def lower_bound(differences: Doubles, level: float) -> float:
    """The mean is at least this, but with the probability ``level``: Student's bound; −∞ if there are too few."""
    count = len(differences)
    changed = int(np.count_nonzero(differences))
    if count < FEWEST or changed < _FEWEST_CHANGED:
        return 0.0 if changed == 0 and count >= FEWEST else -np.inf
    error = float(differences.std(ddof=1)) / np.sqrt(count)
    return float(differences.mean() - _student(level, count - 1) * error)


def _student(level: float, freedom: int) -> float:
    """The upper quantile of Student's t, by its expansion in 1 / freedom (Abramowitz and Stegun, 26.7.5)."""
    z = NormalDist().inv_cdf(1 - level)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
