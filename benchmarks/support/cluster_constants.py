"""What one core does with 1024 dims: the constants of the estimate for a billion vectors in docs/scale.md."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from matryo.embeddings import EmbeddingSet, EmbeddingWriter
from matryo.evaluation.knn.search import search
from matryo.retrieve import Index, Plan
from matryo.retrofit.moments import Moments

_ROWS, _DIM, _QUERIES = 100_000, 1024, 200
_DIMS = [64, 128, 256, 512, 1024]


def measure(folder: Path, seed: int) -> dict[str, dict[str, Any]]:
    """Rates per core for vectors of 1024 dims, and the bytes and times of an index of them."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(1000, _DIM)).astype(np.float32)
    labels = rng.integers(0, 1000, _ROWS + _QUERIES)
    vectors = centres[labels]
    vectors += rng.normal(size=vectors.shape).astype(np.float32)
    vectors *= np.linspace(1, 0.1, _DIM, dtype=np.float32)
    vectors, queries = vectors[:_ROWS], vectors[_ROWS:]
    begin = time.perf_counter()
    with EmbeddingWriter(folder / "written", dim=_DIM, dtype="float16") as writer:
        for start in range(0, _ROWS, 4096):
            writer.append(vectors[start : start + 4096])
    figures: dict[str, Any] = {"rows written per second": round(_ROWS / (time.perf_counter() - begin))}
    written = EmbeddingSet.open(folder / "written")
    moments = Moments(_DIM)
    begin = time.perf_counter()
    for _, rows in written.batches():
        moments.add(rows)
    figures["rows of moments per second"] = round(_ROWS / (time.perf_counter() - begin))
    begin = time.perf_counter()
    search(written.vectors, queries, _DIMS, 10)
    figures["pairs at all dims per second"] = round(_ROWS * _QUERIES / (time.perf_counter() - begin))
    begin = time.perf_counter()
    with Index.create(folder / "index", _DIMS, dtype="float16") as index:
        for _, rows in written.batches():
            index.add(rows)
        index.compact()
        index.build(partition=128)
        figures["rows indexed per second"] = round(_ROWS / (time.perf_counter() - begin))
        figures["bytes per row of the index"] = round(index.describe().bytes / _ROWS)
        plan = replace(Plan.of([(128, 400, "int8"), (1024, 10)]), probe=0.02)
        exact, planned = index.search(queries, 10).ids, index.search(queries, 10, plan).ids
        found = [len({*one} & {*two}) for one, two in zip(exact.tolist(), planned.tolist(), strict=True)]
        figures["recall@10 of the plan"] = round(float(np.mean(found)) / 10, 4)
        times = []
        for query in queries:
            begin = time.perf_counter()
            index.search(query, 10, plan)
            times.append(time.perf_counter() - begin)
        figures["milliseconds per planned search, p50"] = round(1000 * float(np.median(times)), 3)
    return {f"one core, {_ROWS:,} × {_DIM}, float16": figures}
