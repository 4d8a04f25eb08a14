"""Jobs on local clusters of Ray: an encoding without a trained model, and an evaluation of its vectors."""

from __future__ import annotations

import filecmp
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from matryo.arrays import Floats
from matryo.embeddings import EmbeddingSet, EmbeddingWriter
from matryo.evaluation.protocols.evaluate import evaluate as on_one
from matryo.files import json_digest
from matryo.ray import Cluster, Parts, evaluate, gather
from matryo.ray.parts import write_part, written_parts
from matryo.ray.place import Place

DIM, BATCH, PART, QUERIES, CLASSES = 128, 512, 64 * 512, 500, 100
DIMS = [8, 16, 32, 64, 128]
_WIDTH = 512


def batches(first: int, count: int) -> Iterator[tuple[Floats, Any]]:
    """Vectors and labels of some rows: a network of two layers, applied to random features of each batch."""
    rng = np.random.default_rng(7)
    one, two = (rng.normal(size=shape).astype(np.float32) for shape in ((_WIDTH, _WIDTH), (_WIDTH, DIM)))
    centres = rng.normal(size=(CLASSES, _WIDTH)).astype(np.float32)
    for start in range(first, first + count, BATCH):
        own = np.random.default_rng(start)
        size = min(BATCH, first + count - start)
        labels = own.integers(0, CLASSES, BATCH)[:size]
        features = centres[labels] + own.normal(size=(BATCH, _WIDTH)).astype(np.float32)[:size]
        hidden = np.tanh(features @ one / 16)
        hidden = np.tanh(hidden @ one / 16)
        yield hidden @ two * np.linspace(2, 0.2, DIM, dtype=np.float32), labels


class Encoder:
    """A worker that encodes."""

    def __init__(self, out: str) -> None:
        self.out = Place(out)

    def run(self, number: int, first: int, count: int, stamp: str) -> dict[str, Any]:
        """Encode some rows, and write them as a part."""
        vectors, labels = zip(*batches(first, count), strict=True)
        columns = {"vectors": np.concatenate(vectors), "labels": np.concatenate(labels)}
        return write_part(self.out, number, first, columns, stamp)


def encode(rows: int, out: Path, cluster: Cluster) -> Parts:
    """Encode on a cluster, as :func:`matryo.ray.encode` does with a model."""
    about = {"dtype": "float32", "head": None, "fingerprint": {"rows": rows}, "description": {"nesting": DIMS}}
    stamp, place = json_digest(about), Place.of(out)
    found, _ = written_parts(place, stamp)
    jobs = [(number, first, min(PART, rows - first), stamp) for number, first in enumerate(range(0, rows, PART))
            if number not in found]  # fmt: skip
    for _, record in cluster.run(Encoder, (place.url,), jobs):
        found[record["number"]] = record
    return Parts.commit(place, found, DIM, about)


def encode_alone(rows: int, out: Path, first: int = 0) -> EmbeddingSet:
    """Encode in one process."""
    with EmbeddingWriter(out, dim=DIM, nesting=DIMS, fingerprint={"rows": rows}) as writer:
        for vectors, labels in batches(first, rows):
            writer.append(vectors, labels)
    return EmbeddingSet.open(out)


def with_a_killed_machine(folder: Path, rows: int, *, timed: bool = True) -> dict[str, dict[str, Any]]:
    """Encode and evaluate on two machines, of which one is killed midway; compare with one process.

    Unless ``timed``, only what does not depend on other work of the computer is returned.
    """
    from ray.cluster_utils import Cluster as Machines

    queries = encode_alone(QUERIES, folder / "queries", first=rows + PART)
    begin = time.perf_counter()
    alone = encode_alone(rows, folder / "alone")
    seconds = {"encode, one process": time.perf_counter() - begin}
    machines = Machines(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster = Cluster(machines.address, workers=2)
    facts: dict[str, Any] = {}
    try:
        other = machines.add_node(num_cpus=1)
        with cluster:
            begin = time.perf_counter()
            killed = _kill_when(lambda: len(list((folder / "parts").glob("*.json"))) >= rows // PART // 3,
                                lambda: machines.remove_node(other, allow_graceful=False))  # fmt: skip
            parts = encode(rows, folder / "parts", cluster)
            seconds["encode, two machines, one killed"] = time.perf_counter() - begin
            facts["a machine was killed while encoding"] = killed()
            gather(parts, folder / "gathered", progress=False)
            names = sorted(file.name for file in alone.path.iterdir())
            facts["files equal"] = sum(filecmp.cmp(alone.path / name, folder / "gathered" / name, shallow=False)
                                       for name in names)  # fmt: skip
            facts["files"] = len(names)
            other = machines.add_node(num_cpus=1)
            machines.wait_for_nodes()
            begin = time.perf_counter()
            killed = _kill_when(lambda: time.perf_counter() - begin > 6,
                                lambda: machines.remove_node(other, allow_graceful=False))  # fmt: skip
            many = evaluate(folder / "gathered", queries, cluster=cluster, range_rows=rows // 24, ks=(10,),
                            progress=False)  # fmt: skip
            seconds["evaluate, two machines, one killed"] = time.perf_counter() - begin
            facts["a machine was killed while evaluating"] = killed()
    finally:
        machines.shutdown()
    begin = time.perf_counter()
    one = on_one(alone, queries, ks=(10,), progress=False)
    seconds["evaluate, one process"] = time.perf_counter() - begin
    facts["evaluations equal"] = many == one
    facts["1-NN at 128"] = one.rows[-1].top1
    times = {f"{name}, s": round(took, 1) for name, took in seconds.items()} if timed else {}
    return {f"two machines, {rows:,} × {DIM}": facts | times}


def scaling(folder: Path, rows: int) -> dict[str, dict[str, Any]]:
    """Encode and evaluate with one worker and with two, on a cluster of this machine."""
    queries = encode_alone(QUERIES, folder / "queries", first=rows + PART)
    figures: dict[str, Any] = {}
    for workers in (1, 2):
        with Cluster("local", workers=workers) as cluster:
            list(cluster.run(Encoder, (str(folder / "warm"),), [(n, n * PART, BATCH, "") for n in range(workers)]))
            begin = time.perf_counter()
            parts = encode(rows, folder / f"parts-{workers}", cluster)
            figures[f"encode, {workers} workers, s"] = round(time.perf_counter() - begin, 2)
            if workers == 1:
                gather(parts, folder / "gathered", progress=False)
            begin = time.perf_counter()
            evaluate(folder / "gathered", queries, cluster=cluster, range_rows=rows // 32, ks=(10,), progress=False)
            figures[f"evaluate, {workers} workers, s"] = round(time.perf_counter() - begin, 2)
    for job in ("encode", "evaluate"):
        figures[f"{job}, 2 workers / 1"] = round(figures[f"{job}, 1 workers, s"] / figures[f"{job}, 2 workers, s"], 2)
    return {f"scaling, {rows:,} × {DIM}": figures}


def _kill_when(ready: Any, kill: Any) -> Any:
    """Call ``kill`` in a thread as soon as ``ready``; the result returns whether that has happened."""
    state: dict[str, Any] = {}

    def watch() -> None:
        while not ready():
            time.sleep(0.05)
        kill()
        state["done"] = True

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()

    def done() -> bool:
        thread.join(timeout=1)
        return bool(state.get("done", False))

    return done
