"""Create baselines by name, for commands and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.arguments import checked
from matryo.baselines.axes import PCA, SVD, ClassifierSVD
from matryo.baselines.columns import RandomFeatures, Truncation
from matryo.baselines.projection import RandomProjection
from matryo.baselines.rungs import LadderRung
from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from matryo.baselines.map import Baseline

_MAKE: dict[str, Callable[[int], Baseline]] = {
    "truncate": lambda _: Truncation(),
    "random": RandomFeatures,
    "pca": lambda _: PCA(),
    "svd": lambda _: SVD(),
    "svd-classifier": lambda _: ClassifierSVD(),
    "jl": RandomProjection,
    "retrofit": lambda _: LadderRung("retrofit"),
    "blocks": lambda _: LadderRung("blocks"),
    "classes": lambda _: LadderRung("classes"),
    "learned": lambda _: LadderRung("learned"),
    "adaptor": lambda _: LadderRung("adaptor"),
}
NAMES = tuple(_MAKE)
RUNGS = ("retrofit", "blocks", "classes", "learned", "adaptor")
"""The rungs of a retrofit, which take longer than the others."""
DRAWN = ("random", "jl")
"""The baselines that depend on the seed and should be averaged over several seeds."""


@checked
def baseline(name: str, seed: int = 0) -> Baseline:
    """Return the baseline called ``name``; only random baselines use the ``seed``.

    >>> baseline("jl", seed=3)
    RandomProjection(seed=3, normalize=True)
    """
    if name not in _MAKE:
        raise InputError("there is no such baseline", got=repr(name), cure=f"choose one of {', '.join(NAMES)}")
    return _MAKE[name](seed)
