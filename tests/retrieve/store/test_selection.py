"""Selections beside sets of Python, where positions and masks meet."""

import numpy as np
import pytest

from matryo.retrieve.store.filters.masks import Cache
from matryo.retrieve.store.filters.selection import Selection

COUNT = 1000


def draw(size: int, seed: int) -> tuple[Selection, set[int]]:
    """Rows in several parts, some of them twice."""
    rows = np.random.default_rng(seed).integers(COUNT, size=size)
    return Selection.of_rows([rows[: size // 2], rows[size // 3 :]], COUNT), set(rows.tolist())


@pytest.mark.parametrize("sizes", [(0, 0), (0, 9), (9, 14), (9, 700), (700, 600)])
def test_operations_are_those_of_sets(sizes: tuple[int, int]) -> None:
    (first, one), (second, other) = (draw(size, seed) for seed, size in enumerate(sizes))
    expected = {first: one, second: other, first & second: one & other, second & first: one & other,
                first | second: one | other, ~first: set(range(COUNT)) - one}   # fmt: skip
    for selection, rows in expected.items():
        assert selection.positions.tolist() == np.flatnonzero(selection.mask).tolist() == sorted(rows)
        assert selection.size == len(rows)


@pytest.mark.parametrize("sizes", [(3, 5), (3, 500), (400, 0)])
def test_parts_are_joined_in_order(sizes: tuple[int, int]) -> None:
    (first, one), (second, other) = (draw(size, seed) for seed, size in enumerate(sizes))
    whole = Selection.joined([first, second])
    assert whole.positions.tolist() == sorted(one | {row + COUNT for row in other})
    assert whole.count == len(whole.mask) == 2 * COUNT


def test_small_selections_take_little_memory() -> None:
    small, large = Selection.of_rows([np.arange(5)], 1 << 20), Selection.of_rows([np.arange(1 << 19)], 1 << 20)
    assert small.nbytes < 100 < large.nbytes
    cache: Cache[Selection] = Cache()
    for key in range(200):
        cache.get(key, lambda: small)
    assert [cache.get(key, lambda: large) for key in range(200)] == [small] * 200
    for key in range(1000, 1100):   # 64 of them are 64 MiB
        cache.get(key, lambda: Selection.of_mask(np.zeros(1 << 20, np.bool_)))
    assert cache.get(0, lambda: large) is large
