"""Stored results: rows round-trip, say where they come from, and tell no folder of the machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from matryo import results
from matryo.errors import InputError
from matryo.results import Row, append_rows, command_line, read_rows, stamp


def row(**changes: object) -> Row:
    fields: dict[str, object] = {
        "kind": "evaluate",
        "subject": "emoji separate",
        "figures": {"dims": {"8": {"top1": 0.25}}},
        "seed": 3,
        "command": "matryo evaluate",
        "commit": "0123456789ab",
        "hardware": "2 × CPU",
        "versions": {"numpy": "2"},
        "when": "2024-01-01T00:00:00+00:00",
    }
    return Row(**{**fields, **changes})   # type: ignore[arg-type]


def test_rows_round_trip_in_order(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "rows.jsonl"
    first, second, third = row(), row(seed=None, subject="β"), row(figures={})
    append_rows(path, [first, second])
    append_rows(path, [third])
    assert read_rows(path) == [first, second, third]
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3


def test_processes_that_add_at_the_same_time_lose_no_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    code = (
        "import sys; from pathlib import Path; from matryo.results import append_rows, Row\n"
        "for n in range(20): append_rows(Path(sys.argv[1]), [Row('k', sys.argv[2], {}, n, '', '', '', {}, '')])"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in "abc"]
    assert [one.wait() for one in running] == [0, 0, 0]
    found = read_rows(path)
    for name in "abc":
        assert [one.seed for one in found if one.subject == name] == list(range(20))
    assert len(found) == 60


def test_a_row_that_is_no_json_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_rows(path, [row()])
    before = path.read_bytes()
    with pytest.raises(TypeError):
        append_rows(path, [row(), row(figures={"bad": object()})])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("line", ["{", "[]", '{"kind": "x"}', '{"unheard": 1}', "3"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    append_rows(path, [row()])
    path.write_bytes(path.read_bytes() + line.encode() + b"\n")
    with pytest.raises(InputError, match=r"each line must be a result row .*line 2.*delete that line"):
        read_rows(path)


def test_a_stamped_row_says_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/a/b/matryo", "evaluate", "emb"])
    made = stamp("evaluate", "emoji", {"n": 1}, seed=7)
    assert (made.kind, made.subject, made.figures, made.seed) == ("evaluate", "emoji", {"n": 1}, 7)
    assert made.command == "matryo evaluate emb"
    assert re.fullmatch(r"unknown|[0-9a-f]{12}(\+changes)?", made.commit)
    assert {"python", "numpy"} <= made.versions.keys()
    assert re.fullmatch(r"\d+ × .+", made.hardware)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", made.when)
    assert json.loads(json.dumps(made.__dict__)) == made.__dict__
    assert stamp("x", "y", {}, seed=None, hardware="a GPU").hardware == "a GPU"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["/home/me/bin/matryo", "train", "demo"], "matryo train demo"),
        (["matryo", "train", "--data", "/mnt/pictures", "--seed", "1"], "matryo train --data DIR --seed 1"),
        (["matryo", "train", "--data=/mnt/pictures"], "matryo train --data=DIR"),
        (["matryo", "train", "--data", "pictures"], "matryo train --data DIR"),
        (["matryo", "evaluate", "/srv/emb/test", "emb/train"], "matryo evaluate test emb/train"),
        (["matryo", "train", "--encoder.name", "bert:/home/me/model"], "matryo train --encoder.name bert:model"),
        (["matryo", "train", "--encoder.name=bert:/home/me/model/"], "matryo train --encoder.name=bert:model"),
        (["matryo", "evaluate", "/home/me/my files/emb"], "matryo evaluate emb"),
        (["matryo", "evaluate", "/emb"], "matryo evaluate emb"),
        (["matryo", "train", "https://a.b/c", "timm:hf_hub:a/b"], "matryo train https://a.b/c timm:hf_hub:a/b"),
        (["matryo", "train", "--head.dims", "", "--name", "a b"], "matryo train --head.dims '' --name 'a b'"),
        (["matryo", "train", "--head.dims", "8,16"], "matryo train --head.dims 8,16"),
        (["scripts/run all.py", "x"], "python 'scripts/run all.py' x"),
        (["/opt/scripts/run.py", "x"], "run.py x"),
    ],
)
def test_a_command_tells_no_folder_of_the_machine(argv: list[str], told: str) -> None:
    assert command_line(argv) == told


def test_the_commit_is_matryos_own_or_what_the_launcher_says(tmp_path: Path) -> None:
    """Installed inside somebody's repository, the package must not take that repository's commit for its own."""
    source = Path(results.__file__).parent
    shutil.copytree(source, tmp_path / "site" / "matryo", ignore=shutil.ignore_patterns("bundled", "__pycache__"))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    code = "from matryo.results import stamp; print(stamp('k', 's', {}, seed=0).commit)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "MATRYO_COMMIT": "told"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "told"
    del environment["MATRYO_COMMIT"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "unknown"
