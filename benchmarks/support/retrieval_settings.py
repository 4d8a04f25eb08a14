"""Settings of each library: builds and searches, wide enough to include its best."""

from __future__ import annotations

from functools import partial

import numpy as np

from support.retrieval_peers import (
    Database,
    Engine,
    Hnswlib,
    Scann,
    Settings,
    Svs,
    Usearch,
    faiss_flat,
    faiss_hnsw,
    faiss_ivf_pq,
    faiss_panorama,
    faiss_prefix,
)

HELD = (10, 16, 24, 32, 48, 64, 96, 128, 200, 400)   # candidates of a walk through a graph


def graph_asks(_database: Database, _build: Settings) -> list[Settings]:
    """Candidates held."""
    return [{"ef": ef} for ef in HELD]


def paper_asks(database: Database, build: Settings) -> list[Settings]:
    """Candidates held; and as the paper asks, for a shortlist of 200."""
    return [*graph_asks(database, build), {"ef": 200, "shortlist": 200}]


def truncated_builds(database: Database, **settings: int) -> list[Settings]:
    """Prefixes that stand for the whole."""
    return [{"dim": dim, **settings} for dim in database.nesting.dims[:-1] if dim >= 16]


def panorama_builds(database: Database) -> list[Settings]:
    """Levels, batches, and vectors turned or not."""
    levels = [count for count in (8, 16, 32) if database.dim % count == 0]
    return [{"levels": n, "batch": 512, "turned": t} for n in levels for t in (False, True)]


def ivf_builds(database: Database) -> list[Settings]:
    """As many partitions as two common rules say, and codes of two lengths."""
    lists = {nearest_power(2 * database.count**0.5), nearest_power(8 * database.count**0.5)}
    return [{"lists": n, "m": m} for n in sorted(lists) for m in (database.dim // 8, database.dim // 4)]


def ivf_asks(_database: Database, _build: Settings) -> list[Settings]:
    """Partitions, and how many times k are ranked again."""
    return [{"probe": probe, "factor": factor} for probe in (1, 2, 4, 8, 16, 32, 64) for factor in (4, 10, 30, 100)]


def prefix_builds(database: Database) -> list[Settings]:
    """Graphs over the prefixes that the paper uses, and codes of longer ones."""
    kinds = [(16, "HNSW32,Flat"), (64, "HNSW32,Flat"), (64, "PQ32x4fs"), (128, "PQ64x4fs")]
    return [{"prefix": prefix, "kind": kind} for prefix, kind in kinds if prefix < database.dim]


def prefix_asks(_database: Database, build: Settings) -> list[Settings]:
    """How many times k are ranked again; a graph must hold as many."""
    graph = build["kind"].startswith("HNSW")
    return [{"factor": factor} | ({"ef": 10 * factor} if graph else {}) for factor in (4, 10, 20, 50, 100)]


def scann_builds(database: Database) -> list[Settings]:
    """No partitions, and two numbers of them."""
    root = database.count**0.5
    return [{"leaves": leaves} for leaves in (0, nearest_power(root), nearest_power(4 * root))]


def scann_asks(_database: Database, build: Settings) -> list[Settings]:
    """The share of the partitions, and how many are ranked again."""
    probes = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2) if build["leaves"] else (1.0,)
    return [{"probe": probe, "keep": keep} for probe in probes for keep in (30, 100, 300)]


def svs_builds(database: Database) -> list[Settings]:
    """As they are, in codes of two levels, and of fewer dims first."""
    kinds = ["float32", "float16", "LVQ4x8", "LVQ8"] + [f"LeanVec{n}" for n in (64, 128) if n < database.dim]
    return [{"codes": codes} for codes in kinds]


def nearest_power(value: float) -> int:
    """The nearest power of two."""
    return int(2 ** round(float(np.log2(max(1.0, value)))))


PEERS = (
    Engine("faiss Flat", "faiss-cpu", "faiss", faiss_flat),
    Engine("faiss Panorama", "faiss-cpu", "faiss", faiss_panorama, panorama_builds),
    Engine("faiss HNSW", "faiss-cpu", "faiss", faiss_hnsw, lambda _: [{"M": 32}], paper_asks),
    Engine("faiss Flat, truncated", "faiss-cpu", "faiss", faiss_flat, truncated_builds),
    Engine("faiss HNSW, truncated", "faiss-cpu", "faiss", faiss_hnsw, partial(truncated_builds, M=32), graph_asks),
    Engine("faiss IVF-PQ", "faiss-cpu", "faiss", faiss_ivf_pq, ivf_builds, ivf_asks),
    Engine("faiss prefix", "faiss-cpu", "faiss", faiss_prefix, prefix_builds, prefix_asks),
    Engine("hnswlib", "hnswlib", "hnswlib", Hnswlib, lambda _: [{"M": 16, "construction": 200}], graph_asks),
    Engine("usearch", "usearch", "usearch", Usearch, lambda _: [{"dtype": t} for t in ("f32", "f16", "i8")],
           graph_asks),
    Engine("ScaNN", "scann", "scann", Scann, scann_builds, scann_asks),
    Engine("SVS Vamana", "scalable-vs", "svs", Svs, svs_builds, graph_asks),
)  # fmt: skip
"""All of them, in the order in which tables show them."""
