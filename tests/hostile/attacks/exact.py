"""Exact search against float80: every metric, engine and guide, on shifted, scaled, tiny, huge and repeated vectors.

``MATRYO_DEVICE`` selects the device of the torch engine, by default the processor.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from matryo import Index
from matryo.compiled import require_core
from matryo.retrieve import NUMPY, Blocks, execute
from matryo.retrieve.plan.plan import Plan
from matryo.retrieve.store import Limits, Store
from matryo.retrieve.vectors.metric import METRICS

from .outcome import Outcome, ended

PROMISE = "Exact search returns what float64 returns, equal scores in order of insertion, whatever the vectors."
BOUNDED = 40
SOAK = 2_000
KINDS = ("normal", "shifted", "scaled", "tiny", "huge", "repeated", "mixed", "signs", "near", "shifted and repeated")


def device() -> str:
    """The device of the torch engine."""
    return os.environ.get("MATRYO_DEVICE", "cpu")


def vectors_of(kind: str, rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
    """Rows of a kind, as float32."""
    rows = rng.standard_normal((count, dim))
    if "shifted" in kind:
        rows += 10.0 ** rng.integers(1, 6)
    if kind == "scaled":
        rows *= 10.0 ** rng.choice([-18, -12, -6, 6, 12])
    if kind == "tiny":
        rows *= 10.0 ** -rng.integers(30, 45)   # float32 has denormal numbers from 1e-38 down to 1e-45
    if kind == "huge":
        rows *= 2.0**62 / np.linalg.norm(rows, axis=1).max()
        rows *= 1 - 1e-6
    if kind == "mixed":
        rows *= 10.0 ** rng.uniform(-15, 15, (count, 1))
        rows[rng.random(count) < 0.1] = 0
    if kind == "signs":
        rows = rng.choice([-127.0, 127.0], (count, dim))
    if kind == "near":   # rows that differ in the last bits
        rows = np.tile(rows[:1], (count, 1)) * (1 + rng.integers(-2, 3, (count, dim)) * 2.0**-23)
    if "repeated" in kind and count:
        rows = rows[rng.integers(0, max(1, count // 8), count)]
    return rows.astype(np.float32)


def true_scores(metric: str, query: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scores of ``rows`` [n, d] in float80, and a bound on the error of float64."""
    x, q = rows.astype(np.longdouble), query.astype(np.longdouble)
    unit = 4 * (len(query) + 8) * 2.0**-53
    if metric == "l2":
        apart = np.square(x - q).sum(1)
        return -apart, unit * apart
    product, most = (x * q).sum(1), np.abs(x * q).sum(1)
    if metric == "ip":
        return product, unit * most
    lengths = np.sqrt(np.square(x).sum(1) * np.square(q).sum())
    return np.where(lengths > 0, product / np.where(lengths > 0, lengths, 1), 0), np.full(len(rows), unit)


def wrong(metric: str, query: np.ndarray, rows: np.ndarray, live: np.ndarray, found: Any, scores: Any) -> str | None:
    """What is wrong with the hits ``found``, rows among the ``live`` ones (−1: none), and their ``scores``; or None."""
    hits = [int(row) for row in found if row >= 0]
    if len(hits) != min(len(found), int(live.sum())) or len(set(hits)) != len(hits) or not live[hits].all():
        return f"{hits} are not {len(found)} of the {int(live.sum())} rows"
    if not hits:
        return None
    true, error = true_scores(metric, query, rows)
    for worse, better in zip(hits[1:], hits[:-1], strict=True):
        if true[worse] > true[better] + error[worse] + error[better]:
            return f"row {worse} ({true[worse]!r}) is nearer than {better} ({true[better]!r}), which comes before it"
        if worse < better and (rows[worse] == rows[better]).all():
            return f"row {worse} equals row {better}, which comes before it"
    last, rest = hits[-1], live.copy()
    rest[hits] = False
    missed = rest & (true > true[last] + error + error[last])
    missed |= rest & (rows == rows[last]).all(1) & (np.arange(len(rows)) < last)
    if missed.any():
        return f"row {missed.argmax()} ({true[missed.argmax()]!r}) is missing; the last is {last} ({true[last]!r})"
    given, exact = np.asarray(scores[: len(hits)], np.float64), true[hits].astype(np.float64)
    allowed = 2.0**-22 * np.abs(exact) + error[hits].astype(np.float64) + 2.0**-148
    if not (np.abs(given - exact) <= allowed).all():
        return f"scores {given.tolist()[:9]} … instead of {exact.tolist()[:9]} …"
    return None


