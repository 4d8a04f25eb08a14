"""What one query costs on one thread: the loops that scan a block, and exact and calibrated search against faiss.

All contenders answer the same ten queries in turns, so that clocks and neighbours disturb them alike; one more comes
before the ten that is not counted, since it finds the caches full of another's vectors. A ratio is the median over
turns of the ratio of medians within a turn. faiss Panorama is tried at several numbers of levels and batch sizes, on
the vectors as they are and turned to their principal axes (which changes no inner product), and the fastest counts.

    python benchmarks/retrieval_kernels.py --rows 100000 --dim 512
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from matryo import Nesting
from matryo.results import append_rows, stamp
from matryo.retrieve import kernels
from matryo.retrieve.blocks import Blocks
from matryo.retrieve.calibrated import Calibrated, Calibration
from matryo.retrieve.certified import Certified, scan_exactly
from matryo.retrieve.sketch import Sketch

Vectors = np.ndarray[Any, np.dtype[np.float32]]
Rows = np.ndarray[Any, np.dtype[np.int64]]
Search = Callable[[Vectors], Rows]

TURN = 10   # queries that a contender answers before the next has its turn
LEARNED_FROM = 500   # queries that calibrate, none of them timed


def main() -> None:
    """Measure, print, store the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="vectors in the database")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=100, help="a multiple of 10")
    parser.add_argument("-k", type=int, default=10, help="neighbours")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results/retrieval-kernels.jsonl"))
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    count = args.queries + LEARNED_FROM
    drawn = {
        "spectrum 1/√j": (spectrum(rng, args.rows, args.dim, 0.5), spectrum(rng, count, args.dim, 0.5)),
        "spectrum 1/j": (spectrum(rng, args.rows, args.dim, 1.0), spectrum(rng, count, args.dim, 1.0)),
        "nested": nested(rng, args.rows, count, args.dim),
    }
    figures = scans(rng, args.rows)
    rows = [stamp("retrieval-kernels", f"scans of {args.rows} rows", figures, seed=args.seed)]
    for name, (database, queries) in drawn.items():
        figures = searches(database, queries[: args.queries], queries[args.queries :], args.k)
        print(name)
        for contender, figure in figures["milliseconds"].items():
            print(f"  {contender:34}", *(f"{key} {value:.3f}" for key, value in figure.items()))
        print("  ", {key: value for key, value in figures.items() if key != "milliseconds"}, flush=True)
        subject = f"{name}, {args.rows} × {args.dim}, k {args.k}"
        rows.append(stamp("retrieval-kernels", subject, figures, seed=args.seed))
    append_rows(args.out, rows)


