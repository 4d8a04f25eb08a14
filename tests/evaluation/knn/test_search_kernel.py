"""The compiled scan: the same bits whatever else is asked for, within its memory, and never needed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from matryo.evaluation.knn.search import Scan, search

core = pytest.importorskip("matryo._core")
kernel = importlib.import_module("matryo.evaluation.knn.kernel")
module = importlib.import_module("matryo.evaluation.knn.search")

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


MEMORY = """
from pathlib import Path
from matryo.evaluation.knn import kernel

def address_space():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[0])

dim, dims, k, count, budget = {case}
rows = kernel.Scan.batch(dim, dims, k, count, budget)
before = address_space()
queries = np.ones((rows, dim), np.float32)
scan = kernel.Scan(queries, list(range(dim - dims + 1, dim + 1)), k, count)
tile = np.ones((scan.rows, dim), np.float32)
scan.load(tile)
found = np.empty((dims, rows, k), np.int64)
print(address_space() - before, rows)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize(("dim", "dims", "k", "count"), [(8, 1, 1, 10**6), (512, 13, 100, 10**6), (64, 7, 3000, 3000)])
def test_its_memory_stays_within_the_budget(dim: int, dims: int, k: int, count: int) -> None:
    budget = 128 << 20
    code = MEMORY.format(case=(dim, dims, k, count, budget))
    used, rows = map(int, run(code, MATRYO_THREADS="1").split())   # threads reserve space for stacks
    assert rows > core.GROUP_QUERIES
    assert budget / 2 < used <= budget * 1.05   # the last few queries may be padding


