"""Asking dims one after the other gives what asking all would, and really computes less."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import matryo.classify.rows
from matryo import EmbeddingSet, Nesting
from matryo.classify.outcomes import NEVER
from matryo.classify.rows import Rows, read_rows
from matryo.classify.walk import ask_all, ask_until_sure
from matryo.embeddings import Head
from matryo.errors import InputError, NestingError

DIMS, CLASSES, COUNT = (2, 4, 8), 5, 60
RNG = np.random.default_rng(0)
# Whole numbers: sums are exact in float32, whatever the order, so that equal means equal.
VECTORS = RNG.integers(-3, 4, (COUNT, 8)).astype(np.float32)
WEIGHT, BIAS = RNG.integers(-2, 3, (CLASSES, 8)), RNG.integers(-2, 3, CLASSES)
LABELS = RNG.integers(0, CLASSES, COUNT)
HEADS = {
    "tied": Head.tied(WEIGHT, BIAS, dims=DIMS),
    "tied, no bias": Head.tied(WEIGHT, dims=DIMS),
    "separate": Head.separate({m: np.roll(WEIGHT[:, :m], m) for m in DIMS}, {m: BIAS + m for m in DIMS}),
}
THRESHOLDS = [(0.9, 0.7), (0.0, 0.5), (NEVER, 0.6), (0.8, NEVER), (NEVER, NEVER), (1.0, 0.0)]


def one_by_one(head: Head, thresholds: Any) -> tuple[list[int], list[int], np.ndarray]:
    """Dim, class and probabilities of each row, alone and in float64."""
    dims, said, probabilities = [], [], []
    for vector in VECTORS.astype(np.float64):
        for dim, threshold in zip(DIMS, [*thresholds, 0.0], strict=True):
            weight = head.weights[8 if head.kind == "tied" else dim][:, :dim].astype(np.float64)
            bias = head.biases.get(8 if head.kind == "tied" else dim, np.zeros(CLASSES))
            weights = np.exp((logits := weight @ vector[:dim] + bias) - logits.max())
            if weights.max() / weights.sum() >= threshold:
                break
        dims.append(dim)
        said.append(int(weights.argmax()))
        probabilities.append(weights / weights.sum())
    return dims, said, np.array(probabilities)


@pytest.fixture(params=[3, 10**6], ids=["small parts", "one part"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matryo.classify.rows, "_BATCH", 8 * request.param)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("thresholds", THRESHOLDS, ids=str)
def test_rows_are_answered_as_if_alone(name: str, thresholds: tuple[float, float]) -> None:
    head = HEADS[name]
    dims, said, probabilities = one_by_one(head, thresholds)
    by_dim = dict(head.all_logits(VECTORS))
    forms: list[tuple[Any, Head | None]] = [
        (VECTORS, head),
        (VECTORS.tolist(), head),
        (EmbeddingSet.of(VECTORS, head=head, nesting=Nesting(DIMS)), None),
        (by_dim, None),
        (np.stack(list(by_dim.values())), None),
        (list(by_dim.values()), None),
    ]
    for x, given in forms:
        found = ask_until_sure(read_rows(x, DIMS, given), np.array(thresholds), probabilities=True)
        assert found.dims.tolist() == dims
        assert found.columns.tolist() == said
        assert found.confidence == pytest.approx(probabilities.max(axis=1), rel=1e-5)
        assert found.probabilities == pytest.approx(probabilities, abs=1e-6)
    assert ask_until_sure(read_rows(VECTORS, DIMS, head), np.array(thresholds)).probabilities is None


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("name", HEADS)
def test_all_dims_are_asked_for_choosing_thresholds(name: str) -> None:
    head = HEADS[name]
    labels = np.where(np.arange(COUNT) % 7 == 0, -1, LABELS)
    found = ask_all(read_rows(VECTORS, None, head), labels)
    assert (found.dims, found.tied, found.count) == (DIMS, head.kind == "tied", (labels >= 0).sum())
    for place, dim in enumerate(DIMS):
        said = head.logits(VECTORS, dim).argmax(axis=1)
        assert found.correct[place].tolist() == (said == labels)[labels >= 0].tolist()
    reached = (float(found.confidence[0, 0]), float(found.confidence[1, 1]))   # a row that just reaches it stops
    for thresholds in [*THRESHOLDS, reached]:   # both ways of asking agree on who answers
        exits = found.exits(np.array(thresholds))
        answered = ask_until_sure(read_rows(VECTORS, None, head), np.array(thresholds)).dims[labels >= 0]
        assert np.array(DIMS)[exits].tolist() == answered.tolist()


@pytest.mark.parametrize("name", HEADS)
def test_what_comes_after_the_answer_is_not_even_looked_at(name: str) -> None:
    head, thresholds = HEADS[name], np.array([0.9, 0.7])
    before = ask_until_sure(read_rows(VECTORS, None, head), thresholds)
    assert len(np.unique(before.dims)) == 3
    poisoned = VECTORS.copy()
    poisoned[np.arange(8) >= before.dims[:, None]] = np.nan   # any use of it would be an error
    after = ask_until_sure(read_rows(poisoned, None, head), thresholds)
    assert after.columns.tolist() == before.columns.tolist()
    assert after.dims.tolist() == before.dims.tolist()


def columns_read(head: Head, thresholds: Any) -> int:
    """How many numbers of the vectors were multiplied."""
    rows, read = read_rows(VECTORS, None, head), 0
    done = 0

    class Watched:
        def __init__(self, part: slice) -> None:
            self.batch = rows.batch(part)

        def __call__(self, dim: int, unsure: np.ndarray) -> np.ndarray:
            nonlocal read, done
            read += len(unsure) * (dim - done)
            done = dim if head.kind == "tied" else 0
            return self.batch(dim, unsure)

    ask_until_sure(Rows(rows.dims, rows.count, rows.classes, Watched, rows.tied), np.array(thresholds))
    return read


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("thresholds", THRESHOLDS, ids=str)
def test_the_cost_that_is_reported_is_the_cost_that_is_paid(name: str, thresholds: tuple[float, float]) -> None:
    rows = read_rows(VECTORS, None, HEADS[name])
    reported = ask_all(rows, LABELS).measure(np.array(thresholds)).cumulative_dim
    assert columns_read(HEADS[name], thresholds) / COUNT == pytest.approx(reported)


def test_no_rows_give_no_answers() -> None:
    found = ask_until_sure(read_rows(VECTORS[:0], None, HEADS["tied"]), np.array([0.5, 0.5]))
    assert found.columns.shape == found.dims.shape == (0,)


def test_what_cannot_be_read() -> None:
    head, logits = HEADS["separate"], np.zeros((3, COUNT, CLASSES))
    with pytest.raises(InputError, match=r"these embeddings must hold the head .*memory without one.*matryo encode"):
        read_rows(EmbeddingSet.of(VECTORS), None, None)
    with pytest.raises(InputError, match=r"needs logits by dim .* or a head .*got an array of shape \(60, 8\)"):
        read_rows(VECTORS, None, None)
    with pytest.raises(NestingError, match=r"every dim of the cascade.*\(got none for 16\)"):
        read_rows({2: logits[0], 4: logits[0]}, (2, 16), None)
    with pytest.raises(NestingError, match=r"as many dims as logits \(got logits at 3 dims, 2 dims\)"):
        read_rows(logits, (2, 4), None)
    with pytest.raises(NestingError, match=r"logits at 3 dims, no dims\): list the dims"):
        read_rows(logits, None, None)
    with pytest.raises(NestingError, match="increasing order"):
        read_rows(logits, (4, 2, 8), None)
    with pytest.raises(InputError, match=r"of the same rows .*got \(59, 5\), \(60, 5\)"):
        read_rows({2: logits[0], 4: logits[0][:-1]}, None, None)
    with pytest.raises(InputError, match="at least two classes"):
        read_rows({2: logits[0][:, :1]}, None, None)
    with pytest.raises(NestingError, match=r"only at its own dims \(got 3\): choose from 2, 4, 8"):
        read_rows(VECTORS, (2, 3), head)
    with pytest.raises(NestingError, match="must not exceed the 8"):
        read_rows(VECTORS, (2, 16), HEADS["tied"])
    with pytest.raises(InputError, match=r"at least 8 columns, which the head reads \(got shape \(60, 4\)\)"):
        read_rows(VECTORS[:, :4], None, head)
    with pytest.raises(InputError, match=r"got shape \(8,\)"):
        read_rows(VECTORS[0], None, head)
    with pytest.raises(InputError, match=r"must be real numbers \(got <U1\)"):
        read_rows([["a", "b"]], None, head)
    with pytest.raises(InputError, match=r"logits and vectors must be .* lists of equal length"):
        read_rows([[1, 2], [1]], None, head)


def test_a_tied_head_answers_between_its_dims_and_at_fewer() -> None:
    for dims in [(3, 5), (8,), (1, 2, 3, 4, 5, 6, 7, 8)]:
        found = ask_all(read_rows(VECTORS, dims, HEADS["tied"]), LABELS)
        for place, dim in enumerate(dims):
            said = HEADS["tied"].logits(VECTORS, dim).argmax(axis=1)
            assert found.correct[place].tolist() == (said == LABELS).tolist()


def test_wider_vectors_than_the_head_reads() -> None:
    wide = np.concatenate([VECTORS, np.full((COUNT, 3), np.nan, np.float32)], axis=1)
    for head in HEADS.values():
        one, other = (ask_all(read_rows(x, None, head), LABELS) for x in (VECTORS, wide))
        assert (one.confidence == other.confidence).all()
