"""matryo index: what is added, described, changed and refused, from every file; and what an end too early keeps."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import EmbeddingSet, Index, Nesting
from matryo.cli import main
from matryo.retrieve.store.sql.database import Database

COUNT, DIM = 300, 20
VECTORS = np.random.default_rng(0).normal(size=(COUNT, DIM)).astype(np.float32)
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in messages are as they were typed."""
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", VECTORS)


def run(capsys: Capture, *words: Any) -> str:
    """What a command that must do well prints."""
    assert main(["index", *map(str, words)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: Capture, *words: Any) -> str:
    """The one line on stderr of a command that must fail."""
    assert main(["index", *map(str, words)]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0].removeprefix("matryo: error: ")


def write_lines(path: str, first: int = 0, count: int = COUNT, **more: Any) -> str:
    rows = ({"id": f"d{row}", "vector": VECTORS[row].tolist(), "n": row, **more} for row in range(first, first + count))
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def held(folder: str = "idx") -> dict[Any, tuple[list[float], dict[str, Any]]]:
    """Every row of an index, by id."""
    with Index.open(folder) as index:
        index.verify()
        ids = index.snapshot().ids().tolist()
        vectors, payloads = index.get(ids)
        rows = zip(vectors.tolist(), payloads, strict=True)
        return dict(zip(ids, rows, strict=True))


def test_an_array_makes_an_index(capsys: Capture) -> None:
    lines = run(capsys, "idx", "a.npy").splitlines()
    size = sum(path.stat().st_size for path in Path("idx").rglob("*") if path.is_file())
    assert lines == [
        f"idx: 300 vectors, {size / 1000:.1f} kB on disk (300 added)",
        "  dims 8, 16, 20; cosine; float32; ids are integers",
        "next: matryo search idx QUERIES; faster: matryo index idx --build, then matryo plan idx",
    ]
    assert held() == {row: (VECTORS[row].tolist(), {}) for row in range(COUNT)}
    assert run(capsys, "idx").splitlines() == [lines[0].removesuffix(" (300 added)"), lines[1]]
    told = json.loads(run(capsys, "idx", "--json"))
    assert told == {
        "folder": "idx", "count": COUNT, "dims": [8, 16, 20], "metric": "cosine", "dtype": "float32", "int8_up_to": 0,
        "ids": "integers", "segments": 1, "guides": {}, "unguided": 0, "joined": 0, "drift": None, "bytes": size,
        "fields": [], "model": None, "run": None, "rotation": None, "codes": None, "added": 0,
    }  # fmt: skip


def test_more_is_added_and_numbered_on(capsys: Capture) -> None:
    run(capsys, "idx", "a.npy", "a.npy", "--again", "--batch", 128)
    assert "901 vectors" in run(capsys, "idx", "a.npy", "a.npy", "--skip", 299)
    rows = held()
    assert list(rows) == list(range(901))
    added = np.vstack([VECTORS, VECTORS, VECTORS[299:], VECTORS])
    np.testing.assert_array_equal([vector for vector, _ in rows.values()], added)


def test_how_an_index_is_made(capsys: Capture) -> None:
    words = ["--dims", "4,20", "--metric", "l2", "--dtype", "float16", "--int8-up-to", 4]
    assert "  dims 4, 20; l2; float16, int8 up to 4; ids are" in run(capsys, "idx", "a.npy", *words)
    run(capsys, "idx", "a.npy", "--again", *words)   # the same settings are accepted
    for option, asked, there in [
        ("--dims", "8,20", "4,20"), ("--metric", "ip", "l2"), ("--dtype", "float32", "float16"),
        ("--int8-up-to", "0", "4"),
    ]:  # fmt: skip
        message = refused(capsys, "idx", "a.npy", option, asked)
        assert message.startswith(f"idx was created with {option} {there}, which cannot change (got {option} {asked})")
    assert "--dims must end with 20, the dim of the vectors (got 8,16): use --dims 8,16,20" in (
        refused(capsys, "new", "a.npy", "--dims", "8,16")
    )
    assert "--dims must list dims" in refused(capsys, "new", "a.npy", "--dims", "8,x")
    assert "int8_up_to must be 0 or one of the dims" in refused(capsys, "new", "a.npy", "--int8-up-to", 5)
    assert not Path("new").exists()


def test_dims_of_their_own(capsys: Capture) -> None:
    EmbeddingSet.write("emb", VECTORS, nesting=Nesting([5, 10]), labels=np.arange(COUNT) % 2, classes=["ant", "bee"])
    assert "  dims 5, 10, 20; cosine" in run(capsys, "idx", "emb")
    assert held()[3] == (VECTORS[3].tolist(), {"label": 1, "class": "bee"})
    np.save("small.npy", VECTORS[:, :3])
    assert "  dims 3; cosine" in run(capsys, "tiny", "small.npy")
    np.save("power.npy", VECTORS[:, :16])
    assert "  dims 8, 16; cosine" in run(capsys, "power", "power.npy")


def test_lines_tables_and_a_pipe_hold_the_same(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    run(capsys, "lines", write_lines("a.jsonl", lang="en"), "--batch", 70)
    rows = held("lines")
    assert rows["d7"] == (VECTORS[7].tolist(), {"n": 7, "lang": "en"})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("a.jsonl").read_bytes())))
    run(capsys, "pipe", "-")
    assert held("pipe") == rows
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = {"key": list(rows), "emb": VECTORS.tolist(), "n": list(range(COUNT)), "lang": ["en"] * COUNT}
    parquet.write_table(arrow.table(table), "a.parquet")
    run(capsys, "table", "a.parquet", "--id-column", "key", "--batch", 70)
    assert held("table") == rows
    run(capsys, "part", "a.parquet", "--id-column", "key", "--payload", "n")
    assert held("part")["d7"][1] == {"n": 7}
    run(capsys, "bare", "a.parquet", "--payload", "none")
    assert held("bare")[7][1] == {}


