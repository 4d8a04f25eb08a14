"""`matryo verify`: every part of a folder is found, read and reported; damage is exit code 1."""

import json

import numpy as np
import pytest

from matryo import EmbeddingSet, Index
from matryo.cli import main
from matryo.files import json_digest
from matryo.folders import write_record


@pytest.fixture
def folder(tmp_path):
    """A run with embeddings and an export, made by hand, and an index and embeddings beside it."""
    vectors = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    facts = {"recipe": {"name": "mine"}, "files": {}}
    (run / "run.json").write_text(json.dumps({**facts, "sha256": json_digest(facts)}))
    header = json.dumps({"__metadata__": {"facts": "{}"}}).encode()
    (run / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    EmbeddingSet.write(run / "embeddings" / "test", vectors)
    (run / "export" / "onnx").mkdir(parents=True)
    (run / "export" / "onnx" / "model.onnx").write_bytes(b"onnx")
    write_record(run / "export" / "onnx", "export")
    EmbeddingSet.write(tmp_path / "emb" / "queries", vectors, ids=list(range(5, 25)))
    with Index.create(tmp_path / "idx", [4, 8]) as index:
        index.add(vectors)
    return tmp_path


PARTS = ["emb/queries", "idx", "runs/mine", "runs/mine/embeddings/test", "runs/mine/export/onnx"]
KINDS = ["embeddings", "index", "run", "embeddings", "exported model"]


def verify(capsys, *words):
    code = main(["verify", *map(str, words)])
    out, error = capsys.readouterr()
    return code, out.splitlines(), error


def test_every_part_of_a_folder_is_verified(folder, capsys):
    code, lines, error = verify(capsys, folder)
    assert (code, error) == (0, "")
    assert [line.partition(":")[0] for line in lines] == [str(folder / part) for part in PARTS]
    assert all("match" in line for line in lines)
    assert "written before checksums existed" in lines[2]


def test_a_folder_whose_replacement_was_killed_is_brought_back(folder, capsys):
    """Between the two renames of a file system that cannot exchange folders, nothing is at the path."""
    export = folder / "runs" / "mine" / "export" / "onnx"
    work = export.with_name(".onnx.0123abcd.tmp")
    work.mkdir()
    export.rename(work / "old")
    code, lines, _ = verify(capsys, export)
    assert (code, len(lines)) == (0, 1)
    assert list(export.parent.iterdir()) == [export]


def test_json_has_one_object_per_part(folder, capsys):
    _, lines, _ = verify(capsys, folder, "--json")
    parts = [json.loads(line) for line in lines]
    assert [part["kind"] for part in parts] == KINDS
    assert parts[0]["bytes"] == sum(path.stat().st_size for path in (folder / "emb" / "queries").iterdir())
    assert parts[2]["checked"] == "sizes and structure"
    assert parts[0] | {"damage": None, "checked": "checksums"} == parts[0]


@pytest.mark.parametrize(("part", "file"), [
    ("emb/queries", "vectors.npy"), ("idx", "index.sqlite"), ("runs/mine", "run.json"),
    ("runs/mine/embeddings/test", "manifest.json"), ("runs/mine/export/onnx", "model.onnx"),
])  # fmt: skip
def test_damage_to_one_part_is_reported_with_the_file_and_the_others_are_verified(folder, capsys, part, file):
    path = folder / part / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    code, lines, error = verify(capsys, folder)
    assert code == 1
    assert error == (
        "matryo: error: 1 of 5 parts failed verification: the lines above name the files, and say how to repair them\n"
    )
    assert [line.partition(":")[0] for line in lines] == [str(folder / part) for part in PARTS]
    [failed] = [line for line in lines if "FAILED" in line]
    assert failed.startswith(f"{folder / part}: FAILED: ")
    assert str(folder / part) in failed.partition("FAILED")[2]


def test_a_part_without_its_description_is_not_overlooked(folder, capsys):
    (folder / "emb" / "queries" / "manifest.json").unlink()
    (folder / "runs" / "mine" / "export" / "onnx" / "model.onnx").unlink()
    code, lines, _ = verify(capsys, folder / "emb", folder / "runs" / "mine" / "export")
    assert code == 1
    assert "must have a manifest.json" in lines[0]
    assert "model.onnx is damaged (got no such file)" in lines[1]


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_path_that_holds_nothing_is_an_error(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    code, lines, error = verify(capsys, tmp_path / name)
    assert (code, lines) == (1, [])
    assert error.startswith("matryo: error: PATH must be or hold a run, embeddings, an index")
