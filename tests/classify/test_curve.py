"""The cascade's curve, against cascades fitted and measured one at a time."""

from __future__ import annotations

import json
import statistics

import numpy as np
import pytest

from matryo import EmbeddingSet, Nesting
from matryo.classify import Cascade, CascadeCurve, cascade_curve
from matryo.embeddings import Head
from matryo.errors import InputError

DIMS, CLASSES, COUNT = (2, 4, 8), 4, 600
RNG = np.random.default_rng(3)
MEANS = RNG.normal(size=(CLASSES, 8)) * 2.5 / np.arange(1, 9)
Y = RNG.integers(CLASSES, size=COUNT)
X = (MEANS[Y] + RNG.normal(size=(COUNT, 8))).astype(np.float32)
TIED = Head.tied(MEANS, dims=DIMS)
SEPARATE = Head.separate({m: MEANS[:, :m] for m in DIMS}, {m: -0.5 * (MEANS[:, :m] ** 2).sum(1) for m in DIMS})


def halves(turn: int, seed: int = 0, fraction: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng([seed, turn]).permutation(COUNT)
    return order[: round(fraction * COUNT)], order[round(fraction * COUNT) :]


def test_greedy_stops_at_every_dim() -> None:
    curve = cascade_curve(X, Y, head=SEPARATE, holdouts=4)
    assert (curve.stop, curve.dims, curve.fitted_on, curve.tested_on, curve.holdouts) == (DIMS, DIMS, 300, 300, 4)
    assert (curve.head, curve.strategy, curve.model) == ("separate", "greedy", "")
    assert curve.single == pytest.approx([(SEPARATE.logits(X, m).argmax(axis=1) == Y).mean() for m in DIMS])
    for place, dims in enumerate([DIMS[:1], DIMS[:2], DIMS]):
        found = []
        for turn in range(4):
            fit, rest = halves(turn)
            found.append(Cascade(dims, head=SEPARATE).fit(X[fit], Y[fit]).measure(X[rest], Y[rest]))
        for name in ("accuracy", "expected_dim", "cumulative_dim"):
            values = [getattr(one, name) for one in found]
            assert getattr(curve, name)[place] == pytest.approx(statistics.mean(values))
            assert getattr(curve, f"{name}_sd")[place] == pytest.approx(statistics.stdev(values))
    assert curve.expected_dim[0] == curve.cumulative_dim[0] == 2
    assert curve.cumulative_dim[2] > curve.expected_dim[2]


@pytest.mark.parametrize(("strategy", "parameter", "stops"), [
    ("budget", "expected_dim", (2.5, 6)), ("risk", "max_loss", (0.05, 0.1)),
])  # fmt: skip
def test_other_strategies_stop_where_they_are_told(strategy: str, parameter: str, stops: tuple[float, ...]) -> None:
    curve = cascade_curve(X, Y, head=TIED, strategy=strategy, stops=stops, holdouts=3, fraction=0.4, seed=9)
    assert (curve.head, curve.fitted_on, curve.tested_on, curve.stop) == ("tied", 240, 360, stops)
    assert curve.cumulative_dim == curve.expected_dim   # a tied head reuses its sums
    for place, stop in enumerate(stops):
        found = []
        for turn in range(3):
            fit, rest = halves(turn, 9, 0.4)
            cascade = Cascade(head=TIED, strategy=strategy, seed=turn, **{parameter: stop}).fit(X[fit], Y[fit])
            found.append(cascade.measure(X[rest], Y[rest]))
        assert curve.accuracy[place] == pytest.approx(statistics.mean(one.accuracy for one in found))
        assert curve.expected_dim[place] == pytest.approx(statistics.mean(one.expected_dim for one in found))


def test_points_by_default() -> None:
    assert cascade_curve(X, Y, head=TIED, strategy="budget", holdouts=2, progress=False).stop == (2, 3, 4, 6, 8)
    # 300 rows can certify 2 points and not 1; 60 rows nothing.
    assert cascade_curve(X, Y, head=TIED, strategy="risk", holdouts=2).stop == (0.02, 0.05)
    with pytest.raises(InputError, match=r"at least 113 rows are needed to certify a loss of at most 5 % \(got 60\)"):
        cascade_curve(X, Y, head=TIED, strategy="risk", holdouts=2, fraction=0.1)


def test_embeddings_say_what_they_are_and_the_curve_survives_a_file() -> None:
    labels = np.where(np.arange(COUNT) % 3 == 0, -1, Y)
    about = {"model": "mine", "dataset": "toy", "split": "val"}
    mine = EmbeddingSet.of(X, labels=labels, head=TIED, nesting=Nesting(DIMS), **about)
    curve = cascade_curve(mine, holdouts=2, nesting=(2, 8))
    assert (curve.model, curve.dataset, curve.split, curve.dims) == ("mine", "toy", "val", (2, 8))
    assert curve.fitted_on + curve.tested_on == (labels >= 0).sum()
    assert CascadeCurve.from_figures(json.loads(json.dumps(curve.to_figures(), allow_nan=False))) == curve
    assert cascade_curve(mine, holdouts=2, nesting=(2, 8)) == curve
    assert cascade_curve(mine, holdouts=2, nesting=(2, 8), seed=1) != curve


def test_one_dim_has_one_point() -> None:
    for strategy in ("greedy", "budget"):
        curve = cascade_curve(X, Y, head=TIED, nesting=[8], strategy=strategy, holdouts=2)
        assert (curve.stop, curve.expected_dim) == ((8,), (8.0,))


def test_what_has_no_curve() -> None:
    with pytest.raises(InputError, match="no such strategy"):
        cascade_curve(X, Y, head=TIED, strategy="other")
    with pytest.raises(InputError, match=r"must stop at one of its dims \(got 3\): choose from \(2, 4, 8\)"):
        cascade_curve(X, Y, head=TIED, stops=[3])
    with pytest.raises(InputError, match="expected_dim of at least 2"):
        cascade_curve(X, Y, head=TIED, strategy="budget", stops=[1])
    with pytest.raises(InputError, match="must be between 0 and 1"):
        cascade_curve(X, Y, head=TIED, strategy="risk", stops=[2])
    for wrong in ({"holdouts": 1}, {"fraction": 0.0}, {"fraction": 1.0}):
        with pytest.raises(InputError, match="at least two hold-outs of at least two rows"):
            cascade_curve(X, Y, head=TIED, **wrong)
    with pytest.raises(InputError, match="at least two classes"):
        cascade_curve(X, np.zeros(COUNT, int), head=TIED)
    with pytest.raises(InputError, match="requires y"):
        cascade_curve(X, head=TIED)
