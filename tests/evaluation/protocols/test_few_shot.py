"""Few-shot against plain loops in float64 and scikit-learn's nearest centroid, and what the draws must be."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest

from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.evaluation.draws import shuffled_by_class
from matryo.evaluation.protocols.few_shot import FewShot, _Draw, few_shot
from matryo.nesting import Nesting

CLASSES, EACH, DIM = 6, 7, 8
quiet = partial(few_shot, progress=False)


def made(seed: int = 0, labels: Any = None, noise: float = 0.7, **about: Any) -> EmbeddingSet:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(CLASSES), EACH)) if labels is None else np.asarray(labels)
    centres = np.random.default_rng(99).standard_normal((100, DIM))
    vectors = centres[labels] + noise * rng.standard_normal((len(labels), DIM))
    vectors *= rng.uniform(0.5, 2, (len(labels), 1))
    return EmbeddingSet.of(vectors, labels=labels, nesting=Nesting([2, 4, 8]), **about)


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def naive(embeddings: EmbeddingSet, draw: Any, dim: int, shots: int) -> float:
    """The accuracy of one draw, one example at a time."""
    assert embeddings.labels is not None
    x = [unit(row) for row in np.asarray(embeddings.vectors, np.float64)[:, :dim]]
    support: dict[int, list[int]] = {}
    asked = []
    for row in draw.rows.tolist():
        mine = support.setdefault(int(embeddings.labels[row]), [])
        if len(mine) < shots:
            mine.append(row)
        else:
            asked.append(row)
    means = {label: unit(sum(x[row] for row in rows) / shots) for label, rows in support.items()}
    right = [max(means, key=lambda label: means[label] @ x[row]) == embeddings.labels[row] for row in asked]
    return sum(right) / len(right)


@pytest.mark.parametrize("ways", [None, 3])
def test_against_plain_loops(ways: int | None) -> None:
    embeddings, dims, shots, draws = made(), (2, 3, 8), (1, 2, 6), 9
    found = quiet(embeddings, shots=shots, ways=ways, draws=draws, dims=dims, seed=5)
    assert (found.ways, found.draws, found.dims, found.shots) == (ways or CLASSES, draws, dims, shots)
    rng = np.random.default_rng(5)
    labels, everyone = np.asarray(embeddings.labels), np.arange(CLASSES)
    drawn = [
        _Draw.of(labels, np.sort(rng.permutation(everyone)[: ways or CLASSES]), rng) for _ in range(draws)
    ]
    for i, count in enumerate(shots):
        for j, dim in enumerate(dims):
            each = [naive(embeddings, draw, dim, count) for draw in drawn]
            assert found.accuracy[i][j] == pytest.approx(np.mean(each))
            assert found.margin[i][j] == pytest.approx(1.96 * np.std(each, ddof=1) / 3)
    assert found.accuracy[2][2] > found.accuracy[0][2] > found.accuracy[0][0] - 0.05   # it measures something


def test_the_means_and_their_neighbours_are_those_of_scikit_learn() -> None:
    neighbors = pytest.importorskip("sklearn.neighbors")
    embeddings = made()
    labels = np.asarray(embeddings.labels)
    draw = _Draw.of(labels, np.arange(CLASSES), np.random.default_rng(3))
    for dim in (2, 8):
        x = embeddings.at(dim)
        shots, others = draw.rows[draw.places < 3], draw.rows[draw.places >= 3]
        means = neighbors.NearestCentroid().fit(x[shots], labels[shots])
        model = neighbors.KNeighborsClassifier(1, metric="cosine").fit(means.centroids_, means.classes_)
        assert draw.accuracies(x, [3]) == pytest.approx([model.score(x[others], labels[others])])


def test_draws_are_nested_and_fair() -> None:
    labels = np.array([3, 1, 3, 3, 1, 3, 1, 1, 9])
    rng = np.random.default_rng(0)
    firsts = []
    for _ in range(2000):
        rows, places = shuffled_by_class(labels, rng)
        assert sorted(rows.tolist()) == list(range(9))
        assert labels[rows].tolist() == [1] * 4 + [3] * 4 + [9]
        assert places.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
        firsts.append(rows[places == 0])
    each = np.bincount(np.concatenate(firsts), minlength=9)
    assert each[8] == 2000
    np.testing.assert_allclose(each[:8], 500, atol=5 * np.sqrt(2000 * 0.25 * 0.75))


def test_the_seed_decides_and_the_order_of_the_dims_does_not() -> None:
    one, again, other = (quiet(made(), shots=[1], draws=5, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one.accuracy != other.accuracy
    alone = quiet(made(), shots=[1], draws=5, seed=1, dims=[4])
    assert alone.accuracy[0][0] == one.accuracy[0][one.dims.index(4)]   # every dim sees the same draws


def test_scale_does_not_matter() -> None:
    embeddings = made()
    scales = np.random.default_rng(1).choice([0.25, 1, 8], (embeddings.count, 1))
    scaled = embeddings.transformed(embeddings.vectors * scales, nesting=embeddings.nesting)
    assert quiet(scaled, shots=[1, 3], draws=4) == quiet(embeddings, shots=[1, 3], draws=4)


def test_classes_apart_are_told_apart() -> None:
    labels = np.repeat(np.arange(4), 10)
    found = quiet(EmbeddingSet.of(np.eye(4)[labels], labels=labels), draws=3, dims=[4])
    assert found.shots == (1, 3, 5, 7, 9)
    assert found.accuracy == ((1.0,),) * 5
    assert found.margin == ((0.0,),) * 5


def test_only_some_classes() -> None:
    embeddings = made()
    few = quiet(embeddings, shots=[1], classes=[4, 5], about="never trained", draws=6)
    assert (few.ways, few.classes) == (2, "never trained")
    kept = np.isin(np.asarray(embeddings.labels), [4, 5])
    assert few.accuracy == quiet(embeddings.select(kept), shots=[1], draws=6).accuracy
    assert quiet(embeddings, shots=[1], draws=6).classes == "all"


def test_classes_with_too_few_examples_and_unknown_ones_do_not_take_part() -> None:
    labels = np.repeat([0, 1, 2, 3, -1], [6, 6, 6, 2, 9])
    embeddings = made(labels=labels)
    found = quiet(embeddings, shots=[3], draws=4)
    assert found.ways == 3
    assert found.accuracy == quiet(embeddings.select(np.arange(18)), shots=[3], draws=4).accuracy


def test_more_shots_than_examples() -> None:
    embeddings = made(labels=np.repeat([0, 1, 2], [6, 6, 2]), classes=["ant", "bee", "cat"])
    with pytest.raises(EmbeddingsError, match=r"9-shot .* with 10 examples each, .*\(got 6 of class 0 \(ant\)\)"):
        quiet(embeddings)
    with pytest.raises(EmbeddingsError, match=r"3-shot .*\(got 2 of class 2 \(cat\)\): choose fewer shots"):
        quiet(embeddings, shots=[1, 3], classes=[0, 2])
    with pytest.raises(EmbeddingsError, match=r"\(got 0 of class 7\)"):
        quiet(embeddings, shots=[1], classes=[0, 7])
    with pytest.raises(EmbeddingsError, match=r"\(got no class\)"):
        quiet(embeddings, shots=[1], classes=[])
    with pytest.raises(EmbeddingsError, match="at least two classes"):
        quiet(made(labels=np.zeros(8, int)), shots=[1])
    assert quiet(embeddings, shots=[5], draws=2).ways == 2   # all but one of six


def test_what_cannot_be_drawn() -> None:
    embeddings = made()
    with pytest.raises(EmbeddingsError, match="the embeddings must have labels"):
        quiet(EmbeddingSet.of(embeddings.vectors))
    for shots in ((), (0, 1)):
        with pytest.raises(InputError, match="shots must be at least 1"):
            quiet(embeddings, shots=shots)
    for ways in (1, 7):
        with pytest.raises(InputError, match=rf"ways must be between 2 and 6, .*\(got {ways}\)"):
            quiet(embeddings, shots=[1], ways=ways)
    with pytest.raises(InputError, match="at least two draws"):
        quiet(embeddings, shots=[1], draws=1)
    with pytest.raises(NestingError, match="must not exceed the 8"):
        quiet(embeddings, shots=[1], dims=[9])
    embeddings.vectors[5, 1] = np.nan
    with pytest.raises(EmbeddingsError, match=r"must be finite.* row 5\)"):
        quiet(embeddings, shots=[1])


def test_the_result_is_plain_json_and_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    found = few_shot(made(model="m", dataset="toy", split="test"), shots=[1, 3], draws=3)
    assert (found.model, found.dataset, found.split) == ("m", "toy", "test")
    assert FewShot.from_figures(json.loads(json.dumps(found.to_figures()))) == found
    assert capsys.readouterr().err.strip() == ""   # done within two seconds, so no bar was shown