def unit(vectors: Vectors) -> Vectors:
    """On the unit sphere."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def spectrum(rng: np.random.Generator, rows: int, dim: int, power: float) -> Vectors:
    """Gaussian vectors whose column j has the standard deviation j^−power, on the unit sphere."""
    return unit(rng.standard_normal((rows, dim), np.float32) * np.arange(1, dim + 1, dtype=np.float32) ** -power)


def nested(rng: np.random.Generator, rows: int, queries: int, dim: int) -> tuple[Vectors, Vectors]:
    """Vectors with the traits of trained nested embeddings, on the unit sphere.

    200 classes differ in 100 factors of falling strength. The columns of a block mix as many of the first factors as
    its dim, so a short prefix tells coarse classes apart and later blocks repeat what earlier ones say; energy falls
    slowly along the columns; all have a common mean, as pooled ReLU features do; and each has noise of its own.
    """
    factors, classes = 100, 200
    strength = np.arange(1, factors + 1) ** -0.5
    means = rng.standard_normal((classes, factors)) * strength
    mix = np.zeros((factors, dim))
    for low, high in Nesting.halving(dim).blocks:
        known = min(factors, high)
        mix[:known, low:high] = rng.standard_normal((known, high - low))
        mix[:, low:high] /= np.sqrt((np.square(mix[:, low:high]) * np.square(strength)[:, None]).sum(0))
    energy = np.arange(1, dim + 1) ** -0.25

    def draw(count: int) -> Vectors:
        inner = means[rng.integers(classes, size=count)] + 0.6 * strength * rng.standard_normal((count, factors))
        return unit((inner @ mix + 0.15 * rng.standard_normal((count, dim))) * energy + 0.5 * energy.mean())

    return draw(rows), draw(queries)


def scans(rng: np.random.Generator, count: int) -> dict[str, Any]:
    """Every row's product with a query, by width and by how the block is stored: milliseconds and bytes a second."""
    figures: dict[str, Any] = {}
    for width in (16, 32, 64, 128):
        rows = rng.standard_normal((count, width), np.float32)
        query, halves = rows[0].copy(), rows.astype(np.float16).view(np.uint16)
        codes = np.clip(rows * 32, -127, 127).astype(np.int8)
        whole = codes[: count // kernels.LANES * kernels.LANES]
        tiles = (whole.view(np.uint8) ^ 128).reshape(-1, kernels.LANES, width // 4, 4).transpose(0, 2, 1, 3)
        tiles, weights = np.ascontiguousarray(tiles), codes[0].copy()
        sums, dots = np.zeros(count, np.float32), np.zeros(count, np.int32)
        asked = weights, weights, np.float32(1)
        best = partial(kernels.scan_sketch, tiles, *asked, None, np.ones(count, np.bool_), dots)
        runs: dict[str, tuple[int, Callable[[Any], Any]]] = {
            "float32, BLAS": (rows.nbytes, partial(np.dot, rows, out=sums)),
            "float32": (rows.nbytes, partial(add, kernels.add_products, rows, sums)),
            "float16": (halves.nbytes, partial(add, kernels.add_products, halves, sums)),
            "int8, row by row": (codes.nbytes, partial(add_int8, codes, weights, dots)),
            "int8 in tiles, with the best 10": (codes.nbytes, partial(scan_tiles, best, len(tiles) * kernels.LANES)),
        }
        times, _ = in_turns({name: run for name, (_, run) in runs.items()}, [query] * 100)
        for name, (size, _) in runs.items():
            figure = summary(times[name])
            figures[f"{width} columns, {name}"] = figure | {"gigabytes a second": round(size / figure["p50"] / 1e6, 1)}
            print(f"{width:4} columns, {name:34}", figures[f"{width} columns, {name}"], flush=True)
    return figures


def searches(database: Vectors, queries: Vectors, learn_from: Vectors, k: int) -> dict[str, Any]:
    """One query at a time, by every contender in turns; whether the answers are the same; the ratios that matter."""
    blocks = Blocks.of(database, Nesting.halving(database.shape[1], smallest=16))
    begin = time.perf_counter()
    certified = Certified(blocks, Sketch.of(blocks, "ip"))
    built = time.perf_counter() - begin
    learned = {recall: Calibration.fit(certified, learn_from, k=k, recall=recall) for recall in (0.95, 0.99)}
    contenders: dict[str, Search] = {"certified": partial(ours, certified, k)}
    for recall, calibration in learned.items():
        contenders[f"calibrated {recall}"] = partial(ours, Calibrated(certified, calibration), k)
    contenders |= faiss_indexes(database, k)
    times, found = in_turns(contenders, [queries[i : i + 1] for i in range(len(queries))])
    true = scan_exactly(blocks, queries, k, "ip")[0]
    panorama = min((name for name in times if "Panorama" in name), key=lambda name: np.median(times[name]))
    return {
        "milliseconds": {name: summary(values) for name, values in times.items()},
        "same": {name: float((np.concatenate(rows) == true).mean()) for name, rows in found.items()},
        "recall": {name: overlap(np.concatenate(rows), true) for name, rows in found.items()},
        "promised": {recall: (one.found, one.at_least) for recall, one in learned.items()},
        "best Panorama": panorama,
        "Panorama / certified": ratio(times[panorama], times["certified"]),
        "Flat / certified": ratio(times["faiss Flat"], times["certified"]),
        "Flat / calibrated 0.99": ratio(times["faiss Flat"], times["calibrated 0.99"]),
        "sketch dims": certified.sketch.dims,
        "sketch bytes a row": certified.sketch.nbytes / blocks.count,
        "sketch build seconds": round(built, 2),
    }


def faiss_indexes(database: Vectors, k: int) -> dict[str, Search]:
    """faiss Flat, and Panorama at its settings, each on one thread."""
    faiss: Any = importlib.import_module("faiss")
    faiss.omp_set_num_threads(1)
    dim = database.shape[1]
    axes = np.linalg.eigh(database.T @ database)[1][:, ::-1].astype(np.float32)
    turned = np.ascontiguousarray(database @ axes)
    flat = faiss.IndexFlatIP(dim)
    flat.add(database)
    found: dict[str, Search] = {"faiss Flat": partial(theirs, flat, k, None)}
    for levels in (8, 16, 32):
        for batch in (512, 1024, 4096):
            for name, vectors, turn in (("", database, None), (", turned", turned, axes)):
                index = faiss.IndexFlatIPPanorama(dim, levels, batch)
                index.add(vectors)
                found[f"faiss Panorama {levels}/{batch}{name}"] = partial(theirs, index, k, turn)
    return found


def ours(index: Certified | Calibrated, k: int, query: Vectors) -> Rows:
    """The rows that one of ours finds."""
    return index.search(query, k)[0]


def theirs(index: Any, k: int, axes: Vectors | None, query: Vectors) -> Rows:
    """The rows that an index of faiss finds."""
    rows: Rows = index.search(query if axes is None else query @ axes, k)[1]
    return rows


def add(kernel: Callable[..., None], rows: Any, sums: Vectors, query: Vectors) -> None:
    """One scan of a block."""
    kernel(rows, query, sums)


def add_int8(codes: Any, weights: Any, sums: Any, _query: Vectors) -> None:
    """One scan of a block in int8."""
    kernels.add_products_int8(codes, weights, sums)


def scan_tiles(scan: Callable[..., Rows], count: int, _query: Vectors) -> Rows:
    """One scan of int8 tiles."""
    return scan(count, 10)


def in_turns(
    contenders: dict[str, Callable[[Vectors], Any]], queries: list[Vectors]
) -> tuple[dict[str, list[float]], dict[str, list[Any]]]:
    """The milliseconds of each contender, and what it found, by query."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    found: dict[str, list[Any]] = {name: [] for name in contenders}
    for start in range(0, len(queries), TURN):
        for name, contender in contenders.items():
            contender(queries[start])
            for query in queries[start : start + TURN]:
                begin = time.perf_counter()
                answer = contender(query)
                times[name].append((time.perf_counter() - begin) * 1e3)
                found[name].append(answer)
    return times, found


def summary(values: list[float]) -> dict[str, float]:
    """p20, p50 and p80."""
    return {f"p{part}": round(float(np.percentile(values, part)), 4) for part in (20, 50, 80)}


def ratio(slow: list[float], fast: list[float]) -> float:
    """The median over turns of the ratio of medians."""
    medians = [np.median(np.array(values).reshape(-1, TURN), axis=1) for values in (slow, fast)]
    return round(float(np.median(medians[0] / medians[1])), 2)


def overlap(rows: Rows, true: Rows) -> float:
    """The share of the true neighbours that were found."""
    return float(np.mean([np.isin(b, a).mean() for a, b in zip(rows, true, strict=True)]))


if __name__ == "__main__":
    main()
