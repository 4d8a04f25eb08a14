"""Every attack of ``make soak``, with a bounded number of attempts, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import soak

from matryo.results import read_rows

pytest.importorskip("torch", reason="the attacks run once, in the full environment")


@pytest.mark.parametrize("name", soak.names())
def test_an_attack_breaks_no_promise(name):
    figures = soak.in_a_process(name, ["--bounded"])
    if "skipped" in figures:
        pytest.skip(figures["skipped"])
    assert figures["attempts"] > 0
    assert not figures["failures"], "\n".join(figures["said"])


def test_a_broken_promise_is_printed_stored_and_fails_the_soak(tmp_path, monkeypatch, capsys):
    attacks = tmp_path / "attacks"
    attacks.mkdir()
    body = "from types import SimpleNamespace\nPROMISE, BOUNDED, SOAK = 'It holds.', 2, 10\n"
    body += "def run(count, seed, folder): return SimpleNamespace(attempts=count, failures=['it broke'] * {})\n"
    (attacks / "holds.py").write_text(body.format(0))
    (attacks / "breaks.py").write_text(body.format(3))
    (attacks / "lacks.py").write_text("import a_package_that_is_not_installed\nPROMISE = 1")

    def in_a_process(name, options):
        code = f"import pathlib, soak; soak.ATTACKS = pathlib.Path({str(attacks)!r}); "
        command = [sys.executable, "-c", f"{code}soak.main({['--attack', name, *options]!r})"]
        done = subprocess.run(command, cwd=Path(soak.__file__).parent, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    monkeypatch.setattr(soak, "ATTACKS", attacks)
    monkeypatch.setattr(soak, "in_a_process", in_a_process)
    assert soak.main(["--only", "holds", "--rows", str(tmp_path / "a.jsonl")]) == 0
    assert soak.main(["--scale", "0.5", "--rows", str(tmp_path / "b.jsonl")]) == 1
    printed = capsys.readouterr().out
    assert printed.count("it broke") == 3
    assert "No module named 'a_package_that_is_not_installed'" in printed
    figures = {row.subject: row.figures for row in read_rows(tmp_path / "b.jsonl")}
    assert {name: figures[name]["attempts"] for name in figures} == {"breaks": 5, "holds": 5}
    assert {name: figures[name]["failures"] for name in figures} == {"breaks": 3, "holds": 0}
