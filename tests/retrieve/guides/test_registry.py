"""A guide is one class and its registration: the index builds, stores, opens, plans with and follows a new one."""

# ruff: noqa: ARG002, ARG003   # the interface of a guide names its arguments

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from matryo.errors import InputError
from matryo.nesting import Nesting
from matryo.retrieve import Index, Plan, Stage, execute
from matryo.retrieve.guides import GUIDES, Guide
from matryo.retrieve.vectors.array_folder import open_arrays, write_arrays

NESTING = Nesting([4, 16])


class Halves(Guide):
    """A toy guide: rows by the sign of their first column; a query is compared with the rows of its own half."""

    kind = "halves"

    @classmethod
    def serves(cls, plan, engine):
        return plan is None or plan.probe is not None

    def __init__(self, positive: np.ndarray) -> None:
        self.positive = positive

    @classmethod
    def options(cls, nesting, value):
        return {"column": int(value) - 1}

    @classmethod
    def of(cls, blocks, metric, *, column):
        return cls(blocks.rows(slice(None), blocks.nesting.dim)[:, column] > 0)

    def write(self, folder):
        write_arrays(folder, "halves.json", 1, {}, {"positive": self.positive})

    @classmethod
    def open(cls, folder):
        return cls(open_arrays(folder, "halves.json", 1)[1]["positive"])

    def opening(self):
        return Plan((Stage(4, 1),), probe=0.5)

    def searcher(self, blocks, plan, engine):
        exact = Plan.single(16)

        def search(request, k):
            found = [
                execute(request.blocks, query[None], exact, k, request.metric, self.positive == (query[0] > 0))
                for query in request.queries
            ]
            return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))

        return search


def test_a_new_guide_is_built_stored_opened_and_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GUIDES, "halves", Halves)
    rng = np.random.default_rng(0)
    vectors, queries = rng.standard_normal((200, 16)), rng.standard_normal((10, 16))
    with Index.create(tmp_path / "index", NESTING, metric="ip") as index:
        index.add(vectors)
        index.compact()
        index.build(halves=1)
        assert index.wanted() == {"halves": {"column": 0}}
        assert Plan((Stage(4, 1),), probe=0.5) in index.openings
        index.verify()
    with Index.open(tmp_path / "index") as index:
        hits = index.search(queries, k=5)
        assert len(hits) == 10
        for query, ids, scores in zip(queries, hits.ids, hits.scores, strict=True):
            half = np.flatnonzero((vectors[:, 0] > 0) == (query[0] > 0))
            best = half[np.argsort(-(vectors[half] @ query))[:5]]
            assert ids.tolist() == best.tolist()
            np.testing.assert_allclose(scores, vectors[best] @ query, rtol=1e-5)


def test_an_unknown_guide_is_refused(tmp_path: Path) -> None:
    with (
        Index.create(tmp_path / "index", NESTING) as index,
        pytest.raises(InputError, match=r"sketch, partition, graph \(got tree\)"),
    ):
        index.build(tree=4)


def test_prepared_searches_do_not_keep_replaced_segments_alive(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with Index.create(tmp_path / "index", NESTING) as index:
        index.add(rng.standard_normal((300, 16)))
        index.compact()
        index.build()
        for plan in (None, Plan.of([(16, 20, "int8")])):
            index.search(rng.standard_normal((2, 16)), k=3, plan=plan)
        blocks = weakref.ref(index.snapshot().segments[0].blocks)
        index.delete([0])
        index.compact()
        index.search(rng.standard_normal((2, 16)), k=3)
        gc.collect()
        assert blocks() is None
