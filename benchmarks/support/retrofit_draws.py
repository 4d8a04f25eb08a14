"""Random data, queries and labels, and the true gain of each rung that was taken on them.

The kinds of data differ in what a rung above PCA can gain: nothing (labels and queries at random), something (queries
of another distribution, classes in directions of little variance), or little beside its noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matryo.nesting import Nesting
from matryo.retrofit.choice import SIMPLE
from matryo.retrofit.fitting import Fit, Options
from matryo.retrofit.held_out import Held

Array = np.ndarray[Any, np.dtype[Any]]
DIM, ROWS, TESTS = 32, 1500, 3000
DIMS = (4, 8, 16)


def draw(seed: int, rows: int = ROWS, tests: int = TESTS) -> list[tuple[int, str, float]]:
    """The dim, the name and the true gain of each rung above identity and PCA that was taken, on ``tests`` new queries.

    The gain is the mean quality on new queries, less the best of identity and PCA there.
    """
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    spread = np.exp(-np.arange(DIM) * rng.uniform(0.02, 0.3))
    by_labels = seed % 2 == 1
    if by_labels:
        return _labels(rng, turn, spread, rows, tests)
    other = spread[rng.permutation(DIM)] if seed % 4 == 0 else spread   # queries of another distribution, or the same

    def queries(count: int) -> Array:
        return np.asarray(rng.normal(size=(count, DIM)) * other @ turn)

    data = rng.normal(size=(rows, DIM)) * spread @ turn
    fit = Fit(_options(seed)).run(data, queries(int(rng.integers(100, 600))), None, None)
    held = Held.by_recall(_float(data), _float(queries(tests)), "ip", 5, fit.held.shortlist)
    return _gains(fit, held)


def _labels(rng: Any, turn: Array, spread: Array, rows: int, tests: int) -> list[tuple[int, str, float]]:
    classes, strength = int(rng.integers(3, 12)), float(rng.choice([0.0, 0.3, 1.0]))
    means = rng.normal(size=(classes, DIM)) * strength * spread.mean() * (rng.random(DIM) < 0.3)

    def some(count: int) -> tuple[Array, Array]:
        labels = rng.integers(classes, size=count)
        return (means[labels] + rng.normal(size=(count, DIM)) * spread) @ turn, labels

    data, labels = some(rows)
    known = np.where(rng.random(rows) < rng.choice([0.1, 0.3, 1.0]), labels, -1)
    fit = Fit(_options(int(rng.integers(1 << 30)))).run(data, None, None, known)
    own = fit.held.database
    of_rows = known[[int(np.argmin(np.abs(data - row).sum(1))) for row in own]]
    test, truth = some(tests)
    right = truth[:, None] == of_rows[None]
    return _gains(fit, Held.by_relevance(own, _float(test), "ip", fit.held.k, right, "labels"))


def draw_real(seed: int, rows: Array, labels: Array, queries: Array, truth: Array) -> list[tuple[int, str, float]]:
    """The same of real vectors: 2,000 of ``rows``, of which 5 % to all have labels, searched by all ``queries``."""
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(len(rows))[:2000]
    known = np.where(rng.random(len(drawn)) < rng.choice([0.05, 0.2, 0.5, 1.0]), labels[drawn], -1)
    dim = rows.shape[1]
    options = Options(Nesting([12, 48, 192, dim]), k=5, seed=seed, progress=False)
    fit = Fit(options).run(rows[drawn], None, None, known)
    own = known >= 0
    right = truth[:, None] == known[own][None]
    return _gains(fit, Held.by_relevance(rows[drawn][own], queries, "cosine", fit.held.k, right, "labels"))


def _gains(fit: Fit, held: Held) -> list[tuple[int, str, float]]:
    worth = {name: held.worth(rung, fit.dims).mean(axis=0) for name, rung in fit.rungs.items()}
    simple = np.max([worth[name] for name in SIMPLE], axis=0)
    return [
        (entry.dim, entry.rung, float(worth[entry.rung][place] - simple[place]))
        for place, entry in enumerate(fit.table) if entry.rung not in SIMPLE
    ]  # fmt: skip


def _options(seed: int) -> Options:
    return Options(Nesting([*DIMS, DIM]), metric="ip", k=5, shortlist=30, seed=seed, progress=False)


def _float(values: Array) -> Array:
    return values.astype(np.float32)


