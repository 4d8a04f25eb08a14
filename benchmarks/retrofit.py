"""Maps that make existing vectors nested: what they keep, whether they are ever worse, and what an index gains.

``sets`` fits a map to each set of ``unseen.py make`` and measures other queries on all of its rows: the share of the
true ten nearest among the hundred nearest by the first m dims. It then measures exact search of an index without and
with ``rotation="auto"``, scanned and with a sketch, and of faiss Panorama, one query at a time, in turns:
milliseconds of CPU time, and bytes read.
``encode`` encodes SciFact and CLINC150 with a frozen sentence-transformers model, and with --resnet the photos of
Flickr8k with a frozen ResNet50; ``derive`` makes sets of these vectors. ``labels`` fits maps to these vectors with
few and with many labels, and measures test queries: nDCG@10, and precision@10. ``draws`` draws data and queries at
random, and counts how often a rung that was taken above identity and PCA is worse on many new queries. ``memory``
fits a map to generated batches and measures the peak of the memory.

    python benchmarks/retrofit.py sets unseen/minilm unseen/photos
    python benchmarks/retrofit.py encode --data ../shared/data --model all-MiniLM-L6-v2 --vectors minilm
    python benchmarks/retrofit.py derive --vectors minilm --sets unseen
    python benchmarks/retrofit.py labels --vectors minilm
    python benchmarks/retrofit.py draws --count 100
    python benchmarks/retrofit.py draws --vectors minilm
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from matryo import Index, Retrofit
from matryo.nesting import truncate
from matryo.results import append_rows, stamp
from matryo.retrofit.held_out import Held, Rung

Array = np.ndarray[Any, np.dtype[Any]]
Search = Callable[[Array], Array]
OUT = Path("docs/results/retrofit.jsonl")
K, SHORTLIST = 10, 100
DIMS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
LABELS = (50, 500, 0)   # 0: all
TURNS, QUERIES = 7, 100


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    commands = parser.add_subparsers(required=True)
    sets = commands.add_parser("sets")
    sets.add_argument("sets", nargs="+", type=Path, metavar="DIR", help="a set of unseen.py")
    sets.add_argument("--learn", action="store_true", help="also learn a rotation with torch")
    sets.add_argument("--adapt", action="store_true", help="also learn an adaptor with torch")
    sets.add_argument("--only", choices=["recall", "exact"], help="skip the times of exact search, or the recall")
    sets.set_defaults(run=run_sets)
    texts = commands.add_parser("encode")
    texts.add_argument("--data", type=Path, required=True)
    texts.add_argument("--model", required=True)
    texts.add_argument("--vectors", type=Path, required=True)
    texts.add_argument("--tokens", type=int, default=128)
    texts.add_argument("--resnet", type=Path, help="weights of a ResNet50 (.safetensors)")
    texts.set_defaults(run=run_encode)
    derived = commands.add_parser("derive")
    derived.add_argument("--vectors", type=Path, required=True)
    derived.add_argument("--sets", type=Path, required=True)
    derived.set_defaults(run=run_derive)
    labels = commands.add_parser("labels")
    labels.add_argument("--vectors", type=Path, required=True)
    labels.add_argument("--learn", action="store_true", help="also learn a rotation and an adaptor with torch")
    labels.set_defaults(run=run_labels)
    memory = commands.add_parser("memory")
    memory.add_argument("--rows", type=int, default=1_000_000)
    memory.add_argument("--dim", type=int, default=3072)
    memory.set_defaults(run=run_memory)
    draws = commands.add_parser("draws")
    draws.add_argument("--count", type=int, default=100)
    draws.add_argument("--vectors", type=Path, help="the vectors of `encode`: draw rows and labels of CLINC150 instead")
    draws.set_defaults(run=run_draws)
    args = parser.parse_args()
    args.run(args)


def store(args: argparse.Namespace, kind: str, subject: str, figures: dict[str, Any], seed: int = 0) -> None:
    """Append a row."""
    append_rows(args.out, [stamp(kind, subject, figures, seed=seed)])


# ── un-nested vectors ─────────────────────────────────────────────────────────────────────────────────────────


def run_sets(args: argparse.Namespace) -> None:
    """The dims table of each set, and exact search before and after."""
    for folder in args.sets:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        rows, queries = np.load(folder / "database.npy", mmap_mode="r"), np.load(folder / "test.npy")[:1000]
        subject = f"{folder.name}, {len(rows):,} × {rows.shape[1]}"
        if args.only != "exact":
            recall_by_dim(args, subject, about, rows, queries)
        if args.only != "recall":
            exact = exact_search(rows, queries[:QUERIES], about["metric"])
            print(json.dumps(exact, indent=1), flush=True)
            figures = {"source": about["source"], "searches": exact, "queries": QUERIES, "clock": "CPU"}
            store(args, "retrofit-exact", subject, figures)


def recall_by_dim(args: argparse.Namespace, subject: str, about: dict[str, Any], rows: Array, queries: Array) -> None:
    """Fit, measure and store the recall of each map."""
    dim, metric = rows.shape[1], about["metric"]
    dims = [m for m in DIMS if m < dim]
    begin = time.perf_counter()
    fitted = Retrofit.fit(rows, nesting=[*dims, dim], metric=metric, learn=args.learn, adapt=args.adapt,
                          progress=False)  # fmt: skip
    seconds = time.perf_counter() - begin
    held = Held.by_recall(np.asarray(rows, np.float32), np.asarray(queries, np.float32), metric, K, SHORTLIST)
    maps = {"identity": Rung("identity", np.eye(dim)), **fitted.rungs}
    recall = {name: held.worth(rung, dims).mean(axis=0).tolist() for name, rung in maps.items()}
    taken = [entry.rung for entry in fitted.table]
    recall["taken"] = [recall[name][place] for place, name in enumerate(taken)]
    figures = {
        "source": about["source"], "dims": dims, "recall": recall, "rungs": taken, "rung": fitted.rung,
        "seconds": seconds, "queries": len(queries), "shortlist": SHORTLIST, "k": K, "energy": fitted.energy,
    }  # fmt: skip
    print(subject, f"{seconds:.1f} s", fitted, sep="\n", flush=True)
    for name, values in recall.items():
        print(f"{name:10}", *(f"{m}:{value:.3f}" for m, value in zip(dims, values, strict=True)), flush=True)
    store(args, "retrofit-dims", subject, figures)


def exact_search(rows: Array, queries: Array, metric: Any) -> list[dict[str, Any]]:
    """Milliseconds per query of exact search without and with a rotation, scanned and with a sketch."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as work:
        indexes: dict[str, Index] = {}
        for name, rotation in (("without", None), ("with", "auto")):
            index = indexes[name] = Index.create(Path(work) / name, rows.shape[1], metric=metric)
            index.add(np.asarray(rows))
            begin = time.perf_counter()
            if rotation is not None:
                index.rotate(rotation, progress=False)
            index.compact()
            found.append({"rotation": name, "seconds": time.perf_counter() - begin})
        truth = indexes["without"].search(queries, k=K)
        for guide in ("scan", "sketch"):
            if guide == "sketch":
                for index in indexes.values():
                    index.build(sketch=True)
            searches: dict[str, Search] = {name: partial(_ids, index) for name, index in indexes.items()}
            if guide == "sketch":
                searches |= panorama(np.asarray(rows, np.float32), metric)
            times: dict[str, list[float]] = {name: [] for name in searches}
            for _ in range(TURNS):
                for name, search in searches.items():
                    begin = time.process_time()
                    for query in queries:
                        search(query)
                    times[name].append((time.process_time() - begin) / len(queries) * 1e3)
            for name, search in searches.items():
                hits = np.array([search(query) for query in queries])
                same = float((hits == truth.ids).mean())
                facts = {"rotation": name, "guide": guide, "ms": float(np.median(times[name])), "same": same}
                found.append(facts | ({"bytes": scan_bytes(indexes[name], guide)} if name in indexes else {}))
        for index in indexes.values():
            index.close()
    return found