def test_a_copy_may_be_made_otherwise(capsys: Capture) -> None:
    run(capsys, "idx", write_lines("a.jsonl"), "--dims", "4,20")
    assert "dims 4, 20; ip; float32" in run(capsys, "other", "idx", "--metric", "ip")
    assert held("other") == held("idx")
    assert "dims 8, 16, 20; cosine; float16" in run(capsys, "half", "idx", "--dims", "8,16,20", "--dtype", "float16")


def test_ids_from_a_file(capsys: Capture) -> None:
    Path("ids.txt").write_text("".join(f"x{row}\n" for row in range(COUNT)))
    run(capsys, "idx", "a.npy", "--ids", "ids.txt", "--batch", 100)
    assert list(held()) == [f"x{row}" for row in range(COUNT)]
    run(capsys, "late", "a.npy", "--ids", "ids.txt", "--skip", 290)
    assert list(held("late")) == [f"x{row}" for row in range(290, COUNT)]
    assert "--upsert needs ids (got none in a.npy)" in refused(capsys, "idx", "a.npy", "--upsert")
    run(capsys, "idx", "a.npy", "--ids", "ids.txt", "--upsert")
    Path("few.txt").write_text("1\n2\n")
    message = refused(capsys, "new", "a.npy", "--ids", "few.txt")
    assert message == "few.txt must have one id per row of a.npy (got 2 ids for 300 rows): check both files"
    message = refused(capsys, "new", write_lines("b.jsonl"), "--ids", "few.txt")
    assert message == "few.txt must have one id per row of b.jsonl (got 2 ids for 300 or more rows): check both files"
    write_lines("c.jsonl", count=1)
    message = refused(capsys, "short", "c.jsonl", "--ids", "few.txt")   # told once the end is seen
    assert message.endswith("(got 2 ids for 1 rows): check both files; 1 vector in short: resume with --skip 1")
    words = ["new", "a.npy", "a.npy", "--ids", "few.txt"]
    assert "--ids replaces the ids of a single SOURCE (got 2 sources)" in refused(capsys, *words)
    assert not Path("new").exists()


def test_rows_are_replaced_and_deleted_and_their_space_given_back(capsys: Capture) -> None:
    run(capsys, "idx", write_lines("a.jsonl"))
    write_lines("b.jsonl", 290, 10, new=True)
    message = refused(capsys, "idx", "b.jsonl")
    assert message == (
        "b.jsonl, rows 0 to 9: ids must be new (got 'd290', which exists): use upsert (--upsert) to replace rows; "
        "300 vectors in idx"
    )
    assert "300 vectors" in run(capsys, "idx", "b.jsonl", "--upsert")
    assert held()["d290"][1] == {"n": 290, "new": True}
    assert "298 vectors" in run(capsys, "idx", "--delete", "d0", "d5")
    assert "d5" not in held()
    assert "the index has no such id (got 'd5')" in refused(capsys, "idx", "--delete", "d1", "d5")
    before = json.loads(run(capsys, "idx", "--json"))
    after = json.loads(run(capsys, "idx", "--compact", "--share", "1", "--json"))
    assert (before["segments"], after["segments"], after["count"]) == (2, 1, 298)
    assert "(1 deleted, all checksums match)" in run(capsys, "idx", "--delete", "d9", "--verify")


def test_ids_of_the_command_line_are_of_the_kind_of_the_index(capsys: Capture) -> None:
    run(capsys, "idx", "a.npy")
    run(capsys, "idx", "--delete", "12")
    assert 12 not in held()
    assert "the ids of this index are integers (got 'd1')" in refused(capsys, "idx", "--delete", "1", "d1")


