"""Kill -9 a process that overwrites embeddings, at once and in batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attacks.outcome import Outcome
from attacks.overwriting import overwrite
from matryo import EmbeddingSet
from matryo.embeddings import EmbeddingWriter, Head

PROMISE = "After kill -9, embeddings being overwritten are the old or the new ones, whole; nothing is left over."
BOUNDED, SOAK = 14, 400
_ROWS = 60


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Kill writers of both kinds."""
    half = count // 2
    at_once = overwrite(half, seed, folder / "at once" / "mine", write_version, read_version)
    in_batches = overwrite(count - half, seed, folder / "in batches" / "mine", stream_version, read_version)
    return Outcome(at_once.attempts + in_batches.attempts, at_once.failures + in_batches.failures)


def write_version(path: Path, version: int) -> None:
    vectors, ids, head = _content(version)
    EmbeddingSet.write(path, vectors, ids=ids, labels=[version] * _ROWS, head=head, split=str(version), overwrite=True)


def stream_version(path: Path, version: int) -> None:
    vectors, ids, head = _content(version)
    options = {"dim": 8, "fingerprint": str(version), "sync_seconds": 0, "head": head, "split": str(version)}
    with EmbeddingWriter(path, overwrite=True, **options) as writer:
        for start in range(writer.count, _ROWS, 20):
            rows = slice(start, start + 20)
            writer.append(vectors[rows], [version] * 20, ids[rows])


def _content(version: int) -> tuple[np.ndarray, list[str], Head]:
    vectors = np.arange(_ROWS * 8, dtype=np.float32).reshape(_ROWS, 8) + version
    return vectors, [f"{version}-{row}" for row in range(_ROWS)], Head.tied(np.full((2, 8), version), dims=(8,))


def read_version(path: Path) -> int:
    mine = EmbeddingSet.open(path)
    mine.verify()
    version = int(mine.manifest.split)
    vectors, ids, head = _content(version)
    assert np.array_equal(mine.vectors, vectors), "vectors of another version"
    assert mine.ids.tolist() == ids, "ids of another version"
    assert mine.labels is not None and set(mine.labels.tolist()) == {version}, "labels of another version"
    assert mine.head is not None and np.array_equal(mine.head.weights[8], head.weights[8]), "a head of another version"
    return version
