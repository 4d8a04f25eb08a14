"""Hits: the same values as arrays, as objects, as dicts and as a frame; payloads equal to those that get returns."""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import Index, Plan
from matryo.errors import IndexFolderError, MissingExtra
from matryo.retrieve import Hit, Hits

RANDOM = np.random.default_rng(5)
VECTORS = (RANDOM.normal(size=(90, 8)) * np.linspace(2, 0.3, 8)).astype(np.float32)
QUERIES = RANDOM.normal(size=(7, 8)).astype(np.float32)
PAYLOAD: list[dict[str, Any]] = [{"n": row, "deep": {"x": [row]}} if row % 3 else {} for row in range(90)]


@pytest.fixture(params=["str", "int"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Rows in a segment, rows in SQLite, and deleted rows of both."""
    with Index.create(tmp_path / "idx", nesting=[2, 4, 8], metric="l2") as made:
        ids = [f"d{row}" for row in range(90)] if request.param == "str" else list(range(100, 190))
        made.add(VECTORS[:60], ids[:60], PAYLOAD[:60])
        made.compact()
        made.add(VECTORS[60:], ids[60:], PAYLOAD[60:])
        made.delete([ids[3], ids[77]])
        yield made


@pytest.mark.parametrize("k", [1, 10, 88, 100])
@pytest.mark.parametrize("plan", [None, Plan.adaptive(2, 8, keep=100, k=100)])
def test_every_form_has_the_same_hits(index: Index, k: int, plan: Plan | None) -> None:
    hits, plain = index.search(QUERIES, k, plan, payload=True), index.search(QUERIES, k, plan)
    assert plain.payloads is None
    np.testing.assert_array_equal(hits.ids, plain.ids)
    np.testing.assert_array_equal(hits.scores, plain.scores)
    assert len(hits) == len(list(hits)) == 7
    for row, found in enumerate(hits):
        count = min(k, 88)
        ids = hits.ids[row, :count].tolist()
        assert len(found) == count
        assert [hit.id for hit in found] == [id for id, _, _ in found] == ids
        assert np.float32([hit.score for hit in found]).tolist() == hits.scores[row, :count].tolist()
        assert [hit.payload for hit in found] == index.get(ids)[1]
        assert hits.payloads is not None
        assert hits.payloads[row] == [*(hit.payload for hit in found), *[None] * (k - count)]
        assert hits[row] == found
        assert plain[row] == [Hit(id, score) for id, score, _ in found]
    assert hits[-1] == hits[6]
    assert [hit.id for hit in hits[2:4][1]] == [hit.id for hit in hits[3]]
    assert hits[2:4].to_dicts() == hits.to_dicts()[2:4]
    with pytest.raises(IndexError):
        hits[7]
    dicts = hits.to_dicts()
    assert json.loads(json.dumps(dicts)) == dicts == [[hit._asdict() for hit in found] for found in hits]
    assert plain.to_dicts() == [[{"id": hit.id, "score": hit.score} for hit in found] for found in plain]


def test_unused_places_are_no_hits(index: Index) -> None:
    hits = index.search(QUERIES, 95, payload=True)
    assert hits.ids.shape == hits.scores.shape == (7, 95)
    assert set(hits.ids[:, 88:].ravel().tolist()) <= {"", -1}
    assert np.isneginf(hits.scores[:, 88:]).all()
    assert np.isfinite(hits.scores[:, :88]).all()
    none = index.search(QUERIES, 3, where={"n": -1}, payload=True)
    assert [list(found) for found in none] == [[]] * 7
    assert none.payloads == [[None] * 3] * 7


def test_an_empty_index_has_no_hits(tmp_path: Path) -> None:
    with Index.create(tmp_path / "idx", nesting=[8]) as index:
        hits = index.search(QUERIES, 3, payload=True)
        assert [list(found) for found in hits] == [[]] * 7
        assert hits.to_dicts() == [[]] * 7
        assert hits.payloads == [[None] * 3] * 7


def test_a_frame_has_a_row_per_hit(index: Index) -> None:
    pandas = pytest.importorskip("pandas")
    hits = index.search(QUERIES, 95, payload=True)
    frame = hits.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns)[:4] == ["query", "rank", "id", "score"]
    assert set(frame.columns[4:]) == {"n", "deep"}
    rows = [(query, rank, hit) for query, found in enumerate(hits) for rank, hit in enumerate(found, start=1)]
    assert frame[["query", "rank"]].to_numpy().tolist() == [[query, rank] for query, rank, _ in rows]
    assert frame["id"].tolist() == [hit.id for *_, hit in rows]
    assert frame["score"].to_numpy().tolist() == hits.scores[np.isfinite(hits.scores)].tolist()
    for (*_, hit), n, deep in zip(rows, frame["n"], frame["deep"], strict=True):
        assert hit.payload is not None
        assert (hit.payload.get("n"), hit.payload.get("deep")) == (None if pandas.isna(n) else n, deep or None)
    assert list(index.search(QUERIES, 3).to_frame().columns) == ["query", "rank", "id", "score"]
    assert len(index.search(QUERIES, 3, where={"n": -1}, payload=True).to_frame()) == 0


def test_payload_fields_with_the_name_of_a_column() -> None:
    pytest.importorskip("pandas")
    payload = {"id": 1, "score": 2, "rank": 3, "query": 4, "payload.id": 5, "x": 6}
    frame = Hits(np.array([[7]]), np.ones((1, 1), np.float32), [[payload]]).to_frame()
    assert frame.iloc[0].to_dict() == {
        "query": 0, "rank": 1, "id": 7, "score": 1.0, "payload.id": 1, "payload.score": 2, "payload.rank": 3,
        "payload.query": 4, "payload.payload.id": 5, "x": 6,
    }  # fmt: skip


def test_a_frame_needs_pandas(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"this needs pandas: pip install 'matryo\[frames\]'"):
        index.search(QUERIES, 3).to_frame()


def test_payloads_are_objects_of_their_own(index: Index) -> None:
    hits = index.search(np.stack([VECTORS[1], VECTORS[1]]), 1, payload=True)
    first, second = hits[0][0].payload, hits[1][0].payload
    assert first is not None
    first["n"] = "changed"
    assert second == PAYLOAD[1]


def test_a_damaged_payload_is_an_error(index: Index) -> None:
    database = sqlite3.connect(index.path / "index.sqlite")
    database.execute("UPDATE items SET payload = '{\"n\": 2}' WHERE row = 1")
    database.commit()
    index.search(VECTORS[1], 1)
    with pytest.raises(IndexFolderError, match=r"index.sqlite is damaged \(got row 1, id"):
        index.search(VECTORS[1], 1, payload=True)
    database.execute("DELETE FROM items WHERE row = 2")
    database.commit()
    database.close()
    with pytest.raises(IndexFolderError, match=r"is damaged \(got no payload of row 2\)"):
        index.search(VECTORS[2], 1, payload=True)


def test_payloads_belong_to_their_hits_while_rows_are_replaced(tmp_path: Path) -> None:
    """A row that is replaced between the search and the reading of its payload is searched again."""
    Index.create(tmp_path / "idx", nesting=[2]).close()
    ids = list(range(30))

    def fill(index: Index, turn: int) -> None:
        angles = np.linspace(0, 3, 30) + 4 * turn
        rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        index.upsert(rows, ids, [{"turn": turn, "row": row} for row in range(30)])

    stop = threading.Event()

    def write() -> None:
        with Index.open(tmp_path / "idx", writable=True) as index:
            turn = 0
            while not stop.is_set():
                turn += 1
                fill(index, turn)

    with Index.open(tmp_path / "idx", writable=True) as index:
        fill(index, 0)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        with Index.open(tmp_path / "idx") as index:
            seen = set()
            for _ in range(150):
                hits = index.search([[1.0, 0.0]], 30, payload=True)
                payloads = [hit.payload or {} for hit in hits[0]]
                assert [payload["row"] for payload in payloads] == [hit.id for hit in hits[0]]
                assert len({payload["turn"] for payload in payloads}) == 1
                seen.add(payloads[0]["turn"])
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 1
