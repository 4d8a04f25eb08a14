"""Trends: every short curve sorted by the words of the definition, and figures against plain loops."""

from __future__ import annotations

import json
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError
from matryo.evaluation.predictions import Predictions
from matryo.evaluation.protocols.trends import TRENDS, Trends, trend_of, trends

DIMS = (2, 4, 8, 16)


def never_falls(curve: tuple[int, ...]) -> bool:
    return all(low <= high for low, high in pairwise(curve))


def by_words(curve: tuple[int, ...]) -> list[str]:
    """Every trend whose definition the curve meets, by trying each place of its turn."""
    found = ["up"] if never_falls(curve) else []
    for turn in range(len(curve)):
        before, after = curve[: turn + 1], curve[turn:]
        first, here, last = curve[0], curve[turn], curve[-1]
        if never_falls(before) and never_falls(after[::-1]) and first < here and here - 2 <= last < here:
            found.append("up, then a dip")
        if never_falls(before[::-1]) and never_falls(after) and first > here < last:
            found.append("down, then up")
    return sorted({*found}) or ["no clear trend"]


def test_every_short_curve_has_the_one_trend_its_words_say() -> None:
    seen = set()
    for length in (1, 2, 3, 5):
        for curve in product(range(5), repeat=length):
            assert by_words(curve) == [trend_of(curve)], curve
            seen.add(trend_of(curve))
    assert seen == {*TRENDS}


def test_trends_do_not_depend_on_the_level() -> None:
    rng = np.random.default_rng(0)
    for curve in rng.integers(0, 6, (50, 5)):
        assert trend_of(curve.tolist()) == trend_of((curve + 40).tolist())


def sample(seed: int, count: int = 50, classes: int = 7) -> tuple[EmbeddingSet, Predictions]:
    """Labels 0, 2, 4, …, some of which have no example, and predictions that get better with the dim."""
    rng = np.random.default_rng(seed)
    labels = 2 * rng.integers(0, classes, count)
    sure = np.array([0.2, 0.4, 0.6, 0.7])[:, None]
    said = np.where(rng.random((4, count)) < sure, labels, rng.integers(-1, 2 * classes, (4, count)))
    mine = EmbeddingSet.of(np.ones((count + 3, 16)), labels=np.r_[-1, -1, -1, labels], model="m", dataset="toy")
    return mine, Predictions("head", DIMS, labels, said, np.ones((4, count), np.float32), np.arange(3, count + 3))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000))
def test_every_figure_against_plain_loops(seed: int) -> None:
    mine, said = sample(seed)
    found = trends(mine, said)
    assert (found.model, found.dataset, found.split, found.by, found.dims) == ("m", "toy", "", "head", DIMS)
    present = sorted({*said.labels.tolist()})
    assert found.classes == tuple(map(str, present))
    for name, count, curve, trend in zip(
        found.classes, found.class_counts, found.class_accuracy, found.trend, strict=True
    ):
        members = [i for i, label in enumerate(said.labels) if label == int(name)]
        right = tuple(sum(int(row[i] == int(name)) for i in members) for row in said.predicted)
        assert count == len(members)
        assert curve == pytest.approx([number / count for number in right])
        assert [trend] == by_words(right)
    firsts = [0, 0, 0, 0]
    never = 0
    for i, label in enumerate(said.labels):
        places = [place for place in range(4) if said.predicted[place, i] == label]
        if places:
            firsts[places[0]] += 1
        never += not places
    assert found.first_right == pytest.approx([number / 50 for number in firsts])
    assert (found.always_wrong, found.oracle) == pytest.approx((never / 50, 1 - never / 50))
    assert sum(found.first_right) + found.always_wrong == pytest.approx(1)
    assert found.accuracy[0] == pytest.approx(found.first_right[0])
    assert max(found.accuracy) <= found.oracle + 1e-12
    mean = np.average(np.array(found.class_accuracy), axis=0, weights=found.class_counts)
    assert found.accuracy == pytest.approx(mean.tolist())


def test_scikit_learn_agrees() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    mine, said = sample(5)
    found = trends(mine, said)
    for place in range(4):
        assert found.accuracy[place] == pytest.approx(metrics.accuracy_score(said.labels, said.predicted[place]))
        present = np.unique(said.labels)
        each = metrics.recall_score(said.labels, said.predicted[place], labels=present, average=None)
        assert [curve[place] for curve in found.class_accuracy] == pytest.approx(each.tolist())


def test_classes_by_name_and_back_from_json() -> None:
    mine = EmbeddingSet.of(np.ones((3, 2)), labels=[1, 0, 1], classes=["cat", "dog", "elk"])
    answers, sure = np.array([[1, 0, 2], [1, 2, 1]]), np.ones((2, 3), np.float32)
    said = Predictions("head", (1, 2), np.array([1, 0, 1]), answers, sure, np.arange(3))
    found = trends(mine, said)
    assert found.classes == ("cat", "dog")
    assert found.trend == ("no clear trend", "up")   # a cat is lost and nothing gained; a dog is gained
    assert found.oracle == 1
    assert Trends.from_figures(json.loads(json.dumps(found.to_figures(), allow_nan=False))) == found
    with pytest.raises(EmbeddingsError, match="must be of these embeddings"):
        trends(mine.select([0, 1]), said)
