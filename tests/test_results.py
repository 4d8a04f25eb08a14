"""Stored results: rows round-trip, say where they come from, and tell no folder of the machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from matryo import results
from matryo.errors import InputError
from matryo.results import Row, append_rows, command_line, read_rows, stamp, write_rows


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


def test_rows_replace_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_rows(path, [row(), row()])
    write_rows(path, [row(seed=7)])
    assert read_rows(path) == [row(seed=7)]


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


@pytest.mark.parametrize("write", [append_rows, write_rows])
def test_a_row_that_is_no_json_leaves_the_file_as_it_was(write: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_rows(path, [row()])
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write(path, [row(), row(figures={"bad": object()})])
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
    source = Path(results.__file__).parent.parent
    shutil.copytree(source, tmp_path / "site" / "matryo", ignore=shutil.ignore_patterns("bundled", "__pycache__"))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    # An editable installation has a finder for its own sources, which would come first.
    code = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'Redirect' not in type(f).__name__]; "
    code += "from matryo.results import stamp; print(stamp('k', 's', {}, seed=0).commit)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "MATRYO_COMMIT": "told"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "told"
    del environment["MATRYO_COMMIT"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "unknown"


STORED = sorted((Path(__file__).parent.parent / "docs" / "results").glob("*.jsonl"))
BY_DIM = {"evaluate", "train", "image-text", "mlm", "vit", "pairs", "similarity", "zero-shot", "few-shot", "stream",
          "cascade", "text-finetune"}


def test_all_stored_rows_read_and_the_dim_wise_ones_have_metrics_by_dim() -> None:
    seen, roles = set(), {}
    for path in STORED:
        for stored in read_rows(path):
            columns = stored.by_dim()
            if stored.kind in BY_DIM:
                seen.add(stored.kind)
                dims = stored.figures.get("dims")
                assert columns, (path, stored.subject)
                for title, values in columns.items():
                    assert values and all(type(dim) is int for dim in values)
                    assert not results.is_share(title) or all(0 <= value <= 1 for value in values.values()), title
                    assert dims is None or {*values} <= {int(dim) for dim in dims}
            roles.setdefault(stored.kind, set()).add(stored.role)
    assert seen == BY_DIM
    assert roles["train"] == {"nested", "fixed"}
    assert roles["evaluate"] == {"nested", "fixed", "post hoc"}


def test_by_dim_takes_each_value_from_its_place() -> None:
    figures = {"dims": {"8": {"top1": 0.25, "head_top1": None, "trained": True}, "16": {"top1": 0.5, "trained": True}}}
    assert row(figures=figures).by_dim() == {"top1": {8: 0.25, 16: 0.5}}
    pair = {"dims": [8, 16], "sides": ["a", "b"], "ks": [1, 10], "counts": [5, 6],
            "hit": [[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]]]}
    assert row(kind="pairs", figures=pair).by_dim() == {
        "hit@1 a → b": {8: 0.1, 16: 0.3}, "hit@10 a → b": {8: 0.2, 16: 0.4},
        "hit@1 b → a": {8: 0.5, 16: 0.7}, "hit@10 b → a": {8: 0.6, 16: 0.8},
    }  # fmt: skip
    shots = {"dims": [8, 16], "shots": [1, 5], "accuracy": [[0.1, 0.2], [0.3, 0.4]], "margin": [[0.0, 0.0], [0.0, 0.0]]}
    assert row(kind="few-shot", figures=shots).by_dim() == {
        "accuracy with 1 per class": {8: 0.1, 16: 0.2}, "accuracy with 5 per class": {8: 0.3, 16: 0.4},
    }  # fmt: skip
    curve = {"dims": [8, 16], "single": [0.1, 0.2], "accuracy": [0.3, 0.4], "stop": [1.0, 2.0]}
    assert row(kind="cascade", figures=curve).by_dim() == {"single": {8: 0.1, 16: 0.2}}
    assert row(kind="step-cost", figures={"fixed": {"p20": 1.0}}).by_dim() == {}


@pytest.mark.parametrize(
    ("figures", "role"),
    [
        ({"model": "mine", "dims": {"8": {"trained": True}, "16": {"trained": True}}}, "nested"),
        ({"model": "mine", "dims": {"8": {"trained": False}, "16": {"trained": True}}}, "fixed"),
        ({"model": "mine + PCA", "dims": {"8": {"trained": True}}}, "post hoc"),
        ({"top1": {"val": {"8": 0.5, "16": 0.5}}}, "nested"),
        ({"top1": {"val": {"16": 0.5}}}, "fixed"),
        ({"model": "mine", "dims": [8, 16], "top1": [0.5, 0.5]}, ""),
    ],
)
def test_a_row_without_a_role_gets_it_when_read(tmp_path: Path, figures: dict[str, object], role: str) -> None:
    path = tmp_path / "rows.jsonl"
    old = {name: value for name, value in vars(row(figures=figures)).items() if name != "role"}
    path.write_text(json.dumps(old) + "\n")
    assert read_rows(path)[0].role == role
    assert stamp("x", "y", dict(figures), seed=0).role == role
    append_rows(path, [row(figures=figures, role="post hoc")])
    assert read_rows(path)[1].role == "post hoc", "a stored role is kept"
