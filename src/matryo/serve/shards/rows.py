"""RemoteRows: the rows of all shards behind a router, with the methods of an index that the server calls in threads."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError, MatryoError, UnknownId, shown
from matryo.nesting import Nesting
from matryo.retrieve.plan.plan import Plan
from matryo.retrieve.shards import shard_of, split
from matryo.retrieve.store.batch import as_existing_ids
from matryo.serve.http.errors import ApiError
from matryo.serve.http.wire import dumps
from matryo.serve.shards.replicas import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Array, Floats
    from matryo.retrieve.hits import Hits
    from matryo.serve.shards.router import RoutedIndex

_START = 10.0   # seconds for the shards to come up when the router starts
_CHECKED = 8   # ids per shard whose hash is compared with its number
_FRESH = 1.0   # seconds for which counts are not asked again
_SAMPLED = 5000   # ids that stand for all


class RemoteRows:
    """The rows of all shards. Its methods wait, and are called in threads."""

    keeps_full = True   # shards of codes are refused when the index is made

    def __init__(self, index: RoutedIndex) -> None:
        self._index = index
        self._about: list[dict[str, Any]] = []
        self._asked = 0.0
        deadline = time.monotonic() + _START
        while True:
            try:
                self.refresh()
                break
            except ApiError as error:
                if time.monotonic() > deadline:
                    raise InputError(f"the shards must answer: {error.message}", cure="start their servers") from None
                time.sleep(0.2)
        self._check()

    def refresh(self) -> None:
        """Ask all shards for their settings and counts."""
        answers = self._all("GET", "/v1/indexes/{index}/shard")
        first = answers[0]
        for number, about in enumerate(answers):
            for field in ("dims", "metric", "dtype"):
                if about[field] != first[field]:
                    rule = f"all shards must have one {field}"
                    got = f"{shown(about[field])} in shard {number}, {shown(first[field])} in shard 0"
                    raise InputError(rule, got=got, cure="name the shards of one index")
        self._about, self._asked = answers, time.monotonic()
        self.nesting, self.metric, self.dtype = Nesting(first["dims"]), first["metric"], first["dtype"]
        self.model = first["model"]

    @property
    def _fresh(self) -> list[dict[str, Any]]:
        if time.monotonic() - self._asked > _FRESH:
            self._asked = time.monotonic()
            answers = self._index.run(self._index.ask_all("GET", "/v1/indexes/{index}/shard"))
            self._about = [old if isinstance(new, Unavailable) else new
                           for old, new in zip(self._about, answers, strict=True)]  # fmt: skip
        return self._about

    @property
    def count(self) -> int:
        """The number of vectors."""
        return sum(about["count"] for about in self._about)

    def __len__(self) -> int:
        return self.count

    @property
    def state(self) -> str:
        """A digest that changes with every change of a shard."""
        return hashlib.sha256("\0".join(about["state"] for about in self._fresh).encode()).hexdigest()

    @property
    def openings(self) -> tuple[Plan, ...]:
        """The first stages that the shards support."""
        filled = [about for about in self._about if about["count"]] or self._about[:1]
        return tuple(dict.fromkeys(Plan.from_dict(plan) for about in filled for plan in about["openings"]))

    @property
    def unit(self) -> bool:
        """Whether the vectors have norm 1."""
        if self.metric == "cosine" or not len(self):
            return True
        _, vectors = self.sample(min(64, len(self)), 0)
        return bool(np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=0.01))

    @property
    def ids(self) -> Array:
        """The ids of a sample of rows; a router does not list all."""
        return self.sample(min(_SAMPLED, len(self)), 0)[0]

    def wanted(self) -> dict[str, Any]:
        """The guides of the shards, by kind."""
        return {kind: {} for kind in self._about[0]["guides"]}

    def describe(self) -> Any:
        """The facts about the index that a client sees."""
        about = self._fresh
        shards = [{"count": one["count"], "up": shard.up}
                  for one, shard in zip(about, self._index.shards, strict=True)]  # fmt: skip
        facts = {
            "folder": "", "run": None, "count": self.count, "dims": list(self.nesting.dims), "metric": self.metric,
            "dtype": self.dtype, "ids": "strings" if self._text else "integers", "shards": shards,
            "fields": list(dict.fromkeys(field for one in about for field in one["fields"])),
        }  # fmt: skip
        return SimpleNamespace(to_dict=lambda: dict(facts))

    def search(self, queries: Any, k: int = 10, plan: Plan | None = None, **_: Any) -> Hits:
        """The hits of all shards, for the planner."""
        hits, _missing = self._index.run(self._index.nearest_of_all(np.asarray(queries, np.float32), k, plan))
        return hits

    def sample(self, count: int, seed: int) -> tuple[Array, Floats]:
        """Ids and vectors of ``count`` random rows."""
        counts = [about["count"] for about in self._about]
        shares = np.random.default_rng(seed).multivariate_hypergeometric(counts, min(count, sum(counts)))
        bodies: list[bytes | None] = [dumps({"count": int(share), "seed": seed + number})
                                      for number, share in enumerate(shares)]  # fmt: skip
        answers = self._each("POST", "/v1/indexes/{index}/sample", bodies)
        ids = [id for answer in answers for id in answer["ids"]]
        vectors = [vector for answer in answers for vector in answer["vectors"]]
        text = bool(ids) and isinstance(ids[0], str)
        rows = np.array(vectors, np.float32).reshape(len(ids), self.nesting.dim)
        return np.array(ids, object if text else np.int64), rows

    def get(self, ids: Any) -> tuple[Floats, list[dict[str, Any]]]:
        """The vectors and payloads of ``ids``, all of which must exist."""
        wanted = as_existing_ids(ids)
        places = split(wanted, len(self._index.shards))
        bodies = [dumps({"ids": [wanted[i] for i in at], "encoding_format": "base64"}) if len(at) else None
                  for at in places]  # fmt: skip
        answers = self._each("POST", "/v1/indexes/{index}/get", bodies)
        vectors = np.empty((len(wanted), self.nesting.dim), np.float32)
        payloads: list[dict[str, Any]] = [{}] * len(wanted)
        for at, answer in zip(places, answers, strict=True):
            for i, row in zip(at, () if answer is None else answer["rows"], strict=True):
                vectors[i] = np.frombuffer(base64.b64decode(row["vector"]), "<f4")
                payloads[i] = row["payload"]
        return vectors, payloads

    def __contains__(self, id: object) -> bool:
        try:
            self.get([id])
        except (UnknownId, MatryoError):
            return False
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    # ── changes: each replica gets them ───────────────────────────────────────────────────────────────────────

    def upsert(self, vectors: Any, ids: Any, payload: Any = None) -> None:
        """Add or replace rows, numbered in one order over all shards."""
        wanted = as_existing_ids(ids)
        if len(set(wanted)) != len(wanted):
            raise InputError("ids must be unique", got=shown(wanted), cure="give each row its own id")
        self.refresh()
        first = max(about["next_row"] for about in self._about)
        places = split(wanted, len(self._index.shards))
        rows = np.ascontiguousarray(vectors, "<f4")
        if not np.isfinite(rows).all():
            raise InputError("vectors must be finite", got="NaN or infinity", cure="encode those rows again")
        bodies: list[bytes | None] = []
        for at in places:
            own = {"ids": [wanted[i] for i in at], "vectors": base64.b64encode(rows[at].tobytes()).decode(),
                   "numbers": (first + at).tolist()}  # fmt: skip
            own |= {} if payload is None else {"payload": [payload[i] for i in at]}
            bodies.append(dumps(own) if len(at) else None)
        self._change("POST", "/v1/indexes/{index}/put", bodies)

    def delete(self, ids: Any) -> None:
        """Delete rows, all of which must exist."""
        wanted = as_existing_ids(ids)
        places = split(wanted, len(self._index.shards))
        parts = [[wanted[i] for i in at] for at in places]
        self._each("POST", "/v1/indexes/{index}/get", [dumps({"ids": part, "vectors": False}) if part else None
                                                       for part in parts])  # fmt: skip
        self._change("POST", "/v1/indexes/{index}/delete", [dumps({"ids": part}) if part else None for part in parts])

    def compact(self, *, background: bool = True) -> Any:   # noqa: ARG002 - a server compacts in the background
        """Start compactions of all shards."""
        answers = self._change("POST", "/v1/indexes/{index}/compact", [b""] * len(self._index.shards))
        return SimpleNamespace(done=all(answer["done"] for answer in answers))

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _text(self) -> bool:
        return any(about["kind"] == "str" for about in self._about)

    def _check(self) -> None:
        """Raise if the ids of a shard do not belong to its number: the URLs are in another order, or too few."""
        total = len(self._index.shards)
        bodies: list[bytes | None] = [dumps({"count": _CHECKED, "seed": 0})] * total
        for number, answer in enumerate(self._each("POST", "/v1/indexes/{index}/sample", bodies)):
            for id in answer["ids"]:
                if shard_of(id, total) != number:
                    rule = f"shard {number} of {total} must hold ids whose hash selects it"
                    cure = "name all shards, in the order of their numbers"
                    raise InputError(rule, got=f"id {shown(id)} of shard {shard_of(id, total)}", cure=cure)

    def _all(self, method: str, path: str) -> list[dict[str, Any]]:
        return self._each(method, path, [b""] * len(self._index.shards))

    def _each(self, method: str, path: str, bodies: Sequence[bytes | None]) -> list[Any]:
        """The answer of each shard that has a body; None for the others. All must answer."""
        async def ask() -> list[Any]:
            async def one(number: int) -> Any:
                body = bodies[number]
                return None if body is None else await self._index.shards[number].ask(method, path, body)

            return await asyncio.gather(*map(one, range(len(bodies))), return_exceptions=True)

        answers = self._index.run(ask())
        return self._sound(answers)

    def _change(self, method: str, path: str, bodies: Sequence[bytes | None]) -> list[Any]:
        """Send a change to every replica of the shards that have a body."""
        async def ask() -> list[Any]:
            async def one(number: int) -> Any:
                body, shard = bodies[number], self._index.shards[number]
                if body is None:
                    return None
                try:
                    every = [shard.ask_one(i, method, path, body) for i in range(len(shard.servers))]
                    return (await asyncio.gather(*every))[0]
                except (OSError, EOFError, ValueError, TimeoutError):
                    raise Unavailable("a replica does not take changes") from None

            return await asyncio.gather(*map(one, range(len(bodies))), return_exceptions=True)

        answers = self._sound(self._index.run(ask()))
        self._asked = 0.0
        for about, answer in zip(self._about, answers, strict=True):
            about["count"] = about["count"] if answer is None else answer.get("count", about["count"])
        return [answer for answer in answers if answer is not None]

    def _sound(self, answers: list[Any]) -> list[Any]:
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, Unavailable):
                raise answer
        self._index._missing(answers, partial=False)
        return answers
