"""A hold-out that is found again: the same rows from the file, and none of other embeddings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from matryo import Cascade, EmbeddingSet
from matryo.classify.thresholds.holdout import Holdout
from matryo.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

LABELS = np.where(np.arange(50) % 5 == 0, -1, np.arange(50) % 3)
ABOUT: dict[str, Any] = {"model": {"name": "m", "seed": 1}, "dataset": "toy", "split": "val"}
MINE = EmbeddingSet.of(np.ones((50, 4)), labels=LABELS, **ABOUT)


def saved(path: Path, holdout: Holdout | None) -> Path:
    logits = {m: np.eye(2)[[0, 1, 0, 1]] * m for m in (2, 4)}
    Cascade().fit(logits, [0, 1, 0, 1]).save(path, holdout)
    return path


def test_the_same_labelled_rows_are_found_again(tmp_path: Path) -> None:
    made = Holdout.of(MINE, 0.4, 7)
    found = Holdout.load(saved(tmp_path / "c.json", made))
    assert found == made
    rows = found.rows(MINE)
    assert rows.sum() == 16   # 0.4 of the 40 that have labels
    assert (LABELS[rows] >= 0).all()
    assert (rows == Holdout.of(MINE, 0.4, 7).rows(MINE)).all()
    assert (rows != Holdout.of(MINE, 0.4, 8).rows(MINE)).any()
    assert (Holdout.of(MINE, 1, 0).rows(MINE) == (LABELS >= 0)).all()
    assert Cascade.load(tmp_path / "c.json").dims_ == (2, 4)   # which does not ask
    assert Holdout.load(saved(tmp_path / "d.json", None)) is None


def test_other_embeddings_are_told_apart() -> None:
    made = Holdout.of(MINE, 0.5, 0)
    assert made.can_tell(MINE)
    for change in ({"model": "other"}, {"dataset": "other"}, {"split": "other"}):
        other = EmbeddingSet.of(np.ones((50, 4)), labels=LABELS, **(ABOUT | change))
        assert not made.is_of(other)
        assert not made.can_tell(other)
    for labels in (None, LABELS[::-1]):
        other = EmbeddingSet.of(np.ones((50, 4)), labels=labels, **ABOUT)
        assert made.is_of(other)
        assert not made.can_tell(other)
    assert not made.rows(EmbeddingSet.of(np.ones((3, 4)))).any()
    assert Holdout.of(EmbeddingSet.of(np.ones((3, 4))), 1, 0).split == "memory"   # named as its folder is


def test_files_that_say_nonsense_of_their_rows(tmp_path: Path) -> None:
    path = saved(tmp_path / "c.json", Holdout.of(MINE, 0.5, 0))
    good = json.loads(path.read_text())
    about = good["fitted_on"]
    lacking = {name: value for name, value in about.items() if name != "split"}
    for wrong in ([], "val", {}, lacking, about | {"share": 2}, about | {"seed": -1}, about | {"share": "x"}):
        path.write_text(json.dumps({**good, "fitted_on": wrong}))
        with pytest.raises(InputError, match=r"c.json must be a saved cascade .*save it again"):
            Holdout.load(path)
    with pytest.raises(InputError, match="must be a saved cascade"):
        Holdout.load(tmp_path / "none.json")
