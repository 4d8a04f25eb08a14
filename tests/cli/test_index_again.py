"""matryo index: a file whose rows have no ids is not added twice by mistake; --skip, --again and growth still work."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import EmbeddingSet, Index
from matryo.cli import main
from matryo.retrieve.sources import fingerprint, fingerprints

VECTORS = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", VECTORS)


def run(capsys: Capture, *words: Any) -> str:
    assert main(["index", *map(str, words)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: Capture, *words: Any) -> str:
    assert main(["index", *map(str, words)]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0].removeprefix("matryo: error: ")


def count(folder: str = "idx") -> int:
    with Index.open(folder) as index:
        index.verify()
        return len(index)


def lines_of(path: str, rows: int, **more: Any) -> str:
    text = "".join(json.dumps({"vector": VECTORS[row].tolist(), "n": row, **more}) + "\n" for row in range(rows))
    Path(path).write_text(text)
    return path


def source(kind: str) -> str:
    """A file of the ``kind`` with 50 rows and no ids."""
    if kind == "npy":
        return "a.npy"
    if kind == "jsonl":
        return lines_of("a.jsonl", 50)
    if kind == "embeddings":
        EmbeddingSet.write("emb", VECTORS)
        return "emb"
    if kind == "csv":
        np.savetxt("a.csv", VECTORS, delimiter=",")
        return "a.csv"
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"vector": VECTORS.tolist()}), "a.parquet")
    return "a.parquet"


@pytest.mark.parametrize("kind", ["npy", "jsonl", "csv", "embeddings", "parquet"])
def test_the_same_content_is_added_once(capsys: Capture, kind: str) -> None:
    path = source(kind)
    run(capsys, "idx", path)
    told = refused(capsys, "idx", path)
    assert told.startswith(f"the 50 rows of {path} are in idx already (got the content of ")
    assert told.endswith("): pass --again to add them once more, or --skip N to add only the rows after the first N")
    Path(path).rename(other := f"other{Path(path).suffix}")   # under another name too
    assert f"the 50 rows of {other} are in idx already" in refused(capsys, "idx", other, "--build")
    assert count() == 50
    run(capsys, "idx", other, "--again")
    assert count() == 100
    run(capsys, "idx", other, "--skip", 48)
    assert count() == 102
    run(capsys, "new", other)   # an index of its own
    assert count("new") == 50


def test_other_content_under_a_name_is_added(capsys: Capture) -> None:
    run(capsys, "idx", "a.npy")
    np.save("a.npy", VECTORS + 1)
    run(capsys, "idx", "a.npy")
    assert count() == 100
    assert "are in idx already" in refused(capsys, "idx", "a.npy")


def test_a_file_that_grows(capsys: Capture) -> None:
    run(capsys, "idx", lines_of("a.jsonl", 20))
    lines_of("a.jsonl", 50)
    old = len(Path("a.jsonl").read_text().split("\n", 20)[20])
    size = Path("a.jsonl").stat().st_size
    assert refused(capsys, "idx", "a.jsonl") == (
        f"a.jsonl has grown since its first 20 rows were added to idx (got {size:,} bytes, {size - old:,} before): "
        "add the new rows with --skip 20, or all of them with --again"
    )
    run(capsys, "idx", "a.jsonl", "--skip", 20)
    assert count() == 50
    with Index.open("idx") as index:
        np.testing.assert_allclose(index.get(index.ids)[0], VECTORS)
    assert "the 50 rows of a.jsonl are in idx already" in refused(capsys, "idx", "a.jsonl")
    lines_of("a.jsonl", 50, lang="en")   # other content from the first line
    run(capsys, "idx", "a.jsonl")
    assert count() == 100


def test_what_was_not_completed_may_be_resumed_and_then_counts(capsys: Capture) -> None:
    bad = VECTORS.copy()
    bad[30, 2] = np.nan
    np.save("b.npy", bad)
    told = refused(capsys, "idx", "a.npy", "b.npy")
    assert told.endswith("80 vectors in idx: resume with b.npy --skip 30")
    assert "the 50 rows of a.npy are in idx already" in refused(capsys, "idx", "a.npy", "b.npy")
    assert "b.npy, row 30" in refused(capsys, "idx", "b.npy", "--skip", 30)
    np.save("b.npy", VECTORS + 2)
    run(capsys, "idx", "b.npy", "--skip", 30)
    assert count() == 100
    assert "the 50 rows of b.npy are in idx already" in refused(capsys, "idx", "b.npy")


def test_one_content_twice_in_a_command(capsys: Capture) -> None:
    np.save("b.npy", VECTORS)
    told = refused(capsys, "idx", "a.npy", "b.npy")
    assert told == (
        "a SOURCE without ids is added once (got a.npy, b.npy): drop one, or pass --again to add its rows twice"
    )
    assert not Path("idx").exists()
    run(capsys, "idx", "a.npy", "b.npy", "--again")
    assert count() == 100


def test_ids_of_their_own_and_pipes_are_not_compared(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": f"d{row}", "vector": VECTORS[row].tolist()} for row in range(50)]
    Path("ids.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(capsys, "named", "ids.jsonl")
    told = refused(capsys, "named", "ids.jsonl")
    assert "ids must be new (got 'd0', which exists): use upsert (--upsert) to replace rows" in told
    run(capsys, "named", "ids.jsonl", "--upsert")
    assert count("named") == 50
    Path("ids.txt").write_text("".join(f"x{row}\n" for row in range(50)))
    run(capsys, "given", "a.npy", "--ids", "ids.txt")
    assert "ids must be new" in refused(capsys, "given", "a.npy", "--ids", "ids.txt")
    for _ in range(2):
        stream = io.BytesIO(Path(lines_of("a.jsonl", 50)).read_bytes())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
        run(capsys, "piped", "-")
    assert count("piped") == 100
    run(capsys, "copy", "piped")
    assert "ids must be new" in refused(capsys, "copy", "piped")


def test_a_copy_and_a_backup_know_what_they_hold(capsys: Capture) -> None:
    run(capsys, "idx", "a.npy")
    run(capsys, "idx", "--backup", "saved")
    assert "the 50 rows of a.npy are in saved already" in refused(capsys, "saved", "a.npy")
    run(capsys, "idx", "--compact", "--verify")
    assert "are in idx already" in refused(capsys, "idx", "a.npy")


def test_fingerprints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte of a small file counts; of a large one, the size, the beginning, the end and parts between."""
    monkeypatch.setattr(fingerprints, "_PART", 16)
    monkeypatch.setattr(fingerprints, "_PARTS", 4)
    path = tmp_path / "file"

    def of(data: bytes, size: int | None = None) -> str:
        path.write_bytes(data)
        return fingerprint(path, size)

    small = bytes(range(64))
    seen = {of(small)} | {of(small[:at] + b"\xff" + small[at + 1 :]) for at in range(64)}
    assert len(seen) == 65
    large = bytes(range(256)) * 4
    assert of(large) == of(large)
    assert len({of(large), of(b"x" + large[1:]), of(large[:-1] + b"x"), of(large + b"x"), of(large[:-1])}) == 5
    assert of(large + b"more", len(large)) == of(large)
    assert of(b"") != of(b"x")
