"""A set on disk with its exact neighbours, and the recall of what a search found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from matryo import Nesting
from support.retrieval_peers import Database, Rows, Vectors, prepared

Part = Literal["tuning", "test"]
K = 10
SLACK = 1e-6   # a neighbour whose score is less than the k-th best by no more (of it, if above 1) counts too: ties
_CANDIDATES = 40   # by float32, which float64 ranks again
_BATCH = 200   # queries


@dataclass(frozen=True)
class Task:
    """One folder that ``unseen.py make`` wrote."""

    folder: Path

    @property
    def name(self) -> str:
        """The name of the set."""
        return self.folder.name

    @cached_property
    def about(self) -> dict[str, Any]:
        """``about.json``."""
        about: dict[str, Any] = json.loads((self.folder / "about.json").read_text(encoding="utf-8"))
        return about

    @property
    def metric(self) -> Any:
        """cosine, ip or l2."""
        return self.about["metric"]

    @cached_property
    def raw(self) -> Vectors:
        """The database as it is in the file, mapped."""
        vectors: Vectors = np.load(self.folder / "database.npy", mmap_mode="r")
        return vectors

    @cached_property
    def database(self) -> Database:
        """The input of every peer's build."""
        return Database(self.raw, None, Nesting(self.about["nesting"]), self.queries("tuning"), self.metric)

    def queries(self, part: Part) -> Vectors:
        """Queries, for cosine of length 1."""
        return prepared(np.load(self.folder / f"{part}.npy"), self.metric)

    def kth(self, part: Part) -> Any:
        """The score of the k-th nearest neighbour of each query, in float64; computed once and kept in a file."""
        path = self.folder / f"truth-{part}.npy"
        if not path.exists():
            vectors, queries = self.database.array(), self.queries(part)
            squares = np.square(vectors).sum(1) if self.metric == "l2" else np.float32(0)
            best = []
            for start in range(0, len(queries), _BATCH):
                asked = queries[start : start + _BATCH]
                near = np.argpartition(asked @ vectors.T - squares / 2, -_CANDIDATES, axis=1)[:, -_CANDIDATES:]
                best.append(np.sort(self._scores(asked, near), axis=1)[:, -K])
            np.save(path, np.concatenate(best))
        return np.load(path)

    def recall(self, part: Part, found: Rows) -> float:
        """The share of the k nearest among ``found`` [n, k], for the first n queries; each row counts once."""
        scores = self._scores(self.queries(part)[: len(found)], np.maximum(found, 0))
        order = np.sort(found, axis=1)
        repeated = (np.diff(order, axis=1) == 0).sum(axis=1)
        kth = self.kth(part)[: len(found), None]
        hits = ((scores >= kth - SLACK * np.maximum(1, np.abs(kth))) & (found >= 0)).sum(axis=1) - repeated
        return float(np.clip(hits, 0, K).mean() / K)

    def _scores(self, queries: Vectors, rows: Rows) -> Any:
        """In float64; for L2 the negative squared distance."""
        scores = np.empty(rows.shape)
        for number, (query, some) in enumerate(zip(queries.astype(np.float64), rows, strict=True)):
            near = self.raw[some].astype(np.float64)
            if self.metric == "l2":
                scores[number] = -np.square(near - query).sum(1)
                continue
            scores[number] = near @ query
            if self.metric == "cosine":
                scores[number] /= np.linalg.norm(near, axis=1) * np.linalg.norm(query)
        return scores
