"""Evaluation against an oracle of plain loops in float64, and what is left out, clipped or refused."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from matryo.embeddings import EmbeddingSet, Head
from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.evaluation import Evaluation, evaluate, table
from matryo.nesting import Nesting

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = 6
NESTING = Nesting([2, 4, 8])


def clustered(count: int, seed: int, dim: int = 8) -> tuple[np.ndarray, np.ndarray]:
    centres = np.random.default_rng(99).standard_normal((CLASSES, dim))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    return centres[labels] + 0.8 * rng.standard_normal((count, dim)), labels


@pytest.fixture
def pair(tmp_path: Path) -> tuple[EmbeddingSet, EmbeddingSet]:
    head = Head.tied(np.random.default_rng(99).standard_normal((CLASSES, 8)), dims=NESTING.dims)
    about: dict[str, Any] = {"nesting": NESTING, "model": {"name": "m"}, "dataset": "toy"}
    x, y = clustered(120, 1)
    database = EmbeddingSet.write(tmp_path / "db", x, labels=y, split="train", **about)
    x, y = clustered(40, 2)
    queries = EmbeddingSet.write(tmp_path / "q", x, labels=y, split="test", head=head, **about)
    return database, queries


def oracle(database: EmbeddingSet, queries: EmbeddingSet, dim: int, ks: tuple[int, ...]) -> dict[str, float]:
    """Every figure at one dim, by loops."""
    x, q = np.array(database.vectors, np.float64)[:, :dim], np.array(queries.vectors, np.float64)[:, :dim]
    assert database.labels is not None
    assert queries.labels is not None
    figures: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)

    for vector, label in zip(q, queries.labels.tolist(), strict=True):
        total = sum(other == label for other in database.labels.tolist())
        if label == -1 or total == 0:
            continue
        scores = [-float(vector @ row) / float(np.linalg.norm(row) or 1) for row in x]
        order = sorted(range(len(x)), key=lambda i: (scores[i], i))
        hits = [database.labels[i] == label for i in order]
        for k in (1, 5, 10):
            note(f"top{k}", any(hits[:k]))
        for k in (5, 10, 20):
            votes = Counter(one for i in order[:k] if (one := int(database.labels[i])) != -1)
            tied = [one for one, count in votes.items() if count == max(votes.values())]   # nearest first
            note(f"knn@{k}", bool(tied) and tied[0] == label)
        for k in ks:
            note(f"p@{k}", sum(hits[:k]) / k)
            note(f"recall@{k}", sum(hits[:k]) / total)
            ranked = (sum(hits[: i + 1]) / (i + 1) for i in range(k) if hits[i])
            note(f"map@{k}", sum(ranked) / min(k, total))
        if queries.head is not None:
            logits = np.array(queries.head.weights[8], np.float64)[:, :dim] @ vector
            better = sum(value > logits[label] for value in logits)
            note("head_top1", better < 1)
            note("head_top5", better < 5)
    return {name: sum(values) / len(values) for name, values in figures.items()}


def test_every_figure_against_plain_loops(pair: tuple[EmbeddingSet, EmbeddingSet]) -> None:
    found = evaluate(*pair, ks=(1, 7, 25), progress=False)
    assert found.dims == (2, 3, 4, 6, 8)
    assert [row.trained for row in found.rows] == [True, False, True, False, True]
    assert (found.queries, found.left_out, found.database) == (40, 0, 120)
    assert (found.model, found.dataset, found.split) == ("m", "toy", "test")
    for row in found.rows:
        expected = oracle(*pair, row.dim, (1, 7, 25))
        figures = row.to_figures()
        assert {name: figures[name] for name in expected} == pytest.approx(expected)
        assert figures.keys() - expected.keys() == {"trained", "mflops"}
        assert row.mflops == pytest.approx(120 * row.dim / 1e6)
        assert row.map_at[1] == row.precision_at[1] == row.top1
    assert found.at(8).top1 > found.at(2).top1 > 1 / CLASSES   # it measures something


def test_unknown_and_absent_classes_are_left_out_and_counted(
    tmp_path: Path, pair: tuple[EmbeddingSet, EmbeddingSet]
) -> None:
    database, queries = pair
    labels = np.array(queries.labels)
    labels[:3], labels[3:5], labels[5] = -1, 1000, 7
    known = np.array(database.labels)
    known[:10] = -1   # distractors: searched, never relevant
    mixed = EmbeddingSet.write(tmp_path / "mixed", queries.vectors, labels=labels, nesting=NESTING)
    noisy = EmbeddingSet.write(tmp_path / "noisy", database.vectors, labels=known, nesting=NESTING)
    found = evaluate(noisy, mixed, ks=(10,), progress=False)
    assert (found.queries, found.left_out, found.database) == (34, 6, 120)
    for row in found.rows:
        figures = row.to_figures()
        expected = oracle(noisy, mixed, row.dim, (10,))
        assert {name: figures[name] for name in expected} == pytest.approx(expected)
        assert row.head_top1 is None


def test_the_head_is_graded_on_the_queries_used(
    tmp_path: Path, pair: tuple[EmbeddingSet, EmbeddingSet]
) -> None:
    database, queries = pair
    labels = np.array(queries.labels)
    labels[10:] = -1
    assert queries.head is not None
    about: dict[str, Any] = {"nesting": NESTING, "head": queries.head}
    few = EmbeddingSet.write(tmp_path / "few", queries.vectors, labels=labels, **about)
    right = queries.head.logits(queries.vectors[:10], 4).argmax(1) == labels[:10]
    assert evaluate(database, few, progress=False).at(4).head_top1 == pytest.approx(right.mean())


def test_a_separate_head_has_figures_at_its_dims_only(
    tmp_path: Path, pair: tuple[EmbeddingSet, EmbeddingSet]
) -> None:
    database, queries = pair
    head = Head.separate({2: np.ones((CLASSES, 2)), 8: np.eye(CLASSES, 8)})
    mine = EmbeddingSet.write(
        tmp_path / "sep", queries.vectors, labels=queries.labels, nesting=NESTING, head=head
    )
    found = evaluate(database, mine, progress=False)
    assert [row.dim for row in found.rows if row.head_top1 is not None] == [2, 8]
    right = np.asarray(queries.vectors)[:, :CLASSES].argmax(1) == queries.labels
    assert found.at(8).head_top1 == pytest.approx(right.mean())
    assert evaluate(database, mine, dims=[4], progress=False).at(4).head_top1 is None


def test_the_order_of_rows_does_not_matter(tmp_path: Path, pair: tuple[EmbeddingSet, EmbeddingSet]) -> None:
    rng = np.random.default_rng(3)
    shuffled = []
    for one in pair:
        order = rng.permutation(len(one))
        assert one.labels is not None
        shuffled.append(
            EmbeddingSet.write(
                tmp_path / one.path.name / "again", one.vectors[order], labels=one.labels[order],
                nesting=NESTING, head=one.head,
            )
        )   # fmt: skip
    again, before = evaluate(*shuffled, progress=False), evaluate(*pair, progress=False)
    for one, other in zip(again.rows, before.rows, strict=True):
        assert one.to_figures() == pytest.approx(other.to_figures())


def test_a_perfect_set_scores_one(tmp_path: Path) -> None:
    x = np.repeat(np.eye(4), 5, axis=0)
    mine = EmbeddingSet.write(tmp_path / "x", x, labels=np.repeat(np.arange(4), 5), nesting=Nesting([4]))
    row = evaluate(mine, mine.select(range(len(mine))), ks=(5, 10), progress=False).at(4)
    assert (row.top1, row.top5, row.map_at[5], row.map_at[10], row.recall_at[5], row.knn[5]) == (1,) * 6
    assert row.precision_at == {5: 1.0, 10: 0.5}


def test_which_dims(pair: tuple[EmbeddingSet, EmbeddingSet]) -> None:
    assert evaluate(*pair, interpolated=False, progress=False).dims == (2, 4, 8)
    chosen = evaluate(*pair, dims=[8, 5, 5], progress=False)
    assert [(row.dim, row.trained) for row in chosen.rows] == [(5, False), (8, True)]
    with pytest.raises(NestingError, match="must not exceed the 8"):
        evaluate(*pair, dims=[16], progress=False)
    with pytest.raises(NestingError):
        evaluate(*pair, dims=[], progress=False)
    with pytest.raises(InputError, match=r"dim was not evaluated .*got 7"):
        chosen.at(7)


def test_a_k_beyond_the_database_is_left_out(tmp_path: Path, pair: tuple[EmbeddingSet, EmbeddingSet]) -> None:
    _, queries = pair
    for count, kept in [(30, [10, 25]), (10, [10]), (4, [])]:
        x, y = clustered(count, 5)
        small = EmbeddingSet.write(tmp_path / f"{count}", x, labels=y, nesting=NESTING)
        row = evaluate(small, queries, progress=False).at(8)
        assert list(row.recall_at) == kept
        assert list(row.knn) == [k for k in (5, 10, 20) if k <= count]
        assert list(row.map_at) == list(row.precision_at) == kept
        expected = oracle(small, queries, 8, tuple(kept))
        assert (row.top1, row.top5, row.top10) == pytest.approx(
            (expected["top1"], expected["top5"], expected["top10"])
        )
    with pytest.raises(InputError, match="every k must be at least 1"):
        evaluate(*pair, ks=(0, 10), progress=False)
    assert evaluate(*pair, ks=(), progress=False).at(8).map_at == {}
    assert list(evaluate(*pair, ks=(25, 10, 10), progress=False).at(8).map_at) == [10, 25]


def test_what_cannot_be_evaluated(tmp_path: Path, pair: tuple[EmbeddingSet, EmbeddingSet]) -> None:
    database, queries = pair
    x, y = np.array(queries.vectors), np.array(queries.labels)
    bare = EmbeddingSet.write(tmp_path / "bare", x)
    with pytest.raises(EmbeddingsError, match=r"the queries must have labels .*bare.*again with labels=…"):
        evaluate(database, bare, progress=False)
    with pytest.raises(EmbeddingsError, match="the database must have labels"):
        evaluate(bare, queries, progress=False)
    thin = EmbeddingSet.write(tmp_path / "thin", x[:, :4], labels=y)
    with pytest.raises(EmbeddingsError, match=r"same number of columns \(got 8 and 4\)"):
        evaluate(database, thin, progress=False)
    for labels in (np.full(40, 77), np.full(40, -1)):
        strange = EmbeddingSet.write(tmp_path / f"strange{labels[0]}", x, labels=labels)
        with pytest.raises(EmbeddingsError, match="some queries must be of a class"):
            evaluate(database, strange, progress=False)
        with pytest.raises(EmbeddingsError, match="some queries must be of a class"):
            evaluate(strange, queries, progress=False)
    named = [
        EmbeddingSet.write(tmp_path / name, x, labels=y, classes=[f"{name}{n}" for n in range(CLASSES)])
        for name in "ab"
    ]
    with pytest.raises(EmbeddingsError, match="same list of classes"):
        evaluate(*named, progress=False)


def test_one_class_alone_is_refused_but_not_beside_unknown_ones(pair: tuple[EmbeddingSet, EmbeddingSet]) -> None:
    database, queries = pair
    alone = EmbeddingSet.of(database.vectors, labels=np.full(120, 2))
    with pytest.raises(EmbeddingsError, match=r"more than one class, .* \(got only class 2\): add vectors of other"):
        evaluate(alone, queries, progress=False)
    known = np.where(np.array(database.labels) == 2, 2, -1)
    found = evaluate(EmbeddingSet.of(database.vectors, labels=known), queries, dims=[8], progress=False)
    assert found.queries == (np.array(queries.labels) == 2).sum()
    assert 0 < found.at(8).top1 < 1
    assert found.at(8).knn[20] == 1   # unknown neighbours cast no vote


def test_vectors_that_turned_nan_are_refused(pair: tuple[EmbeddingSet, EmbeddingSet]) -> None:
    database, queries = pair
    path = database.path / "vectors.npy"
    data = bytearray(path.read_bytes())
    data[-4:] = np.float32(np.nan).tobytes()
    path.write_bytes(data)
    with pytest.raises(EmbeddingsError, match=r"every database vector must be finite.*row 119"):
        evaluate(EmbeddingSet.open(database.path), queries, progress=False)


def test_figures_are_plain_json_and_come_back(pair: tuple[EmbeddingSet, EmbeddingSet]) -> None:
    found = evaluate(*pair, progress=False)
    figures = json.loads(json.dumps(found.to_figures(), allow_nan=False))
    assert figures == found.to_figures()
    assert Evaluation.from_figures(figures) == found
    assert figures["dims"]["8"]["map@10"] == found.at(8).map_at[10]


def test_rows_stored_before_recall_and_votes_were_measured_still_read(
    pair: tuple[EmbeddingSet, EmbeddingSet],
) -> None:
    figures = evaluate(*pair, progress=False).to_figures()
    for row in figures["dims"].values():
        for name in [name for name in row if name.startswith(("recall@", "knn@"))]:
            del row[name]
    old = Evaluation.from_figures(figures)
    assert (old.at(8).recall_at, old.at(8).knn) == ({}, {})
    assert old.to_figures() == figures


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_table_of_several_models_has_the_union_of_their_dims(pair: tuple[EmbeddingSet, EmbeddingSet]) -> None:
    nested = evaluate(*pair, interpolated=False, progress=False)
    other = evaluate(*pair, dims=[3, 8], progress=False)
    _, names, titles, *rows, _ = cells(table([("nested", nested), ("other", other)], show=["1-NN"]))
    assert (names, titles) == (["nested", "other"], ["dim", "1-NN", "1-NN"])
    assert rows == [
        ["2", f"{100 * nested.at(2).top1:.1f}", "–"],
        ["3*", "–", f"{100 * other.at(3).top1:.1f}"],
        ["4", f"{100 * nested.at(4).top1:.1f}", "–"],
        ["8", f"{100 * nested.at(8).top1:.1f}", f"{100 * other.at(8).top1:.1f}"],
    ]


def test_models_of_one_dim_each_form_one_column(pair: tuple[EmbeddingSet, EmbeddingSet]) -> None:
    each = [("fixed", evaluate(*pair, dims=[dim], progress=False)) for dim in (8, 2, 4)]
    _, _, *rows = cells(table(each, show=["1-NN"]))
    assert [row[0] for row in rows] == ["2", "4", "8"]
    assert {len(row) for row in rows} == {2}
    again = cells(table([*each, each[1]], show=["1-NN"]))   # another seed: a column of its own
    assert again[1:3] == [["fixed", "fixed", "(2)"], ["dim", "1-NN", "1-NN"]]
    assert again[3][1] == again[3][2] and again[4][2] == "–"


def test_only_the_same_queries_stand_side_by_side(pair: tuple[EmbeddingSet, EmbeddingSet]) -> None:
    database, queries = pair
    runs = [evaluate(database, one, progress=False) for one in (queries, queries.select(range(9)))]
    text = table([("a", runs[0]), ("b", runs[1])])
    assert "a, toy / test: 40 queries in a database of 120" in text
    assert "b, toy / test: 9 queries in a database of 120" in text
