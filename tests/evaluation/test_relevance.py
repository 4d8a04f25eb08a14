"""What belongs together: qrels files as others write them, ids of either kind, and refusals that name the line."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation import Relevance

if TYPE_CHECKING:
    from pathlib import Path


def of_ids(*ids: object) -> EmbeddingSet:
    return EmbeddingSet.of(np.ones((len(ids), 4)), ids=list(ids))


QUERIES, CANDIDATES = of_ids("q7", "q1"), of_ids(30, 10, 20)


def test_a_file_is_read_by_the_ids_of_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    lines = "q1\t20\t2\nq7\t10\t1\nq1\t30\t0\nq1\t10\t0.5\n"
    for text in (f"query-id\tcorpus-id\tscore\n{lines}", lines, lines.replace("\n", "\r\n")):
        path.write_text(text, encoding="utf-8", newline="")
        found = Relevance.open(path, QUERIES, CANDIDATES)
        assert found.pairs.tolist() == [[0, 1], [1, 1], [1, 2]]   # grade 0 answers nothing
        assert found.grades.tolist() == [1, 0.5, 2]
        assert found.pairs.dtype == np.int64


def test_marks_and_blank_lines_are_no_judgements_and_ids_hold_any_letter(tmp_path: Path) -> None:
    path, ids = tmp_path / "qrels.tsv", ["a", "b\u2028c", "d\x85e"]
    sides = EmbeddingSet.write(tmp_path / "sides", np.eye(3), ids=ids)
    lines = [f"{one}\t{other}\t1" for one, other in pairwise(ids)]
    for mark in ("", "\ufeff"):
        for header in ("", "query-id\tcorpus-id\tscore\r\n"):
            path.write_bytes(f"{mark}{header}{lines[0]}\r\n\r\n{lines[1]}\n\n".encode())
            assert Relevance.open(path, sides, sides).pairs.tolist() == [[0, 1], [1, 2]]


def test_pairs_come_once_in_order_with_their_better_grade() -> None:
    found = Relevance.of([[2, 0], [0, 5], [0, 1], [2, 0]], [1, 3, -1, 4])
    assert found.pairs.tolist() == [[0, 5], [2, 0]]
    assert found.grades.tolist() == [3, 4]
    assert Relevance.of([[1, 1], [0, 0]]).grades.tolist() == [1, 1]
    back = found.reversed
    assert back.pairs.tolist() == [[0, 2], [5, 0]]
    assert back.grades.tolist() == [4, 3]
    assert back.reversed.pairs.tolist() == found.pairs.tolist()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("q1\t20\n", r"line 1: \['q1', '20'\]"),
        ("query-id\tcorpus-id\tscore\nq1\t20\t1\nq1\t20\thigh\n", "line 3"),
        ("query-id\tcorpus-id\tscore\nq1 20 1\n", "query-id, corpus-id and score, separated by tabs"),
        ("h\th\th\nq1\t20\tnan\n", "line 2"),
    ],
)
def test_lines_that_are_no_judgement_are_named(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "qrels.tsv").write_text(text)
    with pytest.raises(InputError, match=error):
        Relevance.open(tmp_path / "qrels.tsv", QUERIES, CANDIDATES)


def test_ids_that_nobody_has_are_named(tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    path.write_text("q1\t20\t1\nq2\t20\t1\nq3\t20\t1\n")
    with pytest.raises(EmbeddingsError, match=r"ids of the queries \(got 'q2' and 1 more.*encode all of them"):
        Relevance.open(path, QUERIES, CANDIDATES)
    path.write_text("q1\tdoc\t1\n")
    with pytest.raises(EmbeddingsError, match=r"ids of the candidates \(got 'doc'"):
        Relevance.open(path, QUERIES, CANDIDATES)
    with pytest.raises(InputError, match=r"cannot read the relevance file.*check the path"):
        Relevance.open(tmp_path / "none.tsv", QUERIES, CANDIDATES)


def test_what_is_no_list_of_pairs_is_refused() -> None:
    for pairs, grades in (([0, 1], None), ([[0, 1, 2]], None), ([[0.5, 1]], None), ([[0, 1]], [1, 2])):
        with pytest.raises(InputError, match=r"integer pairs of rows \[n, 2\], with one grade per pair"):
            Relevance.of(pairs, grades)
    for pairs in ([[2, 0]], [[0, 3]], [[-1, 0]], np.empty((0, 2), int)):
        with pytest.raises(InputError, match="among 2 queries and 3 candidates"):
            Relevance.of(pairs).check_fits(2, 3)
    Relevance.of([[1, 2]]).check_fits(2, 3)