def kinds() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Vectors that are hard on 16 bits: what is found must be exact all the same."""
    rng = np.random.default_rng(7)
    database, queries = random_vectors(1500, 8), random_vectors(29, 9)
    steep = np.exp2(-rng.permutation(80).astype(np.float32))   # columns from 1 to 2⁻⁷⁹
    late = np.exp2(np.minimum(np.arange(80) - 40, 0)).astype(np.float32)   # small prefixes of large vectors
    some = np.zeros_like(database)
    some[::3] = database[::3]
    one = np.where(np.arange(80) == 3, database, 0)   # 16 bits hold no more than this one column
    near = 1 + 1e-5 * database   # all within what rounding may hide
    return {
        "steep": (database * steep, queries * steep),
        "steep database": (database * steep, queries),
        "late": (database * late, queries * late),
        "zeros": (some, queries),
        "one column": (one + 1e-6 * database, queries),
        "nearly alike": (near, 1 + 1e-5 * queries),
        "nearly alike, against any": (near, queries),
        "many norms": (database * np.exp2(rng.integers(-40, 41, (1500, 1))).astype(np.float32), queries),
        "tiny": (database * np.float32(1e-21), queries),
        "tiny or not": (database * rng.choice(np.array([1e-22, 1], np.float32), (1500, 1)), queries),
        "denormal": (np.where(rng.random((1500, 80)) < 0.5, np.float32(1e-42), database), queries * np.float32(1e-15)),
    }


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("k", [1, 20])
def test_vectors_that_round_badly_are_found_exactly(kind: str, k: int) -> None:
    database, queries = kinds()[kind]
    fast = search(database, queries, DIMS, k, fast=True)
    for dim in DIMS:
        sides = [rows[:, :dim].astype(np.float64) for rows in (queries, database)]
        norms = [np.maximum(np.linalg.norm(side, axis=1), np.finfo(np.float64).tiny) for side in sides]
        scores = sides[0] @ sides[1].T / norms[1] / np.linalg.norm(queries.astype(np.float64), axis=1)[:, None]
        # A prefix 2⁶⁰ times smaller than its row counts as zero, because float32 cannot hold the squares of both.
        scores[:, norms[1] < 2.0**-60 * np.abs(database).max(axis=1)] = 0
        found = np.take_along_axis(scores, fast[dim], 1)
        best = -np.sort(-scores, axis=1)[:, :k]
        # Rounding errors of a float32 sum, which are the largest where registers have the fewest lanes.
        np.testing.assert_allclose(found, best, rtol=0, atol=5e-7 * np.abs(scores).max())
        assert all(len(set(row)) == k for row in fast[dim].tolist())
        alone = search(database, queries[:1], [dim], k, fast=True)[dim]
        np.testing.assert_array_equal(fast[dim][:1], alone)


@pytest.mark.parametrize("kind", ["plain", *kinds()])
def test_bounds_exclude_no_row_that_a_full_ranking_has(kind: str) -> None:
    """For k = all rows there is never a bar, so every row is scored: the first of that ranking are the best k."""
    database, queries = kinds().get(kind, (random_vectors(1500, 8), random_vectors(29, 9)))
    everything = search(database, queries, DIMS, 1500, fast=True)
    for k in (1, 20, 90):
        for dim, hits in search(database, queries, DIMS, k, fast=True).items():
            np.testing.assert_array_equal(hits, everything[dim][:, :k])


@pytest.mark.parametrize("order", ["shuffled", "by class", "best first", "best last"])
def test_the_guess_of_a_bar_changes_nothing(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    rng = np.random.default_rng(10)
    database, queries = random_vectors(20000, 11)[:, :8], random_vectors(13, 12)[:, :8]
    cosine = (database @ queries[0]) / np.linalg.norm(database, axis=1)
    places = {"shuffled": rng.permutation(20000), "best first": np.argsort(-cosine), "best last": np.argsort(cosine)}
    database = database[places.get(order, np.lexsort([database[:, 1], database[:, 0] > 0]))]
    guessed = search(database, queries, [2, 5, 8], 40, fast=True)
    monkeypatch.setattr(kernel.Scan, "guess", lambda *_: None)
    plain = search(database, queries, [2, 5, 8], 40, fast=True)
    for dim in guessed:
        np.testing.assert_array_equal(guessed[dim], plain[dim])


def test_a_guess_that_is_too_high_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best are all in the sample, so what few of them reach no other row does: for one query, not for the other."""
    rng = np.random.default_rng(15)
    database = rng.normal(size=(20000, 4)).astype(np.float32)
    database[:2500, 0] += 9
    monkeypatch.setattr(module, "_sample", lambda rows, dim: rows[:2500, :dim])
    queries, k = np.float32([[1, 0, 0, 0], [0, 1, 0, 0]]), 400
    short = []
    monkeypatch.setattr(kernel.Scan, "short", lambda scan, of=kernel.Scan.short: short.append(of(scan)) or short[-1])
    hits = search(database, queries, [2, 4], k, fast=True)
    assert short[0].tolist() == [True, False]
    for dim, found in hits.items():
        rows = database[:, :dim].astype(np.float64)
        score = (queries[:, :dim] @ rows.T) / np.linalg.norm(rows, axis=1)
        best = -np.sort(-score, axis=1)[:, :k]
        np.testing.assert_allclose(np.take_along_axis(score, found, 1), best, atol=1e-6)


def test_equal_rows_tie_exactly_wherever_they_are() -> None:
    few = random_vectors(7, 13)
    database, queries = np.tile(few, (300, 1)), random_vectors(5, 14)
    for hits in search(database, queries, [*range(2, 81)], 600, fast=True).values():
        for row in hits:
            assert (np.diff(row[:300]) == 7).all()   # the nearest of the seven, all of it, in order
            assert (np.diff(row[300:]) == 7).all()


def test_the_core_is_the_default() -> None:
    assert module._pick(None) is kernel.Scan
    assert module._pick(True) is kernel.Scan
    assert module._pick(False) is Scan


def run(code: str, **environment: str) -> str:
    begin = "import importlib, sys, numpy as np\nones = np.ones((3, 4), np.float32)\n"
    command, variables = [sys.executable, "-c", begin + code], {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=True).stdout.strip()


