"""The libraries that people would use instead, each behind the same few names, with the settings it is tried at.

An engine is built from a database once for each of its ``builds``, and asked at each of its ``asks``. Every engine is
given vectors of length 1 and asked for the largest inner products, so that all look for the same neighbours. Those that
are not installed are skipped. ``dim=…`` among the settings of a build truncates: the engine then sees a prefix of
each vector, of length 1 again.
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from matryo import Nesting

Vectors = np.ndarray[Any, np.dtype[np.float32]]
Rows = np.ndarray[Any, np.dtype[np.int64]]
Settings = dict[str, Any]

BATCH = 1 << 24   # numbers that are widened and normalised at a time


@dataclass(frozen=True)
class Database:
    """The database: rows of a mapped file, read as unit vectors in batches."""

    vectors: Any
    """[n, d], any float type, of any length."""
    rows: Rows | None
    """The rows to search; None means all."""
    nesting: Nesting
    learn: Vectors
    """Queries for engines that plan; they are not timed."""
    metric: str = "cosine"
    """Of these three, "ip" and "l2" need the vectors as they are."""

    @property
    def count(self) -> int:
        """How many vectors are searched."""
        return len(self.vectors if self.rows is None else self.rows)

    @property
    def dim(self) -> int:
        """How many columns each has."""
        return self.nesting.dim

    def stored(self) -> Iterator[tuple[int, Any]]:
        """All columns as they are in the file, after the number of the first row."""
        step = max(1, BATCH // self.dim)
        for start in range(0, self.count, step):
            chosen = slice(start, start + step) if self.rows is None else self.rows[start : start + step]
            yield start, self.vectors[chosen, : self.dim]

    def batches(self, dim: int | None = None) -> Iterator[tuple[int, Vectors]]:
        """The first ``dim`` columns, for cosine of length 1, after the number of the first row."""
        for start, part in self.stored():
            yield start, prepared(np.asarray(part[:, :dim], np.float32), self.metric)

    def array(self, dim: int | None = None) -> Vectors:
        """All at once."""
        whole = np.empty((self.count, dim or self.dim), np.float32)
        for start, part in self.batches(dim):
            whole[start : start + len(part)] = part
        return whole


class Built:
    """An index that is ready: ``ask`` finds rows [queries, k] for queries [queries, d]."""

    nbytes: int = 0
    """Bytes on disk."""

    def threads(self, count: int) -> None:
        """Search with this many threads from now on."""

    def ask(self, queries: Vectors, k: int, **settings: Any) -> Rows:
        """The rows found, nearest first."""
        raise NotImplementedError

    def read(self, queries: Vectors, k: int, **settings: Any) -> float | None:  # noqa: ARG002
        """The bytes of vectors read a query, where it is known."""
        return None


@dataclass(frozen=True)
class Engine:
    """A way to search, with what it is tried at."""

    name: str
    package: str
    """As pip knows it."""
    module: str
    """As Python knows it."""
    build: Callable[..., Built]
    """Takes the database, the number of threads, and the settings of a build."""
    builds: Callable[[Database], list[Settings]] = lambda _: [dict[str, Any]()]
    asks: Callable[[Database, Settings], list[Settings]] = lambda _, __: [dict[str, Any]()]
    """For the settings of a build."""

    @cached_property
    def version(self) -> str | None:
        """Name and version; None where it is not installed."""
        if importlib.util.find_spec(self.module.partition(".")[0]) is None:
            return None
        return f"{self.package} {metadata.version(self.package)}"


def unit(vectors: Vectors) -> Vectors:
    """Normalise to length 1; all-zero rows are unchanged."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.where(norms == 0, np.float32(1), norms), np.float32)


def prepared(vectors: Vectors, metric: str) -> Vectors:
    """Vectors as engines get them: those of length 1 have the order of inner products for cosine."""
    return unit(vectors) if metric == "cosine" else np.ascontiguousarray(vectors, np.float32)


def use_threads(count: int) -> None:
    """The threads of BLAS and OpenMP in this process."""
    limits: Any = importlib.import_module("threadpoolctl")
    limits.threadpool_limits(count)


