"""Finding one's way: help, mistyped words, recipes, what a folder holds, and shell completion."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import EmbeddingSet, Index, Nesting, __version__
from matryo.cli import VERBS, main
from matryo.results import append_rows, stamp
from matryo.training.recipe.load import bundled_recipes, load_recipe

Captured = pytest.CaptureFixture[str]


def test_matryo_alone_prints_help(capsys: Captured) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n    {verb} " in printed for verb in VERBS)


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(capsys: Captured, option: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main([option])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"matryo {__version__}\n"


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (["trian"], "no such verb (got trian): did you mean train?"),
        (["xyzzy"], "no such verb (got xyzzy): choose from demo, pack,"),
        (["train", "demo", "--lr", "1"], "unrecognized argument --lr: did you mean --optim.lr?"),
        (["encode", "run", "--splt", "x"], "unrecognized argument --splt: did you mean --split?"),
        (["train", "demo", "optim.lr=1"], "unrecognized argument optim.lr=1: write --optim.lr 1"),
        (["export", "run", "--to", "onnx", "more"], "put all paths together, before or after the options"),
    ],
)
def test_mistyped_words(capsys: Captured, words: list[str], cure: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert cure in capsys.readouterr().err


def test_recipes(capsys: Captured, tmp_path: Path) -> None:
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(bundled_recipes())
    assert main(["recipes", "demo"]) == 0
    copy = tmp_path / "demo.toml"
    copy.write_text(capsys.readouterr().out)
    assert load_recipe(copy) == load_recipe("demo")
    assert main(["recipes", "dmo"]) == 1
    assert "no such recipe (got dmo): did you mean demo?" in capsys.readouterr().err


def described(capsys: Captured, path: Path) -> dict[str, Any]:
    """The facts of ``path`` from --json, each of which the text must show too."""
    assert main(["info", str(path), "--json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{path}: {facts['kind']}\n")
    assert all(f"\n  {name} " in text for name, value in facts.items() if value and name != "kind")
    return facts


def test_info_of_embeddings(capsys: Captured, tmp_path: Path) -> None:
    for split, count in (("train", 1200), ("val", 3), ("pairs/queries", 2)):
        EmbeddingSet.write(tmp_path / split, np.ones((count, 8)), nesting=Nesting((2, 8)), model="m", dataset="toy")
    facts = described(capsys, tmp_path / "train")
    assert (facts["kind"], facts["vectors"], facts["dims"], facts["dataset"]) == ("embeddings", 1200, [2, 8], "toy")
    facts = described(capsys, tmp_path)
    assert facts["train"] == "1,200 vectors of 8 dimensions, float32"
    assert facts["pairs/queries"] == "2 vectors of 8 dimensions, float32"


def test_info_of_an_index(capsys: Captured, tmp_path: Path) -> None:
    with Index.create(tmp_path / "idx", nesting=Nesting((2, 8))) as index:
        index.add(np.eye(5, 8, dtype=np.float32), list(range(5)))
    facts = described(capsys, tmp_path / "idx")
    assert (facts["kind"], facts["count"], facts["dims"], facts["metric"]) == ("index", 5, [2, 8], "cosine")


def test_info_of_runs(capsys: Captured, tmp_path: Path) -> None:
    recipe = dataclasses.asdict(load_recipe("demo"))
    figures = {"top1": {"flat": {"8": 0.5, "256": 0.75}}, "seconds": 1.5}
    row = dataclasses.asdict(stamp("train", "demo", figures, seed=0))
    (tmp_path / "run.json").write_text(json.dumps({"recipe": recipe, "classes": ["a"], "dims": [8, 256], "row": row}))
    facts = described(capsys, tmp_path)
    assert (facts["kind"], facts["dims"], facts["top1 on flat"]) == ("run", [8, 256], {"8": 0.5, "256": 0.75})
    (tmp_path / "run.json").unlink()
    shutil.copy(bundled_recipes()["demo"], tmp_path / "recipe.toml")
    facts = described(capsys, tmp_path)
    assert (facts["kind"], facts["next"]) == ("unfinished run", "run its `matryo train` command again to finish it")


def test_info_of_rows_and_of_nothing(capsys: Captured, tmp_path: Path) -> None:
    append_rows(tmp_path / "rows.jsonl", [stamp(kind, "x", {}, seed=0) for kind in ("probe", "probe", "sts")])
    facts = described(capsys, tmp_path / "rows.jsonl")
    assert facts == {"kind": "result rows", "rows": 3, "kind probe": 2, "kind sts": 1}
    for path, state in ((tmp_path, "holds none of these"), (tmp_path / "gone", "does not exist")):
        assert main(["info", str(path)]) == 1
        assert f"{path}, which {state}): check the path" in capsys.readouterr().err


def test_info_of_an_export(capsys: Captured, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from export_models import image_model

    from matryo.export.card import write_card

    write_card(tmp_path / "README.md", image_model(), "timm", [], "mine")
    facts = described(capsys, tmp_path)
    assert (facts["kind"], facts["task"]) == ("model exported for timm", "image-feature-extraction")
    assert "encoder" in facts["model"]
    assert "8" in facts["dims"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(capsys: Captured, tmp_path: Path, shell: str) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    text = script.read_text()
    assert all(word in text for word in (*VERBS, "tiny-imagenet-rn18"))
    assert "--optim.lr" in text or "optim.lr" in text
    if (program := shutil.which(shell)) is None:
        return
    subprocess.run([program, "-n", str(script)], check=True)   # its syntax
    if shell == "bash":
        ask = f'source {script}; COMP_WORDS=(matryo tr); COMP_CWORD=1; _shtab_matryo; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run([program, "-c", ask], check=True, capture_output=True, text=True)
        assert done.stdout.split() == ["train"]


def test_completion_without_shtab(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "this needs shtab: pip install 'matryo[completion]'" in capsys.readouterr().err