def test_guides_are_built_and_told(capsys: Capture) -> None:
    run(capsys, "idx", "a.npy")
    assert "; sketch, partition (IVF) at 16" in run(capsys, "idx", "--sketch", "--partition", "16")
    assert json.loads(run(capsys, "idx", "--build", "--json"))["guides"] == {"sketch": None, "partition": 16}
    told = run(capsys, "idx", "a.npy", "--again").splitlines()
    assert told[-1] == "  300 vectors without these guides: matryo index idx --compact"
    assert json.loads(run(capsys, "idx", "--compact", "--json"))["unguided"] == 0
    assert run(capsys, "at-once", "a.npy", "--sketch").splitlines()[1].endswith("ids are integers; sketch")
    assert "partition must be at most" in refused(capsys, "idx", "--partition", "1000")
    assert "--partition must be a dim" in refused(capsys, "idx", "--partition", "-3")


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_bad_row_in_the_middle_loses_nothing_before_it(capsys: Capture) -> None:
    lines = Path(write_lines("a.jsonl")).read_text().splitlines()
    Path("b.jsonl").write_text("\n".join([*lines[:2], '{"id": "d2", "vec', *lines[3:]]))
    message = refused(capsys, "idx", "b.jsonl")
    assert message.startswith("b.jsonl, line 3: a line must be JSON (got Unterminated string")
    assert message.endswith(": fix or drop that line; 2 vectors in idx: resume with --skip 2")
    assert list(held()) == ["d0", "d1"]
    assert refused(capsys, "idx", "b.jsonl", "--skip", 2) == message   # nothing was lost or added
    run(capsys, "idx", "a.jsonl", "--skip", 2)
    assert list(held()) == [f"d{row}" for row in range(COUNT)]


def test_where_to_go_on_among_several_files(capsys: Capture) -> None:
    vectors = VECTORS.copy()
    vectors[0, 3], vectors[120, 3] = np.nan, np.nan
    np.save("b.npy", vectors[1:])
    np.save("c.npy", vectors)
    message = refused(capsys, "idx", "a.npy", "b.npy", "c.npy", "--batch", 50)
    assert message == (
        "b.npy, row 119: a vector must have finite numbers (got nan at 3): drop that row, or encode it again; "
        "419 vectors in idx: resume with b.npy c.npy --skip 119"
    )
    assert len(held()) == 419
    message = refused(capsys, "idx", "b.npy", "c.npy", "--skip", 120)
    assert "c.npy, row 0: " in message
    assert message.endswith("598 vectors in idx: resume with --skip 299")   # all of b.npy
    run(capsys, "idx", "b.npy", "--skip", 299)
    assert len(held()) == 598
    message = refused(capsys, "twice", write_lines("d.jsonl"), "d.jsonl")
    assert message.endswith("300 vectors in twice: resume with d.jsonl")
    assert "c.npy, row 0" in refused(capsys, "new", "c.npy")
    assert not Path("new").exists()


def test_sources_that_do_not_fit(capsys: Capture) -> None:
    np.save("wide.npy", np.ones((2, 32)))
    message = refused(capsys, "idx", "a.npy", "wide.npy")
    assert message.startswith("all vectors must have the 20 dims of a.npy (got 32 in wide.npy): encode every row with")
    assert not Path("idx").exists()
    run(capsys, "idx", "a.npy")
    assert "the vectors of idx have 20 dims (got 32 in wide.npy)" in refused(capsys, "idx", "wide.npy")
    message = refused(capsys, "idx", write_lines("a.jsonl"))
    assert "a.jsonl, rows 0 to 299: the ids of this index are integers (got 'd0')" in message
    twice = [{"id": 1000, "vector": [1.0] * DIM}] * 2
    Path("twice.jsonl").write_text("\n".join(map(json.dumps, twice)))
    assert "ids must be unique (got 1000 twice)" in refused(capsys, "idx", "twice.jsonl")
    big = VECTORS.copy()
    big[3] = 1e6
    np.save("big.npy", big)
    assert "vectors must be finite in float16" in refused(capsys, "half", "big.npy", "--dtype", "float16")
    assert len(held()) == COUNT


def test_folders_that_hold_no_index(capsys: Capture) -> None:
    assert refused(capsys, "idx") == (
        "there is no index to describe or change (got idx): check the path, or create an index: matryo index idx SOURCE"
    )
    assert "there is no index" in refused(capsys, "idx", "--compact")
    assert refused(capsys, "idx", "--share", 1) == "--share applies to --compact (got no --compact): add --compact"
    told = "--share must be a number from 0.01 to 1 (got 2.0): use --share 0.25"
    assert refused(capsys, "idx", "--compact", "--share", 2) == told
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    assert "a.npy" in refused(capsys, "a.npy", "a.npy")   # a file, where a folder must be
    assert "full must be empty for a new index (got notes.txt)" in refused(capsys, "full", "a.npy")
    Path("bad").mkdir()
    Path("bad/index.sqlite").write_bytes(b"no database at all" * 100)
    assert "index.sqlite is damaged" in refused(capsys, "bad")
    assert "which does not exist" in refused(capsys, "idx", "nothing.txt")
    assert "must be a readable npy file" in refused(capsys, "idx", "nothing.npy")
    assert "none after --skip 300" in refused(capsys, "idx", "a.npy", "--skip", 300)
    assert "skip must be 0 or more" in refused(capsys, "idx", "a.npy", "--skip", -1)
    assert not Path("idx").exists()


