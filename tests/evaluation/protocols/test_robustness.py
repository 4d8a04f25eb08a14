"""Robustness: shifted splits lined up by the dims that all share, each with its own oracle."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from matryo.embeddings import EmbeddingSet, Head
from matryo.errors import InputError
from matryo.evaluation import Evaluation, evaluate
from matryo.evaluation.predictions import predict
from matryo.evaluation.protocols.robustness import Robustness, robustness
from matryo.evaluation.protocols.trends import Trends, trends
from matryo.nesting import Nesting

NESTING = Nesting([2, 4, 8])


def split(name: str, shift: float, seed: int, dataset: str = "toy", head: bool = True) -> EmbeddingSet:
    rng = np.random.default_rng(seed)
    centres = 2 * np.random.default_rng(99).standard_normal((4, 8))
    labels = rng.integers(0, 4, 50)
    kept = Head.tied(centres, dims=NESTING.dims) if head else None
    vectors = centres[labels] + shift + rng.standard_normal((50, 8))
    about: dict[str, Any] = {"nesting": NESTING, "model": "m", "dataset": dataset, "split": name}
    return EmbeddingSet.of(vectors, labels=labels, head=kept, **about)


def graded(*asked: EmbeddingSet, dims: tuple[tuple[int, ...], ...] = ()) -> tuple[list[Evaluation], list[Trends]]:
    database = split("train", 0, seed=1)
    lists = dims or (NESTING.dims,) * len(asked)
    evaluations = [evaluate(database, one, dims=m, progress=False) for one, m in zip(asked, lists, strict=True)]
    return evaluations, [trends(one, predict(one, database)) for one in asked]


def test_each_figure_is_that_of_its_split() -> None:
    evaluations, oracles = graded(
        split("test", 0, 2), split("sketch", 1, 3), split("test", 2, 4, dataset="other", head=False),
        dims=((2, 3, 4, 8), (2, 4, 8), (1, 3, 4, 8)),
    )   # fmt: skip
    found = robustness(evaluations, oracles)
    assert (found.model, found.dataset, found.dims) == ("m", "toy", (4, 8))
    assert found.splits == ("test", "sketch", "other test")
    assert found.oracle == tuple(one.oracle for one in oracles)
    for place, one in enumerate(evaluations):
        for column, dim in enumerate(found.dims):
            row = one.at(dim)
            assert found.head[place][column] == row.head_top1
            assert found.top1[place][column] == row.top1
            assert found.map10[place][column] == row.map_at[10]
    assert found.head[2] == (None, None)
    assert max(found.head[0]) <= found.oracle[0]
    assert Robustness.from_figures(json.loads(json.dumps(found.to_figures(), allow_nan=False))) == found


def test_what_does_not_stand_side_by_side() -> None:
    evaluations, oracles = graded(split("test", 0, 2), split("sketch", 1, 3))
    with pytest.raises(InputError, match=r"there must be an evaluation \(got 0\)"):
        robustness([], [])
    with pytest.raises(InputError, match=r"of one model.*m, test in 50; n, sketch in 50"):
        robustness([evaluations[0], replace(evaluations[1], model="n")], oracles)
    with pytest.raises(InputError, match="one model and one database"):
        robustness([evaluations[0], replace(evaluations[1], database=7)], oracles)
    for wrong in (oracles[::-1], oracles[:1]):
        with pytest.raises(InputError, match=r"evaluations and trends.*'test', 'sketch'.*in the same order"):
            robustness(evaluations, wrong)
    with pytest.raises(InputError, match="the same splits in the same order, each once"):
        robustness(evaluations[:1] * 2, oracles[:1] * 2)


def test_dims_and_depths_that_all_must_share() -> None:
    asked = split("test", 0, 2), split("sketch", 1, 3)
    evaluations, oracles = graded(*asked, dims=((2, 4), (3, 8)))
    with pytest.raises(InputError, match=r"must share a dim.*\(2, 4\) and \(3, 8\).*at the same dims"):
        robustness(evaluations, oracles)
    few = [evaluate(split("train", 0, 1), one, dims=[4], ks=(5,), progress=False) for one in asked]
    with pytest.raises(InputError, match=r"have mAP@10.*with 10 in ks"):
        robustness(few, oracles)
