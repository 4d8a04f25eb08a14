"""Grades of pairs: correlations against SciPy, cosines against truncated vectors, and what must not change them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation import Relevance, Sts, sts, table
from matryo.metrics import pearson, spearman
from matryo.nesting import Nesting, truncate

NESTING = Nesting([2, 4, 8])
FEW = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([-1.0, 0.0, 0.25, 0.5, 3.0])), min_size=2, max_size=30)


@settings(deadline=None)   # the first run imports SciPy
@given(FEW)
def test_correlations_are_those_of_scipy(values):
    stats = pytest.importorskip("scipy.stats")
    one, other = map(np.array, zip(*values, strict=True))
    if len({*one.tolist()}) < 2 or len({*other.tolist()}) < 2:
        assert pearson(one, other) == spearman(one, other) == 0
        return
    assert pearson(one, other) == pytest.approx(stats.pearsonr(one, other)[0], abs=1e-12)
    assert spearman(one, other) == pytest.approx(stats.spearmanr(one, other)[0], abs=1e-12)
    assert spearman(one, np.exp(other)) == pytest.approx(spearman(one, other), abs=1e-12)   # the order is the same


def made(seed=0, rows=40, pairs=70):
    rng = np.random.default_rng(seed)
    sides = [
        EmbeddingSet.of(rng.standard_normal((rows, 8)), nesting=NESTING, model="m", dataset="toy", split="test")
        for _ in range(2)
    ]
    rows = rng.integers(0, rows, (pairs, 2))
    rows[-5:] = rows[:5]   # judged twice
    return *sides, rows, rng.integers(0, 6, pairs)


def test_every_graded_pair_counts_once_a_line_those_of_grade_0_too():
    stats = pytest.importorskip("scipy.stats")
    one, other, rows, grades = made()
    assert 0 in grades
    found = sts(one, other, Relevance.of(rows, grades))
    assert (found.model, found.dataset, found.split, found.pairs, found.dims) == ("m", "toy", "test", 70, (2, 4, 8))
    for dim, ranked, linear in zip(found.dims, found.spearman, found.pearson, strict=True):
        left, right = (truncate(side.vectors.astype(np.float64), dim) for side in (one, other))
        alike = (left[rows[:, 0]] * right[rows[:, 1]]).sum(axis=1)
        assert ranked == pytest.approx(stats.spearmanr(alike, grades)[0], abs=1e-12)
        assert linear == pytest.approx(stats.pearsonr(alike, grades)[0], abs=1e-12)


def test_sides_may_change_places_and_lengths_do_not_matter():
    one, other, rows, grades = made(1)
    relevance = Relevance.of(rows, grades)
    longer = EmbeddingSet.of(one.vectors * np.linspace(1, 9, 40)[:, None], nesting=NESTING)
    there, back = sts(longer, other, relevance, dims=[3, 8]), sts(other, one, relevance.reversed, dims=[3, 8])
    assert there.spearman == pytest.approx(back.spearman) and there.pearson == pytest.approx(back.pearson)


def test_what_cannot_be_told_is_named():
    one, other, rows, grades = made(2)
    with pytest.raises(InputError, match=r"different grades.*70 pairs of grade 1"):
        sts(one, other, Relevance.of(rows))
    with pytest.raises(InputError, match="among 40 queries and 3 candidates"):
        sts(one, EmbeddingSet.of(np.ones((3, 8))), Relevance.of(rows, grades))
    with pytest.raises(InputError, match="0 pairs"):
        sts(one, other, Relevance.of(rows[:0], grades[:0]))
    with pytest.raises(EmbeddingsError, match="same number of columns"):
        sts(one, EmbeddingSet.of(np.ones((40, 9))), Relevance.of(rows, grades))
    with pytest.raises(InputError, match="a result to show"):
        table([])


def test_models_on_the_same_pairs_stand_side_by_side():
    a, b = (Sts(name, "toy", "test", 70, (2, 4), (0.5, 0.25), (0.125, 1.0)) for name in "ab")
    assert table([a, b], markdown=True).splitlines() == [
        "**toy / test: 70 graded pairs**", "",
        "| dim | a Spearman | a Pearson | b Spearman | b Pearson |", "| ---: | ---: | ---: | ---: | ---: |",
        "| 2 | 50.0 | 12.5 | 50.0 | 12.5 |", "| 4 | 25.0 | 100.0 | 25.0 | 100.0 |",
    ]  # fmt: skip