def test_a_truncated_table(capsys: Capture) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"vector": VECTORS.tolist()}), "a.parquet")
    data = Path("a.parquet").read_bytes()
    Path("a.parquet").write_bytes(data[:-100])
    assert refused(capsys, "idx", "a.parquet").startswith("a.parquet must be a readable parquet file (got ")


def test_a_flipped_byte_is_named(capsys: Capture) -> None:
    run(capsys, "idx", "a.npy")
    path = next(Path("idx").rglob("ids.npy"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert f"{path} is damaged" in refused(capsys, "idx", "--verify")


def test_options_that_would_be_idle(capsys: Capture) -> None:
    run(capsys, "idx", "a.npy")
    pairs = (["--skip", 3], ["--dims", "8,20"], ["--payload", "n"], ["--format", "npy"])
    for words in (["--upsert"], ["--again"], *pairs):
        assert f"{words[0]} applies to a SOURCE (got no SOURCE)" in refused(capsys, "idx", *words)
    with pytest.raises(SystemExit) as stop:
        main(["index", "idx", "--upsert", "a.npy"])
    assert stop.value.code == 2
    assert "unrecognized argument a.npy: put all paths together" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["index", "idx", "a.npy", "--metrics", "ip"])
    assert "unrecognized argument --metrics: did you mean --metric?" in capsys.readouterr().err


def test_a_creation_that_was_killed_is_begun_again(capsys: Capture) -> None:
    Path("idx").mkdir()
    Database(Path("idx/index.sqlite"), "rwc").close()
    assert "there is no index to describe" in refused(capsys, "idx")
    assert "300 vectors" in run(capsys, "idx", "a.npy")


def test_a_second_writer_waits_for_the_first(capsys: Capture) -> None:
    run(capsys, "idx", "a.npy")
    with Index.open("idx", writable=True):
        assert "an index has one writer at a time (got idx)" in refused(capsys, "idx", "a.npy")
        assert "300 vectors" in run(capsys, "idx")   # reading needs no turn


# ── an end too early ──────────────────────────────────────────────────────────────────────────────────────────


def test_an_interrupt_leaves_what_was_added_and_says_how_to_go_on() -> None:
    lines = Path(write_lines("a.jsonl")).read_bytes().splitlines(keepends=True)
    words = [sys.executable, "-m", "matryo", "index", "idx", "-", "--batch", "100"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    # Tests that run in the background of a shell ignore interrupts, and their children would too.
    with subprocess.Popen(words, **pipes, preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL)) as process:
        assert process.stdin
        process.stdin.write(b"".join(lines[:250]))
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while _count() < 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        told = process.stderr.read().decode() if process.wait(60) == 130 else ""
    assert told == "matryo: interrupted; 200 vectors in idx: resume with --skip 200\n"
    assert list(held()) == [f"d{row}" for row in range(200)]
    again = subprocess.run([*words, "--skip", "200"], input=b"".join(lines), capture_output=True, check=False)
    assert again.returncode == 0, again.stderr
    assert list(held()) == [f"d{row}" for row in range(COUNT)]


def test_an_interrupt_after_the_last_row_says_so(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_: Index, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Index, "compact", stopped)
        assert main(["index", "idx", "a.npy", "--sketch"]) == 130
    told = "all 300 vectors are in idx: to resume, run matryo index idx --compact --build"
    assert capsys.readouterr().err == f"matryo: interrupted; {told}\n"
    assert "300 vectors" in run(capsys, "idx", "--compact")


def _count() -> int:
    try:
        with Index.open("idx") as index:
            return len(index)
    except ValueError:
        return 0   # not there yet


def test_a_backup_is_an_index(capsys: Capture) -> None:
    run(capsys, "idx", "a.npy")
    assert "copied to copy" in run(capsys, "idx", "--backup", "copy")
    with Index.open("idx") as index, Index.open("copy") as copy:
        assert copy.ids.tolist() == index.ids.tolist()
    assert "a backup needs a new folder (got copy)" in refused(capsys, "idx", "a.npy", "--backup", "copy")
    with Index.open("idx") as index, Index.open("copy") as copy:
        assert len(index) == len(copy)   # refused before anything was added
