"""The stream against plain loops in float64, and how streams are drawn, grouped and refused."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest

from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.evaluation.protocols.stream import Stream, _draw, _tail_below, stream
from matryo.nesting import Nesting

DIM = 8
NOVEL = (2, 7)
quiet = partial(stream, progress=False)


def made(labels: Any, seed: int, noise: float = 0.8, **about: Any) -> EmbeddingSet:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.asarray(labels))
    centres = np.random.default_rng(99).standard_normal((100, DIM))
    vectors = centres[labels] + noise * rng.standard_normal((len(labels), DIM))
    vectors *= rng.uniform(0.5, 2, (len(labels), 1))
    return EmbeddingSet.of(vectors, labels=labels, nesting=Nesting([2, 8]), **about)


def pair(**about: Any) -> tuple[EmbeddingSet, EmbeddingSet]:
    """A database of classes 0, 1, 4, 5 and 7 (which is novel all the same), queries of these and of 2."""
    return made(np.repeat([0, 1, 4, 5, 7], 6), 1), made(np.repeat([0, 1, 2, 4, 7], [20, 18, 17, 20, 20]), 2, **about)


def unit(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / np.linalg.norm(vector))


def naive(database: EmbeddingSet, queries: EmbeddingSet, rows: list[int], dim: int, tail_below: int) -> dict[str, Any]:
    """One stream, one example at a time, with lists of all that each class has learned."""
    assert database.labels is not None
    assert queries.labels is not None
    learned: dict[int, list[np.ndarray]] = {}
    for vector, label in zip(np.asarray(database.vectors, np.float64), database.labels.tolist(), strict=True):
        if label >= 0 and label not in NOVEL:
            learned.setdefault(label, []).append(unit(vector[:dim]))
    known, right = set(learned), {}
    for row in rows:
        vector, label = unit(np.asarray(queries.vectors, np.float64)[row, :dim]), int(queries.labels[row])
        said = max(learned, key=lambda one: unit(np.mean(learned[one], axis=0)) @ vector)
        right.setdefault(label, []).append(said == label)
        learned.setdefault(label, []).append(vector)
    groups: dict[str, list[float]] = {}
    for label, answers in right.items():
        kind = "pretrain" if label in known else "novel"
        side = "tail" if len(answers) < tail_below else "head"
        for group in (f"{kind}-{side}", "mean per class"):
            groups.setdefault(group, []).append(float(np.mean(answers)))
    overall = [answer for answers in right.values() for answer in answers]
    return {"overall": np.mean(overall)} | {group: np.mean(values) for group, values in groups.items()}


@pytest.mark.parametrize("tail_below", [1, 9, 12])
def test_against_plain_loops(tail_below: int) -> None:
    database, queries = pair()
    found = quiet(database, queries, novel=NOVEL, draws=4, tail_below=tail_below, zipf=0.7, seed=3)
    rng = np.random.default_rng(3)
    places = np.searchsorted([0, 1, 2, 4, 5, 7], np.asarray(queries.labels))
    drawn = [_draw(places, 0.7, rng) for _ in range(4)]
    assert found.length == round(np.mean([len(rows) for rows in drawn]))
    for at, dim in enumerate(found.dims):
        each = [naive(database, queries, rows.tolist(), dim, tail_below) for rows in drawn]
        for group, accuracy, sd in zip(found.groups, found.accuracy, found.sd, strict=True):
            values = [one[group] for one in each if group in one]
            assert accuracy[at] == (pytest.approx(np.mean(values)) if values else None), group
            assert sd[at] == (pytest.approx(np.std(values, ddof=1)) if len(values) > 1 else None), group
    assert found.groups == (
        "pretrain-head", "novel-head", "pretrain-tail", "novel-tail", "mean per class", "overall",
    )   # fmt: skip


def test_the_database_teaches_known_classes_only() -> None:
    database, queries = pair()
    labels = np.asarray(database.labels)
    # Class 7 is novel, −1 is nobody: neither vectors nor their absence may matter.
    without = database.select(labels != 7)
    extra = made(np.repeat([0, 1, 4, 5, 7], 6), 1).select(labels == 7)
    unknown = EmbeddingSet.of(
        np.concatenate([without.vectors, extra.vectors]), labels=np.append(np.asarray(without.labels), [-1] * 6)
    )
    expected = quiet(database, queries, novel=NOVEL)
    assert quiet(without, queries, novel=NOVEL) == expected
    assert quiet(unknown, queries, novel=NOVEL).accuracy == expected.accuracy
    # With nothing new, the groups of the new have no figure.
    old = quiet(database, queries.select(np.asarray(queries.labels) != 2), novel=())
    assert [group for group, row in zip(old.groups, old.accuracy, strict=True) if row[0] is None] == [
        "novel-head", "novel-tail",
    ]   # fmt: skip


def test_batches_of_the_database_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    database, queries = pair()
    expected = quiet(database, queries, novel=NOVEL)
    monkeypatch.setattr("matryo.embeddings.set._BATCH_BYTES", 7 * 4 * DIM)
    assert quiet(database, queries, novel=NOVEL).accuracy == expected.accuracy


def test_nobody_is_known_the_first_time() -> None:
    # Perfect vectors: only the first example of each novel class is wrong.
    x, labels = np.eye(4), np.repeat(np.arange(4), 10)
    database = EmbeddingSet.of(x[:2], labels=[0, 1])
    queries = EmbeddingSet.of(x[labels], labels=labels)
    found = quiet(database, queries, novel=[2, 3], zipf=0, dims=[4], tail_below=5)
    assert found.length == 40
    by_group = dict(zip(found.groups, (row[0] for row in found.accuracy), strict=True))
    assert by_group == {
        "pretrain-head": 1.0, "novel-head": 0.9, "pretrain-tail": None, "novel-tail": None,
        "mean per class": pytest.approx(0.95), "overall": pytest.approx(0.95),
    }   # fmt: skip
    nothing = quiet(EmbeddingSet.of(x[:1], labels=[-1]), queries, novel=range(4), zipf=0, dims=[4])
    assert nothing.accuracy[-1] == (pytest.approx(0.9),)   # even the class with the smallest label


def test_a_stream_is_long_tailed_and_without_replacement() -> None:
    asked = np.repeat(np.arange(20), 100)
    rng = np.random.default_rng(0)
    for zipf in (0.0, 0.5, 1.0):
        rows = _draw(asked, zipf, rng)
        assert len(set(rows.tolist())) == len(rows)
        counts = np.sort(np.bincount(asked[rows], minlength=20))[::-1]
        np.testing.assert_array_equal(counts, [max(1, round(100 / rank**zipf)) for rank in range(1, 21)])
    assert not np.array_equal(np.sort(asked[rows]), asked[rows])   # classes come mixed
    largest = {int(np.bincount(asked[_draw(asked, 1.0, rng)]).argmax()) for _ in range(60)}
    assert len(largest) > 10   # any class may be the frequent one
    # A class sends no more than it has; unknown ones send nothing.
    small = np.concatenate([asked, [20, 20], np.full(50, -1)])
    rows = _draw(small, 0.0, rng)
    assert np.bincount(small[rows])[20] == 2
    assert small[rows].min() == 0


def test_by_default_the_rarest_class_has_examples_to_learn_from() -> None:
    for each, classes in [(50, 200), (500, 200), (5, 30), (1, 9), (4000, 10)]:
        asked = np.repeat(np.arange(classes), each)
        counts = np.bincount(asked[_draw(asked, None, np.random.default_rng(0))])
        assert counts.max() == each
        assert counts.min() == (min(each, 5) if each < 4000 else 400)   # 4000 / 10: never steeper than 1 / r


def test_where_the_tail_begins() -> None:
    assert _tail_below(np.array([0, 60, 50, 3, 1])) == 50
    assert _tail_below(np.append(60, np.full(30, 7))) == 7   # one in 31 is too few
    assert _tail_below(np.array([1, 1, 1, 0])) == 2
    database, queries = pair()
    assert quiet(database, queries, novel=NOVEL, tail_below=4).tail_below == 4
    assert 2 <= quiet(database, queries, novel=NOVEL).tail_below <= 20


def test_the_seed_decides() -> None:
    one, again, other = (quiet(*pair(), novel=NOVEL, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one.accuracy != other.accuracy
    assert quiet(*pair(), novel=NOVEL, draws=1).sd[-1] == (None, None)


def test_what_cannot_be_streamed() -> None:
    database, queries = pair()
    with pytest.raises(EmbeddingsError, match="the queries must have labels"):
        quiet(database, EmbeddingSet.of(queries.vectors), novel=[])
    with pytest.raises(EmbeddingsError, match="same number of columns"):
        quiet(database, EmbeddingSet.of(np.ones((2, 3)), labels=[0, 1]), novel=[])
    with pytest.raises(NestingError, match="must not exceed the 8"):
        quiet(database, queries, novel=NOVEL, dims=[16])
    with pytest.raises(InputError, match=r"novel classes must occur in the queries \(got \[5, 66\]\): list classes"):
        quiet(database, queries, novel=[2, 5, 66])
    with pytest.raises(InputError, match=r"in the database or in novel \(got 1 in neither, such as 2\): add"):
        quiet(database, queries, novel=[7])
    alone = EmbeddingSet.of(np.ones((3, DIM)), labels=[1, 1, 1])
    with pytest.raises(EmbeddingsError, match=r"at least two classes \(got 1 classes in the queries, 1"):
        quiet(alone, alone, novel=[])
    for options in ({"draws": 0}, {"tail_below": 0}, {"zipf": -1.0}, {"zipf": float("nan")}):
        with pytest.raises(InputError, match="draws and tail_below must be at least 1"):
            quiet(database, queries, novel=NOVEL, **options)
    for side, role in ((1, "queries"), (0, "database")):
        broken = pair()
        broken[side].vectors[4, 0] = np.nan
        with pytest.raises(EmbeddingsError, match=rf"every vector of the {role} must be finite.* row 4\)"):
            quiet(*broken, novel=NOVEL)


def test_the_result_is_plain_json_and_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    found = stream(*pair(model="m", dataset="toy", split="test"), novel=NOVEL, tail_below=1)
    assert (found.model, found.dataset, found.split, found.draws) == ("m", "toy", "test", 5)
    assert Stream.from_figures(json.loads(json.dumps(found.to_figures(), allow_nan=False))) == found
    assert capsys.readouterr().err.strip() == ""   # done within two seconds, so no bar was shown
