"""The peers on unseen sets: indexes that are built once and kept in a folder, and the settings of their searches."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.retrieval_peers import Database, Faiss, Scann, Settings, Usearch, Vectors, size, svs_codes, written
from support.retrieval_settings import nearest_power
from support.unseen_task import K

Search = Callable[[Vectors], Any]
"""The ids of the k nearest of one query [d]."""
CONSTRUCTION = 200


def ladder_of(least: int, most: int) -> tuple[int, ...]:
    """Whole numbers about a tenth apart."""
    return tuple(sorted({round(least * 1.1**step) for step in range(100) if least * 1.1**step <= most} | {most}))


HELD = ladder_of(K, 4096)   # candidates of a walk through a graph


@dataclass(frozen=True)
class Ladder:
    """Search settings: ``values`` of one of them, from the cheapest, at each of ``others``."""

    name: str = ""
    values: tuple[int, ...] = (0,)
    others: tuple[Settings, ...] = ({},)


@dataclass(frozen=True)
class Opened:
    """An index that is ready."""

    nbytes: int
    ladder: Ladder
    search: Callable[[Settings], Search]
    """The search at some settings, which hold until the next call."""


@dataclass(frozen=True)
class Variant:
    """One build of one library."""

    engine: str
    package: str
    """As pip knows it."""
    build: Callable[..., None]
    """Takes the database, a folder to write to and ``settings``."""
    open: Callable[..., Opened]
    """Takes the database, the folder, ``settings`` and ``view``."""
    settings: Settings = field(default_factory=dict)
    view: Settings = field(default_factory=dict)
    """What changes at opening only: variants with equal ``settings`` share a build."""

    @property
    def title(self) -> str:
        """Its name in tables."""
        return " ".join([self.engine, *(f"{name}={value}" for name, value in (self.settings | self.view).items())])


# ── faiss ─────────────────────────────────────────────────────────────────────────────────────────────────────


def build_faiss(database: Database, folder: Path, factory: str) -> None:
    """Any index that the factory of faiss knows."""
    faiss: Any = importlib.import_module("faiss")
    metric = faiss.METRIC_L2 if database.metric == "l2" else faiss.METRIC_INNER_PRODUCT
    index = faiss.index_factory(database.dim, factory, metric)
    if hasattr(index, "hnsw"):
        index.hnsw.efConstruction = CONSTRUCTION
    faiss.write_index(Faiss(index, database).index, str(folder / "index"))


def open_faiss(database: Database, folder: Path, factory: str) -> Opened:
    """Its settings are set on the index."""
    faiss: Any = importlib.import_module("faiss")
    index = faiss.read_index(str(folder / "index"))
    ladder = Ladder()
    if factory.startswith("HNSW"):
        ladder = Ladder("ef", HELD)
    elif factory.startswith("IVF"):
        probes = ladder_of(1, int(factory.removeprefix("IVF").partition(",")[0]))
        factors = tuple({"factor": n} for n in (3, 5, 10, 20, 40))
        ladder = Ladder("probe", probes, factors if "RFlat" in factory else ({},))

    def search(settings: Settings) -> Search:
        if "ef" in settings:
            index.hnsw.efSearch = settings["ef"]
        if "factor" in settings:
            index.k_factor = settings["factor"]
        if "probe" in settings:
            faiss.extract_index_ivf(index.base_index if "factor" in settings else index).nprobe = settings["probe"]
        return lambda query: index.search(query[None], K)[1][0]

    del database
    return Opened(size(folder), ladder, search)


# ── graphs ────────────────────────────────────────────────────────────────────────────────────────────────────


def space_of(database: Database) -> str:
    """The space of hnswlib, in which unit vectors have the order of cosines."""
    return "l2" if database.metric == "l2" else "ip"


def build_hnswlib(database: Database, folder: Path, M: int) -> None:
    """A graph."""
    hnswlib: Any = importlib.import_module("hnswlib")
    index = hnswlib.Index(space=space_of(database), dim=database.dim)
    index.init_index(max_elements=database.count, M=M, ef_construction=CONSTRUCTION, random_seed=0)
    index.set_num_threads(1)
    for _, part in database.batches():
        index.add_items(part)
    index.save_index(str(folder / "index"))


def open_hnswlib(database: Database, folder: Path, M: int) -> Opened:
    """``ef`` candidates are held."""
    hnswlib: Any = importlib.import_module("hnswlib")
    index = hnswlib.Index(space=space_of(database), dim=database.dim)
    index.load_index(str(folder / "index"))
    index.set_num_threads(1)

    def search(settings: Settings) -> Search:
        index.set_ef(settings["ef"])
        return lambda query: index.knn_query(query, K)[0][0]

    del M
    return Opened(size(folder), Ladder("ef", HELD), search)


def build_usearch(database: Database, folder: Path, dtype: str) -> None:
    """A graph over vectors of any type."""
    Usearch(database, 1, dtype).index.save(str(folder / "index"))


def open_usearch(database: Database, folder: Path, dtype: str) -> Opened:
    """``ef`` candidates are held."""
    usearch: Any = importlib.import_module("usearch.index")
    metric = {"cosine": "cos", "ip": "ip", "l2": "l2sq"}[database.metric]
    index = usearch.Index(ndim=database.dim, metric=metric, dtype=dtype)
    index.load(str(folder / "index"))

    def search(settings: Settings) -> Search:
        index.expansion_search = settings["ef"]
        return lambda query: index.search(query, K, threads=1).keys

    return Opened(size(folder), Ladder("ef", HELD), search)


def build_svs(database: Database, folder: Path, degree: int) -> None:
    """A graph (Vamana) over full vectors."""
    svs: Any = importlib.import_module("svs")
    alpha, distance = (1.2, svs.L2) if database.metric == "l2" else (0.95, svs.MIP)
    about = svs.VamanaBuildParameters(graph_max_degree=degree, window_size=2 * degree, alpha=alpha)
    index = svs.Vamana.build(about, database.array(), distance, num_threads=1)
    index.save(*(str(folder / name) for name in ("config", "graph", "data")))
    full = folder / "full.fvecs"
    svs.write_vecs(database.array(), str(full))
    svs.convert_fvecs_to_float16(str(full), str(folder / "half.fvecs"))
    full.unlink()


def open_svs(database: Database, folder: Path, degree: int, codes: str) -> Opened:
    """The graph over full vectors, half-precision ones or codes; of codes, ``spare`` times as many are ranked again."""
    svs: Any = importlib.import_module("svs")
    plain = codes in ("float32", "float16")
    kind = svs.DataType.float16 if codes == "float16" else svs.DataType.float32
    path = folder / ("half.fvecs" if codes == "float16" else "data")
    data = svs.VectorDataLoader(str(path), kind, dims=database.dim)
    data = data if plain else svs_codes(svs, data, codes)
    distance = svs.L2 if database.metric == "l2" else svs.MIP
    index = svs.Vamana(str(folder / "config"), svs.GraphLoader(str(folder / "graph")), data, distance, num_threads=1)

    def search(settings: Settings) -> Search:
        parameters = index.search_parameters
        window = settings["ef"]
        parameters.buffer_config = svs.SearchBufferConfig(window, round(window * settings.get("spare", 1)))
        index.search_parameters = parameters
        return lambda query: index.search(query[None], K)[0][0]

    del degree
    nbytes = written(lambda place: index.save(*(f"{place}/{name}" for name in ("config", "graph", "data"))))
    return Opened(nbytes, Ladder("ef", HELD, ({},) if plain else ({}, {"spare": 2})), search)


# ── ScaNN ─────────────────────────────────────────────────────────────────────────────────────────────────────


def build_scann(database: Database, folder: Path, leaves: int) -> None:
    """Partitions of anisotropic 4-bit codes, then full vectors."""
    Scann(database, 1, leaves).index.serialize(str(folder), relative_path=True)


def open_scann(database: Database, folder: Path, leaves: int) -> Opened:
    """``probe`` partitions are visited, ``keep`` candidates ranked again."""
    scann: Any = importlib.import_module("scann.scann_ops.py.scann_ops_pybind")
    index = scann.load_searcher(str(folder))
    ladder = Ladder("keep", HELD)
    if leaves:
        probes = ladder_of(1, leaves)
        ladder = Ladder("probe", probes, tuple({"keep": n} for n in (20, 30, 50, 100, 200, 500)))

    def search(settings: Settings) -> Search:
        kept, probe = settings["keep"], settings.get("probe", -1)
        return lambda query: index.search(query, K, kept, probe)[0]

    del database
    return Opened(size(folder), ladder, search)


def variants(database: Database) -> list[Variant]:
    """Every build of every peer, those first that are built fastest."""
    root = database.count**0.5
    few, many = nearest_power(root), nearest_power(4 * root)
    intel = ["LVQ8", "LVQ4x8"] + (["LeanVec128"] if database.dim >= 256 else [])   # codes that fail on other processors
    kinds = ["float32", "float16", *intel]
    codes = database.dim // 2 if database.dim % 2 == 0 else database.dim
    return [
        Variant("faiss Flat", "faiss-cpu", build_faiss, open_faiss, {"factory": "Flat"}),
        *(Variant("ScaNN", "scann", build_scann, open_scann, {"leaves": n}) for n in (0, few, many)),
        *(Variant("faiss IVF", "faiss-cpu", build_faiss, open_faiss, {"factory": f"IVF{n},Flat"})
          for n in (few, many)),
        Variant("faiss IVF-PQ", "faiss-cpu", build_faiss, open_faiss, {"factory": f"IVF{few},PQ{codes}x4fs,RFlat"}),
        Variant("hnswlib", "hnswlib", build_hnswlib, open_hnswlib, {"M": 16}),
        *(Variant("SVS Vamana", "scalable-vs", build_svs, open_svs, {"degree": 64}, {"codes": kind})
          for kind in kinds),
        Variant("faiss HNSW", "faiss-cpu", build_faiss, open_faiss, {"factory": "HNSW32,Flat"}),
        *(Variant("usearch", "usearch", build_usearch, open_usearch, {"dtype": kind})
          for kind in (("i8",) if database.metric == "cosine" else ()) + ("bf16", "f32")),   # i8 is for −1 … 1
        Variant("hnswlib", "hnswlib", build_hnswlib, open_hnswlib, {"M": 32}),
    ]  # fmt: skip
