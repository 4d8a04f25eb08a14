"""The choice for a number of bytes: every candidate is tried, and the one with the largest lower bound is taken.

A *simple* candidate is the vectors' first columns, or their first principal axes, in numbers of 16, 8, 4 or 1 bits. Any
database takes most of these. The others are product codes, and rotations that saw queries. Each candidate has a lower
confidence bound of its quality on held-out queries, and the largest one decides: a good mean of few queries does not.
A candidate that is not simple is compared with every simple one, query by query, and the choice says whether it is
proved better. One half of the error probability is divided by the bounds of the table, the other half by the candidates
that are compared. So all statements hold together with the given confidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from matryo.retrieve.compress.bases import in_product, in_scalars, turned
from matryo.retrieve.compress.codes.fitted import Fitted
from matryo.retrofit.choice import lower_bound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matryo.arrays import Doubles, Integers
    from matryo.retrieve.compress.codes.codecs import Bits
    from matryo.retrieve.compress.sample import Sample
    from matryo.retrieve.compress.trial import Trial
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


@dataclass(frozen=True)
class Recipe:
    """A candidate before it is fitted."""

    rotation: str
    kind: str
    size: int
    """Dims, or the bytes of a product code."""
    columns: int
    """The number of leading axes that a product code may spend bytes on."""

    @property
    def simple(self) -> bool:
        """Whether it is plain numbers of the columns or of the principal axes."""
        return self.kind != "product" and self.rotation in ("identity", "pca")

    def fit(self, sample: Sample, axes: Mapping[str, Doubles], metric: str, seed: int) -> Fitted:
        """Fit it to a sample, given the axes of every rotation."""
        if self.kind == "product":
            return in_product(sample, axes[self.rotation], self.rotation, self.size, seed, self.columns)
        return in_scalars(axes[self.rotation], self.rotation, self.size, _BITS[self.kind], metric, seed)


def recipes(
    dim: int, budget: int, kinds: Sequence[str], metric: str, more: Sequence[str], *, fewer: bool = False
) -> list[Recipe]:
    """Every candidate of at most ``budget`` bytes for vectors of ``dim`` columns; ``more`` are rotations above PCA.

    With ``fewer``, every code is also tried on a half, a quarter and an eighth of the axes. The last axes hold what
    tells near rows apart; if relevance is broader than that, such as a class, a search is better without them.
    """
    room = budget if metric == "cosine" else budget - 4
    widths = [width for width in (dim, dim // 2, dim // 4, dim // 8)[: 4 if fewer else 1] if width]
    found = []
    for name in ("identity", "pca", *more):
        for kind in (kind for kind in kinds if kind in _BITS):
            size = (budget if kind == "float16" else room) * 8 // _BITS[kind]
            found += [Recipe(name, kind, min(width, size), dim) for width in widths if size > 0]
    if "product" in kinds:
        found += [Recipe(name, "product", min(budget, width), width) for name in ("centred", *more) for width in widths]
    return list(dict.fromkeys(found))


def all_axes(
    tried: Sequence[Recipe], sample: Sample, retrofit: Retrofit | None, queries: Moments | None
) -> dict[str, Doubles]:
    """The axes of every rotation of some candidates."""
    return {name: turned(sample, name, retrofit, queries) for name in dict.fromkeys(one.rotation for one in tried)}


def choose(
    tried: Sequence[Recipe], fitted: Sequence[Fitted], trial: Trial, confidence: float, *, rerank: bool
) -> tuple[Recipe, tuple[Candidate, ...], str]:
    """The candidate that is taken, the table, and why."""
    worth = [trial.worth(each) for each in fitted]
    others = sum(not recipe.simple for recipe in tried)
    level, gain_level = (1 - confidence) / (4 * len(tried)), (1 - confidence) / (2 * max(1, others))
    bounds = [[lower_bound(each[:, column], level) for column in (0, 1)] for each in worth]
    column = int(rerank)
    taken = max(range(len(tried)), key=lambda place: (bounds[place][column], worth[place][:, column].mean()))
    table = tuple(
        Candidate(each.rotation, each.codec.name, each.codec.dim, each.codec.bytes_per_row, float(values[:, 0].mean()),
                  max(0.0, low[0]), float(values[:, 1].mean()), max(0.0, low[1]), place == taken)
        for place, (each, values, low) in enumerate(zip(fitted, worth, bounds, strict=True))
    )  # fmt: skip
    return tried[taken], table, _why(tried, [each[:, column] for each in worth], taken, gain_level, confidence)


def _why(
    tried: Sequence[Recipe], values: Sequence[Doubles], taken: int, level: float, confidence: float
) -> str:
    """Whether the taken candidate is proved better than every simple one."""
    if tried[taken].simple:
        return "the largest lower bound"
    gains = [lower_bound(values[taken] - values[place], level) for place, one in enumerate(tried) if one.simple]
    if gains and min(gains) > 0:
        return f"proved better than plain numbers with {confidence:.0%} confidence"
    return "the largest lower bound" + ("; not proved better than plain numbers" if gains else "")


def relevant_places(relevance: Sequence[Integers], rows: Integers) -> tuple[Integers, ...]:
    """Row numbers as places in ``rows``, increasing row numbers that include them."""
    return tuple(np.searchsorted(rows, some) for some in relevance)
