"""The compiled scan: the same bits whatever else is asked for, within its memory, and never needed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from matryo.evaluation.search import Scan, search

numba = pytest.importorskip("numba")
kernel = importlib.import_module("matryo.evaluation.kernel")
module = importlib.import_module("matryo.evaluation.search")

DIMS = [1, 5, 8, 12, 33, 48, 80]


def random_vectors(rows: int, seed: int) -> np.ndarray:
    spectrum = 1 / np.sqrt(1 + np.arange(80))
    return (np.random.default_rng(seed).standard_normal((rows, 80)) * spectrum).astype(np.float32)


def test_a_dim_gives_the_same_bits_alone_and_in_any_company() -> None:
    database, queries = random_vectors(5003, 0), random_vectors(61, 1)
    together = search(database, queries, DIMS, 50, fast=True)
    for dim in DIMS:
        alone = search(database, queries, [dim], 50, fast=True)[dim]
        np.testing.assert_array_equal(together[dim], alone)
        lonely = [search(database, query[None], [dim], 50, fast=True)[dim] for query in queries[:7]]
        np.testing.assert_array_equal(together[dim][:7], np.concatenate(lonely))


@pytest.mark.parametrize("k", [1, 2, 31, 32, 33, 64, 1500])
def test_it_agrees_with_numpy_up_to_rounding(k: int) -> None:
    database, queries = random_vectors(1500, 2), random_vectors(29, 3)
    fast, plain = (search(database, queries, DIMS, k, fast=fast) for fast in (True, False))
    for dim in DIMS:
        unit = [rows[:, :dim] / np.linalg.norm(rows[:, :dim], axis=1, keepdims=True) for rows in (queries, database)]
        scores = unit[0].astype(np.float64) @ unit[1].T
        found = [np.take_along_axis(scores, hits[dim], 1) for hits in (fast, plain)]
        np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-6)
        assert all(len(set(row)) == k for row in fast[dim].tolist())


def test_a_file_that_may_not_be_written_is_searched_like_any_other(tmp_path: Path) -> None:
    database, queries = random_vectors(300, 5), random_vectors(9, 6)
    np.save(tmp_path / "database.npy", database)
    mapped = np.load(tmp_path / "database.npy", mmap_mode="r")
    np.testing.assert_array_equal(
        search(mapped, queries, [80], 10, fast=True)[80], search(database, queries, [80], 10, fast=True)[80]
    )


def test_integers_give_the_same_neighbours_as_numpy() -> None:
    rng = np.random.default_rng(4)   # sums of small integers are exact in any order: the same scores, the same ties
    database, queries = (rng.integers(-2, 3, (rows, 80)).astype(np.float16) for rows in (1999, 40))
    database[::7] = 0
    fast, plain = (search(database, queries, DIMS, 120, fast=fast) for fast in (True, False))
    for dim in DIMS:
        np.testing.assert_array_equal(fast[dim], plain[dim])


@pytest.mark.parametrize(("dim", "dims", "k", "count"), [(8, 1, 1, 10**6), (512, 13, 100, 10**6), (64, 7, 3000, 3000)])
def test_its_memory_stays_within_the_budget(dim: int, dims: int, k: int, count: int) -> None:
    budget = 48 << 20
    rows = kernel.Scan.batch(dim, dims, k, count, budget)
    chosen = range(dim - dims + 1, dim + 1)
    scan = kernel.Scan(np.zeros((rows, dim), np.float32), list(chosen), k, count)
    tile = np.ones((scan.rows, dim), np.float32)
    scan.load(tile)
    held = [scan.packed, scan.bars, scan.counts, scan.keys, tile, scan.panels, scan.scales]
    result = rows * dims * k * 8
    assert rows > kernel.QUERIES * kernel.THREADS
    assert sum(array.nbytes for array in held) + result <= budget * 1.05   # the last six queries may be padding


def test_it_is_taken_for_long_searches_only() -> None:
    assert module._pick(None, 1000) is Scan
    assert module._pick(None, 10**12) is kernel.Scan
    assert module._pick(True, 1) is kernel.Scan
    assert module._pick(False, 10**12) is Scan


def run(code: str, **environment: str) -> str:
    begin = "import importlib, sys, numpy as np\nones = np.ones((3, 4), np.float32)\n"
    command, variables = [sys.executable, "-c", begin + code], {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=True).stdout.strip()


def test_without_numba_a_search_is_numpys_unless_it_must_be_fast() -> None:
    code = """
sys.modules["numba"] = None   # as good as not installed
search = importlib.import_module("matryo.evaluation.search")
search._REPAYS = 0
print(search.search(ones, ones, [2, 4], 2)[4].tolist())
try:
    search.search(ones, ones, [4], 2, fast=True)
except ImportError as error:
    print(error)
"""
    assert run(code).splitlines() == [str([[0, 1]] * 3), "this needs numba: pip install 'matryo[evaluate]'"]


def test_it_needs_no_folder_to_keep_what_was_compiled_in() -> None:
    code = "from matryo.evaluation import search\nprint(search(ones, ones, [2, 4], 2, fast=True)[4].tolist())"
    nowhere = run(code, NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator", NUMBA_CACHE_DIR="")
    assert nowhere == str([[0, 1]] * 3)