def require() -> None:
    """Raise where the core under attack is missing."""
    require_core()


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Search ``count`` random indexes."""
    outcome = Outcome(0)
    for number in range(count):
        outcome.attempts += 1
        end = ended(lambda one=seed + number: list(attempt(one, folder / str(one))))
        if end.kind != "returned":
            outcome.failures.append(f"seed {seed + number}: {end.kind}: {end.text}")
        else:
            outcome.failures += [f"seed {seed + number}: {problem}" for problem in end.value]
    return outcome


def attempt(seed: int, folder: Path) -> Iterator[str]:
    """Yield what is wrong with searches of one random index."""
    rng = np.random.default_rng(seed)
    metric, kind = METRICS[seed % 3], KINDS[seed // 3 % len(KINDS)]
    # float16 ends at 65504.
    dtype = "float16" if kind in ("normal", "signs", "repeated") and rng.random() < 0.4 else "float32"
    dims = [[1, 5], [8, 24], [16, 64], [3, 40, 200]][rng.integers(4)]
    number, k = int(rng.integers(1, 1500)), int(rng.choice([1, 3, 10, 60, 2000]))
    rows = vectors_of(kind, rng, number, dims[-1]).astype(dtype).astype(np.float32)
    queries = _queries(kind, rng, rows, metric)
    live = np.ones(number, np.bool_)
    about = f"{metric}, {kind}, {dtype}, {number} × {dims}, k={k}"
    with Index.create(folder, dims, metric=metric, dtype=dtype, limits=Limits(1 << 14, 1 << 30)) as index:
        for number_, part in enumerate(np.array_split(np.arange(number), rng.integers(1, 4))):
            if len(part):
                index.add(rows[part], ids=part.tolist(), payload=[{"even": bool(row % 2)} for row in part])
            if number_ == 0 and rng.random() < 0.7:   # the parts that follow have no sketch
                Store.compact(index)
                index.build(sketch=True)
        gone = np.flatnonzero(rng.random(number) < rng.choice([0, 0.3]))
        if len(gone):
            index.delete(gone.tolist())
            live[gone] = False
        where = {"even": True} if rng.random() < 0.3 and (live & (np.arange(number) % 2 == 1)).any() else None
        if where:
            live &= np.arange(number) % 2 == 1
        for place in (None, device()) if importlib.util.find_spec("torch") else (None,):
            index.to(place)
            search = partial(index.search, k=k, exact=True, where=where)
            yield from _compared(f"{about}, {place}", metric, queries, rows, live, search)
    blocks = Blocks.of(rows, index.nesting, dtype=dtype)
    found = execute(blocks, queries, Plan.single(dims[-1]), k, metric, live, engine=NUMPY)
    for query, *hits in zip(queries, *found, strict=True):
        problem = wrong(metric, query, rows, live, *hits)
        if problem:
            yield f"{about}, numpy: {problem}"
            return


def _compared(about: str, metric: str, queries: Any, rows: Any, live: Any, search: Any) -> Iterator[str]:
    together = search(queries)
    for number, query in enumerate(queries):
        problem = wrong(metric, query, rows, live, together.ids[number], together.scores[number])
        if problem:
            yield f"{about}: {problem}"
            return
    alone = search(queries[0])
    if alone.ids[0].tolist() != together.ids[0].tolist() or alone.scores.tobytes() != together.scores[:1].tobytes():
        yield f"{about}: one query finds {alone.ids[0].tolist()}, with others {together.ids[0].tolist()}"


def _queries(kind: str, rng: np.random.Generator, rows: np.ndarray, metric: str) -> np.ndarray:
    count = int(rng.choice([1, 4, 12]))
    near = rows[rng.integers(0, len(rows), count)]
    queries = np.where(rng.random((count, 1)) < 0.5, near, near * np.float32(1 + 2.0**-12 * rng.standard_normal()))
    if "shifted" in kind or rng.random() < 0.3:
        queries = near + 0.3 * rng.standard_normal(near.shape) * np.abs(near - near.mean(0)).mean()
    queries = queries.astype(np.float32)
    norms = np.linalg.norm(queries.astype(np.float64), axis=1)
    queries[norms > 2.0**62] *= np.float32(0.25)
    if metric == "cosine":
        queries[norms == 0] = 1
    return queries
