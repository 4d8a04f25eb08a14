"""Disagreement of two dims against plain loops: the counts, the examples and their order."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation.predictions import Predictions
from matryo.evaluation.protocols.disagreement import Disagreement, disagreement

NAMES = ("cat", "dog", "oak")


def sample(seed: int, count: int = 40) -> tuple[EmbeddingSet, Predictions]:
    """Every second row of a set, with confidences of few values, so that many are equal."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 2 * count)
    ids = [f"id{i}" for i in range(2 * count)]
    mine = EmbeddingSet.of(np.ones((2 * count, 8)), labels=labels, ids=ids, classes=NAMES, model="m", split="test")
    said = rng.integers(-1, 3, (3, count))
    sure = rng.integers(1, 5, (3, count)).astype(np.float32) / 4
    return mine, Predictions("1-NN", (2, 4, 8), labels[::2], said, sure, np.arange(0, 2 * count, 2))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(0, 15))
def test_counts_examples_and_order_against_plain_loops(seed: int, limit: int) -> None:
    mine, said = sample(seed)
    found = disagreement(mine, said, low=2, high=8, limit=limit)
    assert (found.model, found.split, found.by, found.dims) == ("m", "test", "1-NN", (2, 8))
    low, high = said.predicted[0], said.predicted[2]
    ways: dict[tuple[bool, bool], list[int]] = {}
    for i, label in enumerate(said.labels):
        ways.setdefault((bool(low[i] == label), bool(high[i] == label)), []).append(i)
    counts = [len(ways.get(way, [])) for way in ((True, True), (True, False), (False, True), (False, False))]
    assert [found.both_right, found.only_low, found.only_high, found.both_wrong] == counts
    shown = [
        (-float(said.confidence[place, i]), i)
        for place, way in ((0, (True, False)), (2, (False, True)))
        for i in sorted(ways.get(way, []), key=lambda i, p=place: (-said.confidence[p, i], i))[:limit]
    ]
    expected = [i for _, i in sorted(shown)]
    assert found.rows == tuple(2 * i for i in expected)
    assert found.ids == tuple(f"id{2 * i}" for i in expected)
    assert found.labels == tuple(NAMES[said.labels[i]] for i in expected)
    words = (*NAMES, "unknown")   # −1 is the last
    assert found.said == tuple((words[low[i]], words[high[i]]) for i in expected)
    assert found.confidence == tuple((said.confidence[0, i], said.confidence[2, i]) for i in expected)


def test_two_dims_that_agree_show_nothing() -> None:
    mine, said = sample(0)
    same = Predictions(said.by, (2, 4), said.labels, said.predicted[[0, 0]], said.confidence[:2], said.rows)
    found = disagreement(mine, same, low=2, high=4)
    assert (found.only_low, found.only_high, found.rows, found.said, found.confidence) == (0, 0, (), (), ())
    assert found.both_right + found.both_wrong == 40


def test_it_is_json_and_comes_back() -> None:
    found = disagreement(*sample(1), low=2, high=4)
    assert Disagreement.from_figures(json.loads(json.dumps(found.to_figures(), allow_nan=False))) == found


def test_what_is_no_pair_of_dims() -> None:
    mine, said = sample(0)
    for low, high in [(2, 16), (3, 8), (8, 2), (4, 4)]:
        with pytest.raises(InputError, match=rf"two of the predicted dims.*got low={low}, high={high}.*\(2, 4, 8\)"):
            disagreement(mine, said, low=low, high=high)
    with pytest.raises(InputError, match=r"limit must not be negative \(got -1\)"):
        disagreement(mine, said, low=2, high=4, limit=-1)
    with pytest.raises(EmbeddingsError, match="must be of these embeddings"):
        disagreement(sample(1)[0], said, low=2, high=4)
