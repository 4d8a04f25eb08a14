"""The walk of docs/engines.md, on a real PostgreSQL table that matryo did not make."""

import re
import shlex
from pathlib import Path

import engine_urls
import numpy as np
import pytest

from matryo import engines
from matryo.cli import main
from matryo.errors import EngineError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "engines.md"
GIVEN = "postgresql://me@localhost/shop"


@pytest.fixture(scope="module")
def table():
    """The table of the page: a primary key, vectors, and columns of the user's own."""
    place = engine_urls.url("postgresql")
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(400, 512)) * np.linspace(2, 0.02, 512)).astype(np.float32)
    with engines.open(place, table="docs") as made:
        session = made._session
        session.run("CREATE TABLE docs (id int PRIMARY KEY, year int, lang text, meta jsonb, day date, "
                    "embedding vector(512))")
        rows = ", ".join(f"({row}, {2000 + row % 25}, '{'en' if row % 3 else 'de'}', '{{\"x\": {row}}}', "
                         f"'2024-01-{1 + row % 28:02}', '{vector.tolist()}')" for row, vector in enumerate(vectors))
        session.run(f"INSERT INTO docs VALUES {rows}, (5000, 1, 'en', NULL, NULL, NULL)")
        yield place, vectors, session
        session.run("DROP TABLE docs")


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def here(text, place):
    """The URL of the page, in a block, as that of the server."""
    return text.replace(f"{GIVEN}?", f"{place}&").replace(GIVEN, place)


def test_the_walk(table, tmp_path, monkeypatch, capsys):
    place, vectors, session = table
    monkeypatch.chdir(tmp_path)
    np.save("queries.npy", vectors[:60] + np.random.default_rng(1).normal(size=(60, 512)).astype("f4") * 0.05)
    commands = [shlex.split(here(text.replace("\\\n", " "), place))[1:] for text in blocks("sh")[:3]]
    assert main(commands[0]) == 0
    out = capsys.readouterr().out
    assert "nothing was built" in out
    assert "CREATE INDEX CONCURRENTLY" in out
    with engines.open(place, table="docs") as docs:
        assert (docs.count, docs.prepared(), docs.metric) == (400, [], "cosine")
    assert main([*commands[1], "--recall", "0.9", "--quiet"]) == 0   # 0.99 needs more queries than a test has time for
    assert "recall@10 ≥ 90%" in capsys.readouterr().out
    assert main(commands[2]) == 0
    (python, _) = blocks("python")
    quick = "recall=0.9, queries=__import__('numpy').load('queries.npy')"
    exec(compile(here(python, place).replace("recall=0.99", quick), "engines.md", "exec"), {"__name__": "walk"})
    assert "SELECT" in capsys.readouterr().out
    assert main(["engines", "drop", f"{place}&table=docs"]) == 0
    left = session.rows("SELECT indexname FROM pg_indexes WHERE tablename = 'docs'")
    assert left == [("docs_pkey",)]
    assert session.rows("SELECT count(*) FROM docs") == [(401,)]


def test_the_statement_of_the_page_uses_the_index(table):
    place, vectors, session = table
    (statement,) = [text for text in blocks("sql") if "shortlist" in text]
    with engines.open(place, table="docs", metric="cosine") as docs:
        docs.prepare(64)
        query = statement.partition(";")[2].replace("$1", f"'{vectors[7].tolist()}'")
        session.run("SET enable_seqscan = off")   # with so few rows a scan would be cheaper
        plan = "\n".join(line for (line,) in session.rows(f"EXPLAIN {query.strip()}"))
        assert "matryo_" in plan
        assert session.rows(query.strip())[0][0] == 7
        session.run("RESET enable_seqscan")
        docs.drop()


@pytest.mark.parametrize(("where", "matches"), [
    ({"year": {"$gte": 2020}}, lambda row: row % 25 >= 20),
    ({"lang": "de"}, lambda row: row % 3 == 0),
    ({"lang": {"$in": ["de", 7]}, "meta.x": {"$lt": 100}}, lambda row: row % 3 == 0 and row < 100),
    ({"day": {"$gt": "2024-01-20"}}, lambda row: row % 28 >= 20),
    ({"day": {"$exists": True}}, lambda _: True),
    ({"meta": None}, lambda _: False),
])
def test_fields_are_columns(table, where, matches):
    place, vectors, _ = table
    rows = [row for row in range(400) if matches(row)]
    with engines.open(place, table="docs") as docs:
        for queries in (vectors[:2], vectors[:9]):
            hits = docs.search(queries, 5, where=where)
            unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            for query, found in zip(queries, hits.ids.tolist(), strict=True):
                best = sorted(rows, key=lambda row: -float(unit[row] @ query))[:5]
                assert found == best + [-1] * (5 - len(best))


def test_a_user_who_may_only_read_can_search(table):
    place, vectors, session = table
    session.run("CREATE ROLE reader LOGIN PASSWORD 'long secret'; GRANT SELECT ON docs TO reader; "
                "REVOKE TEMP ON DATABASE postgres FROM PUBLIC")
    try:
        mine = place.replace("postgres:@", "reader:long%20secret@")
        assert mine != place
        with engines.open(mine, table="docs") as docs:
            assert "an unknown time" in str(docs.work(64))
            assert docs.search(vectors[3:4], 1).ids.tolist() == [[3]]
            assert "secret" not in repr(docs)
            with pytest.raises(EngineError, match="must be owner") as caught:
                docs.prepare(64)
            assert "secret" not in str(caught.value)
    finally:
        session.run("GRANT TEMP ON DATABASE postgres TO PUBLIC; REVOKE ALL ON docs FROM reader; DROP ROLE reader")


def test_an_unknown_field_and_an_unasked_load_are_refused(table):
    place, vectors, _ = table
    with engines.open(place, table="docs") as docs:
        with pytest.raises(ValueError, match="no column for the field 'colour'"):
            docs.search(vectors[:1], 3, where={"colour": 1})
        with pytest.raises(ValueError, match="into_existing"):
            docs.load(vectors[:2])
        with pytest.raises(ValueError, match="not made by matryo"):
            docs.drop(table=True)
        assert docs.load(vectors[:2], ids=[9001, 9002], into_existing=True) == 2
        docs._session.run("DELETE FROM docs WHERE id > 9000")