def _ids(index: Index, query: Array) -> Array:
    return np.asarray(index.search(query, k=K).ids).ravel()


def panorama(rows: Array, metric: str) -> dict[str, Search]:
    """Exact search by faiss Panorama with a PCA of its own, on one thread; cosine is the distance of unit vectors."""
    import faiss

    if metric == "ip":
        return {}
    dim, unit = rows.shape[1], metric == "cosine"
    faiss.omp_set_num_threads(1)
    pca = faiss.PCAMatrix(dim, dim)
    index = faiss.IndexPreTransform(pca, faiss.IndexFlatL2Panorama(dim, 8))
    rows = np.ascontiguousarray(truncate(rows, dim, unit))
    index.train(rows)
    index.add(rows)
    return {"panorama": lambda query: index.search(np.ascontiguousarray(truncate(query[None], dim, unit)), K)[1][0]}


def scan_bytes(index: Index, guide: str) -> int:
    """The bytes that every query reads: all vectors, or the first level of the sketch."""
    if guide == "scan":
        return len(index) * index.about.row_bytes
    from matryo.retrieve.guides.sketch.sketch import Sketch

    parts = [Sketch.open(segment.guides["sketch"]) for segment in index.snapshot().segments if segment.guides]
    return sum(sketch.levels[0].codes.nbytes + sketch.levels[0].tails[0].nbytes for sketch in parts)


