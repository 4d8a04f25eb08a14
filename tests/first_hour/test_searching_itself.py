"""A query split that is also the database is refused: each query would find itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from matryo import EmbeddingSet, evaluate
from matryo.cli import main
from matryo.errors import EmbeddingsError

VECTORS = np.random.default_rng(0).normal(size=(30, 8))
LABELS = np.arange(30) % 3


def write(path: Path) -> EmbeddingSet:
    return EmbeddingSet.write(path, VECTORS, labels=LABELS)


def test_the_same_embeddings_twice_are_refused(tmp_path: Path) -> None:
    rule = "the queries must not be the database itself.*search another split"
    whole = write(tmp_path / "x")
    for pair in [(whole, whole), (whole, EmbeddingSet.open(tmp_path / "x")), ((VECTORS, LABELS), (VECTORS, LABELS))]:
        with pytest.raises(EmbeddingsError, match=rule):
            evaluate(*pair, progress=False)
    halves = [whole.select(rows) for rows in (range(20), range(20, 30))]
    assert evaluate(*halves, progress=False).queries == 10


def test_the_command_refuses_a_split_on_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "val"):
        write(tmp_path / "emb" / split)
    words = ["evaluate", str(tmp_path / "emb"), "--database", "val", "--queries", "val", "--quiet"]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert "(got --database val --queries val): choose another --database: train" in error
    assert main([*words, "--protocols", "similarity"]) == 0, "similarity searches nothing"