# ── faiss ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Faiss(Built):
    """Any index of faiss."""

    def __init__(self, index: Any, database: Database, *, dim: int | None = None, turn: Vectors | None = None) -> None:
        self.index, self.dim, self.turn = index, dim or database.dim, turn
        if not index.is_trained:
            index.train(sample(database, self.dim))
        faiss: Any = importlib.import_module("faiss")
        flat = faiss.downcast_index(getattr(index, "storage", index))
        if isinstance(flat, faiss.IndexFlat):
            for room in (4 * self.dim * database.count, 0):   # once for all: what grows by copying needs it twice
                flat.codes.resize(room)
        for _, part in database.batches(self.dim):
            index.add(part if turn is None else part @ turn)
        sizes: list[int] = []

        def count(data: bytes) -> int:
            sizes.append(len(data))
            return len(data)

        faiss.write_index(index, faiss.PyCallbackIOWriter(count))
        self.nbytes = sum(sizes)

    def threads(self, count: int) -> None:
        """For all of faiss."""
        importlib.import_module("faiss").omp_set_num_threads(count)

    def ask(self, queries: Vectors, k: int, **settings: Any) -> Rows:
        """With ``shortlist``, fetch that many, as the paper does, and count the first k."""
        shortlist = settings.pop("shortlist", k)
        self.set(**settings)
        asked = queries[:, : self.dim] if self.turn is None else queries @ self.turn
        return np.asarray(self.index.search(asked, shortlist)[1][:, :k], np.int64)

    def set(self, **settings: Any) -> None:
        """The search settings."""
        if "ef" in settings:
            self.base.hnsw.efSearch = settings["ef"]
        if "probe" in settings:
            self.base.nprobe = settings["probe"]
        if "factor" in settings:
            self.index.k_factor = settings["factor"]

    @cached_property
    def base(self) -> Any:
        """The index below re-ranking and column changes."""
        faiss: Any = importlib.import_module("faiss")
        index = faiss.downcast_index(self.index.base_index) if hasattr(self.index, "base_index") else self.index
        return faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index

    def read(self, queries: Vectors, k: int, **settings: Any) -> float | None:
        """Known of scans, of Panorama and of graphs, which count their distances."""
        faiss: Any = importlib.import_module("faiss")
        whole, name = float(self.index.ntotal * self.dim * 4), type(self.index).__name__
        panorama, graph = faiss.cvar.indexPanorama_stats, faiss.cvar.hnsw_stats
        panorama.reset()
        graph.reset()
        self.ask(queries, k, **settings)
        if "Panorama" in name:
            return float(panorama.ratio_dims_scanned) * whole
        if "HNSW" in name:
            return float(graph.ndis) / len(queries) * self.dim * 4
        return whole if name.startswith("IndexFlat") else None


def sample(database: Database, dim: int, most: int = 65_536) -> Vectors:
    """Rows to train on."""
    chosen = np.sort(np.random.default_rng(0).permutation(database.count)[:most])
    rows = chosen if database.rows is None else database.rows[chosen]
    return prepared(np.asarray(database.vectors[rows, :dim], np.float32), database.metric)


def faiss_flat(database: Database, _threads: int, dim: int | None = None) -> Built:
    """Every vector."""
    faiss: Any = importlib.import_module("faiss")
    return Faiss(faiss.IndexFlatIP(dim or database.dim), database, dim=dim)


def faiss_panorama(database: Database, _threads: int, levels: int, batch: int, turned: bool) -> Built:
    """Every vector, but not all of its columns; ``turned`` to principal axes, where the first hold most."""
    faiss: Any = importlib.import_module("faiss")
    turn = None
    if turned:
        rows = sample(database, database.dim)
        turn = np.ascontiguousarray(np.linalg.eigh(rows.T @ rows)[1][:, ::-1], np.float32)
    return Faiss(faiss.IndexFlatIPPanorama(database.dim, levels, batch), database, turn=turn)


def faiss_hnsw(database: Database, _threads: int, M: int, dim: int | None = None) -> Built:
    """A graph over full vectors, or over truncated ones."""
    faiss: Any = importlib.import_module("faiss")
    return Faiss(faiss.IndexHNSWFlat(dim or database.dim, M, faiss.METRIC_INNER_PRODUCT), database, dim=dim)


def faiss_ivf_pq(database: Database, _threads: int, lists: int, m: int) -> Built:
    """Partitions of 4-bit codes, then full vectors for those that look best."""
    faiss: Any = importlib.import_module("faiss")
    index = faiss.index_factory(database.dim, f"IVF{lists},PQ{m}x4fs,RFlat", faiss.METRIC_INNER_PRODUCT)
    return Faiss(index, database)


def faiss_prefix(database: Database, _threads: int, prefix: int, kind: str) -> Built:
    """Adaptive retrieval with the means of faiss: an index of prefixes, then full vectors for those that look best."""
    faiss: Any = importlib.import_module("faiss")
    short = faiss.index_factory(prefix, kind, faiss.METRIC_INNER_PRODUCT)
    cut = faiss.RemapDimensionsTransform(database.dim, prefix, False)
    base = faiss.IndexPreTransform(cut, faiss.IndexPreTransform(faiss.NormalizationTransform(prefix, 2.0), short))
    whole = faiss.IndexFlatIP(database.dim)
    index = faiss.IndexRefine(base, whole)
    built = Faiss(index, database)
    built.base = short
    built.kept = (short, cut, base, whole)   # type: ignore[attr-defined]   # faiss holds none of them
    return built


# ── the others ────────────────────────────────────────────────────────────────────────────────────────────────


