"""Pairs against plain loops in float64 and scikit-learn; and what must hold however the rows are ordered."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.evaluation import PAIR_METRICS, Pairs, Relevance, pairs, table
from matryo.nesting import Nesting

NESTING = Nesting([2, 4, 8])


def made(seed: int = 0, queries: int = 25, candidates: int = 40) -> tuple[EmbeddingSet, EmbeddingSet, Relevance]:
    """Candidates near their queries, with grades; some queries and candidates belong to nothing."""
    rng = np.random.default_rng(seed)
    asked = rng.standard_normal((queries, 8))
    owner = rng.integers(0, queries - 3, candidates)   # the last three queries have no candidate
    known = asked[owner] + 0.8 * rng.standard_normal((candidates, 8))
    grades = rng.integers(0, 4, candidates)   # of grade 0: it answers nothing
    about = {"nesting": NESTING, "model": "m", "dataset": "toy", "split": "test"}
    ids = [f"d{row:02}" for row in range(candidates)]
    rows = np.stack([owner, np.arange(candidates)], axis=1)
    extra = np.array([[0, candidates - 1], [1, candidates - 1]])   # a candidate of several queries
    relevance = Relevance.of(np.r_[rows, extra], np.r_[grades, 1, 2])
    return EmbeddingSet.of(asked, **about), EmbeddingSet.of(known, ids=ids), relevance


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(x @ y) / float(np.linalg.norm(x) * np.linalg.norm(y))


def by_loops(
    asking: EmbeddingSet, known: EmbeddingSet, graded: dict[tuple[int, int], float], dim: int, k: int
) -> dict[str, float]:
    """Each metric, one query after the other."""
    sums, asked = dict.fromkeys(PAIR_METRICS, 0.0), sorted({i for i, _ in graded})
    for i in asked:
        scores = [cosine(asking.vectors[i, :dim], row[:dim]) for row in known.vectors]
        order = sorted(range(len(scores)), key=lambda j: (-scores[j], str(known.ids[j])))
        grades = [graded.get((i, j), 0.0) for j in order]
        best = sorted((grade for (query, _), grade in graded.items() if query == i), reverse=True)

        def dcg(values: list[float]) -> float:
            return sum(value / math.log2(place + 2) for place, value in enumerate(values[:k]))

        found = [place for place, grade in enumerate(grades[:k]) if grade > 0]
        sums["nDCG"] += dcg(grades) / dcg(best)
        sums["hit"] += bool(found)
        sums["recall"] += len(found) / len(best)
        sums["MRR"] += 1 / (found[0] + 1) if found else 0
    return {name: value / len(asked) for name, value in sums.items()}


def test_both_directions_against_plain_loops() -> None:
    queries, candidates, relevance = made()
    found = pairs(queries, candidates, relevance, dims=[2, 5, 8], ks=[10, 1, 3], progress=False)
    graded = {(i, j): float(g) for (i, j), g in zip(relevance.pairs.tolist(), relevance.grades, strict=True)}
    assert (found.model, found.dataset, found.split) == ("m", "toy", "test")
    assert (found.dims, found.ks, found.related) == ((2, 5, 8), (1, 3, 10), len(graded))
    assert found.counts == (25, 40)
    assert found.asked == (len({i for i, _ in graded}), len({j for _, j in graded}))
    for place, dim in enumerate(found.dims):
        for k in found.ks:
            forth = by_loops(queries, candidates, graded, dim, k)
            back = by_loops(candidates, queries, {(j, i): g for (i, j), g in graded.items()}, dim, k)
            for name in PAIR_METRICS:
                assert found.at(name, k)[place] == pytest.approx(forth[name]), (name, dim, k)
                assert found.at(name, k, direction=1)[place] == pytest.approx(back[name]), (name, dim, k)


def test_ndcg_is_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    queries, candidates, relevance = made(seed=3)
    found = pairs(queries, candidates, relevance, ks=[10], progress=False)
    truth = np.zeros((25, 40))
    truth[relevance.pairs[:, 0], relevance.pairs[:, 1]] = relevance.grades
    rows = truth.any(axis=1)
    for place, dim in enumerate(found.dims):
        x, y = queries.at(dim), candidates.at(dim)
        assert found.at("nDCG", 10)[place] == pytest.approx(metrics.ndcg_score(truth[rows], x[rows] @ y.T, k=10))


def test_the_order_of_the_rows_does_not_matter() -> None:
    queries, candidates, relevance = made(seed=1)
    # Many candidates are equally near, so that only their ids can tell them apart.
    coarse = candidates.transformed(np.sign(np.asarray(candidates.vectors)))
    before = pairs(queries, coarse, relevance, progress=False)
    order = np.random.default_rng(0).permutation(len(candidates))
    place = np.argsort(order)
    moved = Relevance.of(np.stack([relevance.pairs[:, 0], place[relevance.pairs[:, 1]]], 1), relevance.grades)
    after = pairs(queries, coarse.select(order), moved, progress=False)
    for name in PAIR_METRICS.values():
        assert np.array(getattr(after, name)) == pytest.approx(np.array(getattr(before, name)), abs=1e-12)


def test_swapping_the_sides_swaps_the_directions() -> None:
    queries, candidates, relevance = made(seed=2)
    forth = pairs(queries, candidates, relevance, dims=[2, 8], sides=("images", "texts"), progress=False)
    back = pairs(candidates, queries, relevance.reversed, dims=[2, 8], sides=("texts", "images"), progress=False)
    assert forth.directions == ("images → texts", "texts → images")
    assert back.directions == forth.directions[::-1]
    for name in PAIR_METRICS.values():
        assert getattr(forth, name) == getattr(back, name)[::-1]


def test_what_finds_itself_is_perfect_and_survives_json() -> None:
    queries, _, _ = made()
    found = pairs(queries, queries, Relevance.of(np.repeat(np.arange(25)[:, None], 2, axis=1)), progress=False)
    assert found.dims == NESTING.dims
    assert found.ks == (1, 5, 10, 100)   # beyond the 25 that there are: all of them
    for name in PAIR_METRICS.values():
        assert np.array(getattr(found, name)) == pytest.approx(np.ones((2, 3, 4)))
    assert Pairs.from_figures(json.loads(json.dumps(found.to_figures(), allow_nan=False))) == found


def test_what_cannot_be_asked() -> None:
    queries, candidates, relevance = made()
    with pytest.raises(EmbeddingsError, match=r"queries and candidates must have the same number .*got 8 and 3"):
        pairs(queries, EmbeddingSet.of(np.ones((40, 3))), relevance)
    with pytest.raises(InputError, match="among 25 queries and 5 candidates"):
        pairs(queries, candidates.select(range(5)), relevance)
    for ks in ([], [0, 5]):
        with pytest.raises(InputError, match="ks must list at least one k, each at least 1"):
            pairs(queries, candidates, relevance, ks=ks)
    with pytest.raises(NestingError, match="must not exceed the 8"):
        pairs(queries, candidates, relevance, dims=[16])
    found = pairs(queries, candidates, relevance, ks=[1, 10], progress=False)
    for metric, k in (("nDCG", 5), ("mAP", 10)):
        with pytest.raises(InputError, match=rf"got {metric}@{k}\): choose from nDCG@1, nDCG@10, hit@1"):
            found.at(metric, k)


def test_the_table_has_a_part_for_each_direction() -> None:
    queries, candidates, relevance = made()
    found = pairs(queries, candidates, relevance, sides=("images", "texts"), progress=False)
    text = table(found).splitlines()
    assert text[0] == f"m, toy / test: images → texts, {found.asked[0]} in 40, {found.related} relevant pairs"
    assert text[1].split() == ["dim", "nDCG@10", "hit@1", "hit@10"]
    cells = [found.at("nDCG", 10)[-1], found.at("hit", 1)[-1], found.at("hit", 10)[-1]]
    assert text[4].split() == ["8", *(f"{100 * cell:.1f}" for cell in cells)]
    assert text[6] == f"m, toy / test: texts → images, {found.asked[1]} in 25, {found.related} relevant pairs"
    other = Pairs.from_figures({**found.to_figures(), "model": "other", "dims": (2, 4, 6)})
    beside = table([found, other], show=["MRR@5"]).splitlines()
    assert [line.split() for line in beside[1:3]] == [["m", "other"], ["dim", "MRR@5", "MRR@5"]]
    assert beside[5].split() == ["6", "–", f"{100 * found.at('MRR', 5)[2]:.1f}"]
    assert "| dim | m recall@1 | other recall@1 |" in table([found, other], show=["recall@1"], markdown=True)
    assert table(found, show=[]).count("recall@100") == 2
    fewer = pairs(queries, candidates, Relevance.of([[0, 0]]), sides=("images", "texts"), progress=False)
    assert table([found, fewer]).count("m, toy / test") == 4   # of other pairs: not side by side
    with pytest.raises(InputError, match=r"show must name metrics \(got \['nDCG@7'\]\): choose from nDCG@1"):
        table(found, show=["nDCG@7"])
    with pytest.raises(InputError, match="there must be a result to show"):
        table([])
