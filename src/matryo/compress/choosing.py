"""The choice for a number of bytes: every candidate is fitted and tried, and the better one must prove that it is.

A *simple* candidate is the vectors' first columns, or their first principal axes, in numbers of 16, 8, 4 or 1 bits. Any
database takes these. Other candidates (product codes, rotations that saw queries) are taken only if the lower
confidence bound of their paired gain over every simple candidate is at least 0. One half of the error probability is
divided by the number of other candidates: each must pass all its comparisons, so these need no division of their own.
The other half is divided by the bounds of the table. Together they hold with the given confidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from matryo.compress.bases import Fitted, in_product, in_scalars, turned
from matryo.retrofit.choice import lower_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Doubles, Floats
    from matryo.compress.codecs import Bits
    from matryo.compress.sample import Sample
    from matryo.compress.trial import Trial
    from matryo.retrofit import Moments, Retrofit

KINDS = ("float16", "int8", "int4", "bit", "product")
_BITS: dict[str, Bits] = {"float16": 16, "int8": 8, "int4": 4, "bit": 1}


@dataclass(frozen=True)
class Candidate:
    """A way to spend the bytes, and what it keeps on held-out queries."""

    rotation: str
    code: str
    dim: int
    bytes: int
    """Bytes per vector."""
    quality: float
    """Mean recall@k or nDCG@k by the codes alone."""
    lower: float
    """The lower confidence bound of ``quality``."""
    reranked: float
    """The mean with a re-rank from full vectors."""
    reranked_lower: float
    taken: bool = False


def fit_all(
    sample: Sample, rows: Floats, budget: int, kinds: Sequence[str], metric: str, seed: int,
    retrofit: Retrofit | None, queries: Moments | None,
) -> list[tuple[Fitted, bool]]:  # fmt: skip
    """Every candidate of at most ``budget`` bytes, the simple ones first, and whether it is simple."""
    found: list[tuple[Fitted, bool]] = []
    whole = ["pca", *(["queries"] if queries is not None else []), *(["map"] if retrofit is not None else [])]
    axes = {name: turned(sample, name, retrofit, queries) for name in ("identity", *whole, "centred")}
    room = budget if metric == "cosine" else budget - 4
    for name in ("identity", *whole):
        for kind in kinds:
            bits = _BITS.get(kind)
            dim = 0 if bits is None else min(sample.dim, (budget if bits == 16 else room) * 8 // bits)
            if bits is not None and dim > 0:
                made = in_scalars(axes[name], name, dim, bits, metric, seed)
                found.append((made, name in ("identity", "pca")))
    products = ("centred", *whole[1:]) if "product" in kinds else ()
    found += [(in_product(sample, rows, axes[name], name, budget, seed), False) for name in products]
    return found


def choose(
    candidates: Sequence[tuple[Fitted, bool]], trial: Trial, confidence: float, *, rerank: bool
) -> tuple[Fitted, tuple[Candidate, ...], str]:
    """The candidate that is taken, the table, and why."""
    worth = [trial.worth(fitted) for fitted, _ in candidates]
    simple = [place for place, (_, plain) in enumerate(candidates) if plain]
    others = [place for place in range(len(candidates)) if place not in simple]
    level, gain_level = (1 - confidence) / (4 * len(candidates)), (1 - confidence) / (2 * max(1, len(others)))
    column = int(rerank)
    means = [each[:, column].mean() for each in worth]
    taken, why = _taken([each[:, column] for each in worth], means, simple, others, gain_level)
    if why == "proved":
        names = f"every simple candidate with {confidence:.0%} confidence"
        why = f"better than {names}" if simple else "the best mean"
    table = []
    for place, ((fitted, _), each) in enumerate(zip(candidates, worth, strict=True)):
        bounds = [lower_bound(each[:, which], level) for which in (0, 1)]
        table.append(Candidate(fitted.rotation, fitted.codec.name, fitted.codec.dim, fitted.codec.bytes_per_row,
                               float(each[:, 0].mean()), max(0.0, bounds[0]), float(each[:, 1].mean()),
                               max(0.0, bounds[1]), place == taken))  # fmt: skip
    return candidates[taken][0], tuple(table), why


def _taken(
    values: Sequence[Doubles], means: Sequence[float], simple: Sequence[int], others: Sequence[int], level: float
) -> tuple[int, str]:
    """The best candidate that is proved, or the best simple one; of equal means the first."""
    for place in sorted(others, key=lambda place: -means[place]):
        gains = [lower_bound(values[place] - values[other], level) for other in simple]
        if not simple or min(gains) >= 0:
            return place, "proved"
    best = max(simple, key=lambda place: means[place])
    better = [place for place in others if means[place] > means[best]]
    return best, "the best simple candidate" + ("; better means are not proved" if better else "")


def relevant_places(relevance: Sequence[Sequence[int]], rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """Row numbers as places in ``rows``, increasing row numbers that include them."""
    return tuple(np.searchsorted(rows, np.asarray([*some], np.int64)) for some in relevance)
