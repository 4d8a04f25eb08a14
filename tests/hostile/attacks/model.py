"""An index and what it must hold: random steps, their effect on a dict, and a comparison of the two."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from matryo.retrieve import Index
from matryo.retrieve.store import Limits

DIM = 8
LIMITS = Limits(pending_bytes=20 * DIM * 4, segment_bytes=60 * DIM * 4)
"""So small that a few rows become a segment, and a few segments are merged."""
STEPS = ("add", "add", "add many", "upsert", "upsert", "delete", "compact", "build")
Held = dict[str, int]
"""The version of each id."""


@dataclass(frozen=True)
class Step:
    """One call that changes an index."""

    name: str
    ids: list[str]
    version: int

    def apply(self, index: Index) -> None:
        """Make the call."""
        if self.name == "compact":
            index.compact()
        elif self.name == "build":
            index.build(partition=4)
        elif self.name == "delete":
            index.delete(self.ids)
        else:
            put = index.upsert if self.name == "upsert" else index.add
            put(vectors_of(self.ids, self.version), self.ids, payload_of(self.ids, self.version))

    def after(self, held: Held) -> Held:
        """Return what the index holds after the call."""
        if self.name in ("compact", "build"):
            return held
        if self.name == "delete":
            return {id: version for id, version in held.items() if id not in self.ids}
        return {**held, **dict.fromkeys(self.ids, self.version)}


def vectors_of(ids: Iterable[str], version: int) -> np.ndarray:
    """Vectors [ids, DIM] that tell the id and the version."""
    numbers = np.array([int(id.split()[1]) for id in ids], np.float64).reshape(-1, 1)
    return np.sin(numbers * np.sqrt(np.arange(2, DIM + 2)) + version * np.arange(1, DIM + 1)).astype(np.float32)


def payload_of(ids: Iterable[str], version: int) -> list[dict[str, Any]]:
    """Payloads that tell the id and the version."""
    return [{"id": id, "version": version} for id in ids]


class Steps:
    """Random steps on an index that stays small."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.version = chance, 0

    def draw(self, held: Held, names: tuple[str, ...] = STEPS) -> Step:
        """The next step for an index that holds ``held``."""
        name, known = self.chance.choice(names), sorted(held)
        self.version += 1
        if name == "delete" and known:
            return Step(name, self.chance.sample(known, self.chance.randint(1, len(known))), self.version)
        if name in ("compact", "build", "delete"):
            return Step("build" if name == "build" else "compact", [], self.version)
        count = self.chance.randint(25, 80) if name == "add many" else self.chance.randint(1, 6)
        ids = [f"id {self.version * 100 + i}" for i in range(count)]
        if name == "upsert":
            ids = [*ids[:2], *self.chance.sample(known, min(len(known), self.chance.randint(1, 30)))]
        return Step(name.split()[0], ids, self.version)


def create(path: Path) -> Index:
    """A new index, open for writing."""
    return Index.create(path, [4, DIM], int8_up_to=4, limits=LIMITS)


def filled(path: Path, chance: random.Random, **guides: Any) -> Held:
    """Create an index with several segments, deleted and pending rows, and ``guides``; return what it holds."""
    held, version = Held(), 0
    with create(path) as index:
        for name, count in (("add", 80), ("add", 70), ("delete", 9), ("upsert", 30), ("add", 3)):
            version += 1
            known = sorted(held)
            ids = [f"id {version * 100 + i}" for i in range(count)] if name == "add" else chance.sample(known, count)
            step = Step(name, ids, version)
            step.apply(index)
            held = step.after(held)
            if version == 4:
                index.build(**guides)
    return held


def look(index: Index | Path, *allowed: Held) -> tuple[str, Held]:
    """Verify an index and read every row: what is wrong with it ("" for nothing), and what it holds.

    It must hold one of ``allowed``. An exception is a problem too.
    """
    try:
        with Index.open(index) if isinstance(index, Path) else contextlib.nullcontext(index) as opened:
            opened.verify()
            return contents(opened, *allowed)
    except Exception as error:
        return f"{type(error).__name__}: {error}", {}


def contents(index: Index, *allowed: Held) -> tuple[str, Held]:
    """What is wrong with an open index that must hold one of ``allowed`` ("" for nothing), and what it holds."""
    ids = [str(id) for id in index.ids]
    vectors, payload = index.get(ids) if ids else (np.empty((0, DIM), np.float32), [])
    held = {id: about.get("version", -1) for id, about in zip(ids, payload, strict=True)}
    if len(held) != len(ids) or len(ids) != len(index):
        return f"{len(ids)} ids, {len(held)} of them different, and a count of {len(index)}", held
    for id, vector, about in zip(ids, vectors, payload, strict=True):
        if [about] != payload_of([id], held[id]) or not np.array_equal(vector, vectors_of([id], held[id])[0]):
            return f"{id!r} has another vector or payload", held
    if held not in allowed:
        missing = [sorted(one.items() - held.items())[:3] for one in allowed]
        surplus = [sorted(held.items() - one.items())[:3] for one in allowed]
        return f"it holds {len(held)} rows; missing {missing}, not acknowledged {surplus}", held
    return wrong_answer(index, held), held


def wrong_answer(index: Index, held: Held) -> str:
    """Compare an exact search with float64: "" if they agree."""
    if not held:
        return ""
    query = vectors_of(["id 1234567"], 5)
    database = np.concatenate([vectors_of([id], version) for id, version in held.items()]).astype(np.float64)
    scores = database @ query[0].astype(np.float64)
    scores /= np.linalg.norm(database, axis=1) * np.linalg.norm(query)
    k = min(5, len(held))
    expected = np.sort(scores)[::-1][:k]
    hits = index.search(query, k)
    by_id = dict(zip(held, scores, strict=True))
    answered = np.array([by_id.get(str(id), np.nan) for id in hits.ids[0]])
    if not np.allclose(answered, expected, atol=1e-6) or not np.allclose(hits.scores[0], expected, atol=1e-5):
        return f"a search answers {hits.ids[0].tolist()} with {hits.scores[0].tolist()}, expected {expected.tolist()}"
    return ""