# ── few labels ────────────────────────────────────────────────────────────────────────────────────────────────


def run_encode(args: argparse.Namespace) -> None:
    """Vectors of SciFact and CLINC150, with their relevance and labels."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(args.model)
    model.max_seq_length = args.tokens
    args.vectors.mkdir(parents=True, exist_ok=True)

    def encode(name: str, texts: list[str]) -> None:
        path = args.vectors / f"{name}.npy"
        if not path.exists():
            np.save(path, model.encode(texts, batch_size=64, show_progress_bar=False).astype(np.float32))
            print(path, len(texts), flush=True)

    clinc = json.loads(gzip.decompress((args.data / "clinc150/clinc150.json.gz").read_bytes()))["data"]
    names = sorted({label for _, label in clinc["train"]})
    for split in ("train", "test"):
        encode(f"clinc-{split}", [text for text, _ in clinc[split]])
        np.save(args.vectors / f"clinc-{split}-labels.npy", [names.index(label) for _, label in clinc[split]])
    fact = json.loads(gzip.decompress((args.data / "scifact/scifact.json.gz").read_bytes()))
    place = {document: row for row, document in enumerate(fact["corpus"])}
    encode("scifact", [f"{document['title']} {document['text']}" for document in fact["corpus"].values()])
    for split in ("train", "test"):
        relevant: dict[str, list[int]] = {}
        for query, document, grade in fact["qrels"][split]:
            if grade > 0:
                relevant.setdefault(query, []).append(place[document])
        encode(f"scifact-{split}", [fact["queries"][query] for query in relevant])
        (args.vectors / f"scifact-{split}.json").write_text(json.dumps([*relevant.values()]))


    photos = args.vectors / "photos.npy"
    if args.resnet is not None and not photos.exists():
        from support.unseen_photos import encode_centres

        np.save(photos, encode_centres(args.data / "flickr8k/images_128px_webp.npz", args.resnet))


def run_derive(args: argparse.Namespace) -> None:
    """Sets for ``sets``: a database, other queries, and what they are; some with an offset that all vectors share."""
    vectors = {path.stem: np.load(path) for path in args.vectors.glob("*.npy") if "labels" not in path.stem}
    sets: dict[str, tuple[Array, Array, str, str]] = {}
    if "clinc-train" in vectors:
        rows, queries = vectors["clinc-train"], vectors["clinc-test"]
        sets["clinc"] = rows, queries, "cosine", "CLINC150; all-MiniLM-L6-v2"
        shared = np.random.default_rng(0).normal(size=rows.shape[1])
        shared = (shared / np.linalg.norm(shared)).astype(np.float32)
        for metric in ("l2", "ip"):
            sets[f"offset-{metric}"] = rows + shared, queries + shared, metric, "CLINC150 with an offset of norm 1"
    if "scifact" in vectors:
        claims = np.concatenate([vectors["scifact-train"], vectors["scifact-test"]])
        sets["scifact"] = vectors["scifact"], claims, "cosine", "SciFact, abstracts and claims; all-MiniLM-L6-v2"
    if "minilm" in vectors:   # of migration.py
        order = np.random.default_rng(1).permutation(len(vectors["minilm"]))
        rows, queries = vectors["minilm"][np.sort(order[1000:])], vectors["minilm"][order[:1000]]
        sets["glosses"] = rows, queries, "cosine", "10,000 WordNet glosses of migration.py; all-MiniLM-L6-v2"
    if "photos" in vectors:
        order = np.random.default_rng(0).permutation(len(vectors["photos"]))
        rows, queries = vectors["photos"][np.sort(order[1000:])], vectors["photos"][order[:1000]]
        for metric in ("cosine", "l2"):
            sets[f"photos-{metric}"] = rows, queries, metric, "photos of Flickr8k; ResNet50 of ImageNet"
    for name, (rows, queries, metric, source) in sets.items():
        (args.sets / name).mkdir(parents=True, exist_ok=True)
        np.save(args.sets / name / "database.npy", rows)
        np.save(args.sets / name / "test.npy", queries[np.random.default_rng(1).permutation(len(queries))[:1000]])
        (args.sets / name / "about.json").write_text(json.dumps({"metric": metric, "source": source}))


def run_labels(args: argparse.Namespace) -> None:
    """The quality of frozen vectors at each dim on test queries, with maps of so many labels."""
    dims = [12, 24, 48, 96, 192]
    for task in (clinc, scifact):
        if (args.vectors / ("clinc-test.npy" if task is clinc else "scifact-test.npy")).exists():
            task(args, args.vectors, dims)


def clinc(args: argparse.Namespace, vectors: Path, dims: list[int]) -> None:
    """Maps with so many labelled queries of the training split."""
    rows, labels = np.load(vectors / "clinc-train.npy"), np.load(vectors / "clinc-train-labels.npy")
    queries, truth = np.load(vectors / "clinc-test.npy"), np.load(vectors / "clinc-test-labels.npy")
    held = Held.by_relevance(rows, queries, "cosine", K, truth[:, None] == labels[None], "labels")
    simple = simple_maps(rows, held, dims)
    for count in LABELS:
        for seed in range(3):
            known = np.full(len(labels), -1)
            chosen = np.random.default_rng(seed).permutation(len(labels))[: count or None]
            known[chosen] = labels[chosen]
            fitted = Retrofit.fit(rows, labels=known, nesting=[*dims, rows.shape[1]], learn=args.learn,
                                  adapt=args.learn, seed=seed, progress=False)  # fmt: skip
            measured(args, "CLINC150", count, seed, fitted, held, dims, simple)


def scifact(args: argparse.Namespace, vectors: Path, dims: list[int]) -> None:
    """Maps with the relevant abstracts of so many training claims."""
    rows = np.load(vectors / "scifact.npy")
    queries, tests = (np.load(vectors / f"scifact-{split}.npy") for split in ("train", "test"))
    pairs, right = (json.loads((vectors / f"scifact-{split}.json").read_text()) for split in ("train", "test"))
    marks = np.array([np.isin(np.arange(len(rows)), some) for some in right])
    held = Held.by_relevance(rows, tests, "cosine", K, marks, "ndcg")
    simple = simple_maps(rows, held, dims)
    for count in LABELS:
        for seed in range(3):
            chosen = np.random.default_rng(seed).permutation(len(pairs))[: count or None]
            fitted = Retrofit.fit(rows, queries[chosen], [pairs[query] for query in chosen],
                                  nesting=[*dims, rows.shape[1]], learn=args.learn, adapt=args.learn, seed=seed,
                                  progress=False)  # fmt: skip
            measured(args, "SciFact", count, seed, fitted, held, dims, simple)


def simple_maps(rows: Array, held: Held, dims: list[int]) -> dict[str, list[float]]:
    """The quality of test queries with the maps that need no labels, and of all columns."""
    simple = Retrofit.fit(rows, nesting=[*dims, rows.shape[1]], progress=False)
    maps = {"identity": Rung("identity", np.eye(rows.shape[1])), **simple.rungs}
    worth = {name: held.worth(rung, dims).mean(axis=0).tolist() for name, rung in maps.items()}
    return worth | {"all": held.worth(maps["identity"], [rows.shape[1]]).mean(axis=0).tolist()}


def measured(
    args: argparse.Namespace, name: str, count: int, seed: int, fitted: Retrofit, held: Held, dims: list[int],
    simple: dict[str, list[float]],
) -> None:  # fmt: skip
    """Print and store the quality of test queries."""
    above = {name: rung for name, rung in fitted.rungs.items() if name not in simple}
    worth = simple | {rung: held.worth(each, dims).mean(axis=0).tolist() for rung, each in above.items()}
    rungs = [entry.rung for entry in fitted.table]
    worth["taken"] = [worth[rung][place] for place, rung in enumerate(rungs)]
    figures = {"dims": dims, "labels": count, "quality": held.quality, "k": K, "worth": worth, "rungs": rungs}
    print(name, count or "all", seed, rungs, flush=True)
    for rung, values in worth.items():
        print(f"  {rung:10}", *(f"{value:.3f}" for value in values), flush=True)
    store(args, "retrofit-labels", name, figures, seed)


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────


def run_memory(args: argparse.Namespace) -> None:
    """The peak of the memory while a map is fitted to generated batches, which are never held together."""
    import resource

    def batches() -> Any:
        random, spread = np.random.default_rng(0), np.geomspace(1, 0.01, args.dim, dtype=np.float32)
        for start in range(0, args.rows, 4096):
            count = min(4096, args.rows - start)
            yield random.standard_normal((count, args.dim), np.float32) * spread

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    begin = time.perf_counter()
    fitted = Retrofit.fit(batches(), nesting=[64, args.dim], progress=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures = {"rows": args.rows, "dim": args.dim, "bytes": args.rows * args.dim * 4, "before": before, "peak": peak,
               "seconds": time.perf_counter() - begin, "rung": fitted.rung}  # fmt: skip
    print(figures, flush=True)
    store(args, "retrofit-memory", f"{args.rows:,} × {args.dim}", figures)


# ── the promise ───────────────────────────────────────────────────────────────────────────────────────────────


def run_draws(args: argparse.Namespace) -> None:
    """How often a rung that was taken above identity and PCA is worse on new queries."""
    from support.retrofit_draws import draw, draw_real

    subject, one = "random data and queries", draw
    if args.vectors is not None:
        names = ("clinc-train", "clinc-train-labels", "clinc-test", "clinc-test-labels")
        rows, labels, queries, truth = (np.load(args.vectors / f"{name}.npy") for name in names)
        some = np.random.default_rng(0).permutation(len(queries))[:1500]
        subject = "rows and labels of CLINC150; all-MiniLM-L6-v2"
        one = partial(draw_real, rows=rows, labels=labels, queries=queries[some], truth=truth[some])
    kept, rungs, worst = 0, 0, 0.0
    for seed in range(args.count):
        taken = one(seed)
        kept += all(gain >= 0 for _, _, gain in taken)
        rungs += len(taken)
        worst = min([worst, *(gain for _, _, gain in taken)])
        if seed % 10 == 9:
            print(seed + 1, kept, rungs, f"{worst:.4f}", flush=True)
    figures = {"draws": args.count, "kept": kept, "rungs": rungs, "worst": worst, "confidence": 0.95}
    store(args, "retrofit-draws", subject, figures)


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "2")
    os.environ.setdefault("MATRYO_THREADS", "1")
    main()
