"""A walk through a graph finds nearly all that a scan finds, and only rows that are allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from matryo.errors import EmbeddingsError
from matryo.nesting import Nesting
from matryo.retrieve import Blocks, Plan, execute
from matryo.retrieve.guides.graph import Graph
from matryo.retrieve.vectors.metric import METRICS

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("faiss")


def some(count: int, dim: int = 32) -> np.ndarray:
    return (np.random.default_rng(count).standard_normal((count, dim)) * np.linspace(2, 0.3, dim)).astype(np.float32)


def recall(found: np.ndarray, true: np.ndarray) -> float:
    return float(np.mean([np.isin(b, a).mean() for a, b in zip(found, true, strict=True)]))


@pytest.mark.parametrize("metric", METRICS)
def test_a_walk_finds_what_a_scan_finds(metric: str, tmp_path: Path) -> None:
    blocks, asked = Blocks.of(some(3000), Nesting([16, 32])), some(50)
    graph = Graph.of(blocks, metric, dim=16)
    true, _ = execute(blocks, asked, Plan.single(16), 10, metric)
    found = graph.walk(asked, 10, 200)
    assert recall(found, true) > 0.97
    graph.write(tmp_path / "graph")
    again = Graph.open(tmp_path / "graph")
    np.testing.assert_array_equal(again.walk(asked, 10, 200), found)
    assert (again.metric, again.dim) == (metric, 16)


def test_only_allowed_rows_are_found() -> None:
    blocks, asked = Blocks.of(some(1000), Nesting([16, 32])), some(20)
    allowed = np.random.default_rng(1).random(1000) < 0.5
    found = Graph.of(blocks, dim=16).walk(asked, 10, 300, allowed)
    assert allowed[found[found >= 0]].all()
    true, _ = execute(blocks, asked, Plan.single(16), 10, "cosine", allowed)
    assert recall(found, true) > 0.95
    assert (Graph.of(blocks, dim=16).walk(asked, 10, 20, np.zeros(1000, bool)) == -1).all()


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    Graph.of(Blocks.of(some(100), Nesting([16, 32])), dim=16).write(tmp_path / "graph")
    path = tmp_path / "graph" / "graph.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(EmbeddingsError, match=r"graph\.npy is damaged"):
        Graph.open(tmp_path / "graph")
