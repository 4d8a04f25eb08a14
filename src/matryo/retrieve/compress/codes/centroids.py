"""The 256 centroids of a block: k-means from a start with the density that loses the least.

For w Gaussian columns the best density of centroids is Gaussian, too, with a variance that is (w + 2) / w times theirs:
more centroids lie in the tails than a sample of the rows has there. One column starts from quantiles of it.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from matryo.retrieve.guides.partition.means import nearest_mean

if TYPE_CHECKING:
    from matryo.arrays import Floats

CENTROIDS = 256
SAMPLE = 40 * CENTROIDS   # rows that centroids are fitted to; more do not improve recall
_ROUNDS = 10


def find_centroids(rows: Floats, rng: np.random.Generator) -> Floats:
    """Return centroids [256, w] of ``rows`` [n, w], each of which is the mean of the rows next to it."""
    width = rows.shape[1]
    middle, spread = rows.mean(axis=0), ((width + 2) / width) ** 0.5
    if width == 1:
        deviation = max(float(rows.std()), float(np.finfo(np.float32).tiny))
        normal = NormalDist(0, spread * deviation)
        quantiles = [normal.inv_cdf((place + 0.5) / CENTROIDS) for place in range(CENTROIDS)]
        means = np.asarray(quantiles, np.float32)[:, None] + middle
    else:
        first = rng.choice(len(rows), CENTROIDS, replace=len(rows) < CENTROIDS)
        means = (rows[first] - middle) * np.float32(spread) + middle
    means = np.ascontiguousarray(means, np.float32)
    for _ in range(_ROUNDS):
        near = nearest_mean(rows, means, round_=False)
        sizes = np.bincount(near, minlength=CENTROIDS)
        used = np.flatnonzero(sizes)
        starts = (np.cumsum(sizes) - sizes)[used]
        means[used] = np.add.reduceat(rows[np.argsort(near, kind="stable")], starts) / sizes[used, None]
        unused = np.flatnonzero(sizes == 0)
        if width > 1 and len(unused):   # in one column an empty centroid still serves the tail
            means[unused] = rows[rng.choice(len(rows), len(unused))]
    return means