class Hnswlib(Built):
    """A graph."""

    def __init__(self, database: Database, threads: int, M: int, construction: int) -> None:
        hnswlib: Any = importlib.import_module("hnswlib")
        self.index = hnswlib.Index(space="ip", dim=database.dim)
        self.index.init_index(max_elements=database.count, M=M, ef_construction=construction, random_seed=0)
        self.index.set_num_threads(threads)
        for start, part in database.batches():
            self.index.add_items(part, np.arange(start, start + len(part)))
        self.nbytes = int(self.index.index_file_size())

    def threads(self, count: int) -> None:
        """Its own."""
        self.index.set_num_threads(count)

    def ask(self, queries: Vectors, k: int, **settings: Any) -> Rows:
        """``ef`` candidates are held."""
        self.index.set_ef(settings["ef"])
        return np.asarray(self.index.knn_query(queries, k)[0], np.int64)


class Usearch(Built):
    """A graph over vectors of any type; by the cosine, for which it scales int8 best."""

    def __init__(self, database: Database, threads: int, dtype: str) -> None:
        usearch: Any = importlib.import_module("usearch.index")
        metric = {"cosine": "cos", "ip": "ip", "l2": "l2sq"}[database.metric]
        self.index, self.count = usearch.Index(ndim=database.dim, metric=metric, dtype=dtype), threads
        for start, part in database.batches():
            self.index.add(np.arange(start, start + len(part)), part, threads=threads)
        self.nbytes = int(self.index.serialized_length)

    def threads(self, count: int) -> None:
        """Its own."""
        self.count = count

    def ask(self, queries: Vectors, k: int, **settings: Any) -> Rows:
        """``ef`` candidates are held."""
        self.index.expansion_search = settings["ef"]
        found = np.asarray(self.index.search(queries, k, threads=self.count).keys)
        return found.reshape(len(queries), -1).astype(np.int64)


class Scann(Built):
    """Partitions of anisotropic 4-bit codes, then full vectors for those that look best."""

    def __init__(self, database: Database, threads: int, leaves: int) -> None:
        scann: Any = importlib.import_module("scann.scann_ops.py.scann_ops_pybind")
        measure = "squared_l2" if database.metric == "l2" else "dot_product"
        builder = scann.builder(database.array(), 10, measure).set_n_training_threads(threads)
        if leaves:
            training = min(database.count, 250_000)
            builder = builder.tree(num_leaves=leaves, num_leaves_to_search=leaves // 10, training_sample_size=training)
        self.leaves = leaves
        self.index = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100).build()
        self.nbytes = written(self.index.serialize)

    def ask(self, queries: Vectors, k: int, **settings: Any) -> Rows:
        """``probe`` partitions are looked at, ``keep`` candidates ranked again."""
        about = {"final_num_neighbors": k, "pre_reorder_num_neighbors": settings["keep"]}
        if self.leaves:
            about["leaves_to_search"] = max(1, round(settings["probe"] * self.leaves))
        if len(queries) == 1:
            found = np.asarray(self.index.search(queries[0], **about)[0], np.int64)
            return np.pad(found, (0, k - len(found)), constant_values=-1)[None]
        return np.asarray(self.index.search_batched(queries, **about)[0], np.int64)


class Svs(Built):
    """A graph (Vamana) over vectors, or over codes of them."""

    def __init__(self, database: Database, threads: int, codes: str, degree: int = 64) -> None:
        svs: Any = importlib.import_module("svs")
        about = svs.VamanaBuildParameters(graph_max_degree=degree, window_size=2 * degree, alpha=0.95)
        with tempfile.TemporaryDirectory() as folder:
            data = svs_data(svs, database, codes, Path(folder))
            self.index = svs.Vamana.build(about, data, svs.MIP, num_threads=threads)
        self.nbytes = written(lambda folder: self.index.save(*(f"{folder}/{name}" for name in ("a", "graph", "data"))))

    def threads(self, count: int) -> None:
        """Its own."""
        self.index.num_threads = count

    def ask(self, queries: Vectors, k: int, **settings: Any) -> Rows:
        """``ef`` candidates are held."""
        self.index.search_window_size = settings["ef"]
        return np.asarray(self.index.search(queries, k)[0], np.int64)


def svs_data(svs: Any, database: Database, codes: str, folder: Path) -> Any:
    """Vectors as they are, or what SVS makes codes of: it reads those from a file."""
    if codes in ("float32", "float16"):
        return database.array().astype(codes, copy=False)
    path = folder / "data.fvecs"
    with path.open("wb") as file:
        for _, part in database.batches():
            heads = np.full((len(part), 1), database.dim, np.int32).view(np.float32)
            np.hstack([heads, part]).tofile(file)
    return svs_codes(svs, svs.VectorDataLoader(str(path), svs.DataType.float32, dims=database.dim), codes)


def svs_codes(svs: Any, vectors: Any, codes: str) -> Any:
    """Codes of the vectors that a loader reads."""
    if codes.startswith("LVQ"):
        first, _, second = codes.removeprefix("LVQ").partition("x")
        return svs.LVQLoader(vectors, primary=int(first), residual=int(second or 0))
    return svs.LeanVecLoader(vectors, int(codes.removeprefix("LeanVec")))


def written(write: Callable[[str], Any]) -> int:
    """The bytes that something writes into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        return size(Path(folder))


def size(folder: Path) -> int:
    """The bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