def test_without_the_core_a_search_is_numpys_unless_it_must_be_fast() -> None:
    code = """
sys.modules["matryo._core"] = None   # an import fails as if it were not installed
search = importlib.import_module("matryo.evaluation.knn.search")
print(search.search(ones, ones, [2, 4], 2)[4].tolist())
try:
    search.search(ones, ones, [4], 2, fast=True)
except ImportError as error:
    print(error)
"""
    found, error = run(code).splitlines()
    assert found == str([[0, 1]] * 3)
    assert error.startswith("this needs the compiled core of matryo (got ")
    assert error.endswith("pip install --force-reinstall --no-deps --no-cache-dir matryo")


ANOTHER = """
from matryo.evaluation import search
rng = np.random.default_rng(0)
database, queries = (rng.integers(-9, 10, (rows, 37)).astype(np.float32) for rows in (3000, 11))
for dim, hits in search(database, queries, [1, 8, 16, 37], 30, fast={fast}).items():
    print(dim, hits.tolist())
"""


@pytest.fixture(scope="module")
def found_by_numpy() -> str:
    return run(ANOTHER.format(fast=False))


@pytest.mark.parametrize("isa", ["avx512", "avx2", "baseline"])
def test_every_instruction_set_finds_the_rows_that_numpy_finds(isa: str, found_by_numpy: str) -> None:
    if isa != "baseline" and not has(isa):
        pytest.skip("this processor does not have it")
    code = f"from matryo import _core\nassert _core.ISA == '{isa}'\n" + ANOTHER.format(fast=True)
    assert run(code, MATRYO_ISA=isa) == found_by_numpy


def has(isa: str) -> bool:
    environment = {**os.environ, "MATRYO_ISA": isa}
    code = [sys.executable, "-c", "import matryo._core"]
    return subprocess.run(code, capture_output=True, env=environment, check=False).returncode == 0


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_the_number_of_threads_changes_nothing(threads: str, found_by_numpy: str) -> None:
    assert run(ANOTHER.format(fast=True), MATRYO_THREADS=threads) == found_by_numpy


def scan_of(queries: int = 3, dims: tuple[int, ...] = (2, 4), k: int = 2, room: int = 40) -> object:
    vectors = np.ones((queries, 4), np.float32)
    return core.Neighbours(vectors, np.array(dims, np.int64), k, room, 1)


def test_the_core_refuses_shapes_that_do_not_fit() -> None:
    for wrong in ({"queries": 0}, {"dims": ()}, {"dims": (4, 2)}, {"dims": (0, 4)}, {"dims": (2,)}, {"dims": (2, 5)},
                  {"k": 0}, {"k": 40}, {"room": 2}, {"room": 2**40}):
        with pytest.raises(ValueError, match="must"):
            scan_of(**wrong)
    scan, rows, norms = scan_of(), np.ones((5, 4), np.float32), np.empty((5, 2), np.float32)
    for wrong in ((rows[:, :3].copy(), norms), (rows, norms[:4]), (rows, np.empty((5, 3), np.float32))):
        with pytest.raises(ValueError, match="must"):
            scan.load(*wrong)
    with pytest.raises(TypeError):   # a converted copy would be filled instead of the caller's array
        scan.load(rows, norms.astype(np.float64))
    scan.load(rows, norms)
    for call in (lambda: scan.score(-1), lambda: scan.score(2**32 - 2), lambda: scan.guess(0), lambda: scan.guess(40),
                 lambda: scan.short(np.empty(2, np.bool_)), lambda: scan.indices(np.empty((2, 3, 3), np.int64))):
        with pytest.raises(ValueError, match="must"):
            call()


def test_lists_hold_any_number_of_rows() -> None:
    scan, norms, found = scan_of(k=2, room=3), np.empty((500, 2), np.float32), np.empty((2, 3, 2), np.int64)
    scan.indices(found)
    assert (found == -1).all()   # nothing was scanned yet
    rising = np.stack([np.arange(1, 501), np.ones(500), np.ones(500), np.ones(500)], 1).astype(np.float32)
    for first in (0, 500):
        scan.load(rising[::-1].copy(), norms)
        scan.score(first)
    scan.indices(found)
    assert (found == [499, 999]).all()   # the last row is (1, 1, 1, 1): the nearest
