"""Damage to a run folder is found when it is loaded or resumed, and the advice of the error repairs it."""

import json
import shutil

import pytest
import texts_made as made
import torch
from safetensors.torch import save_file

from matryo.errors import RunError
from matryo.inference import load
from matryo.training import train
from matryo.training.model import start_from
from matryo.training.run.checkpoint import load_weights
from matryo.training.run.paths import RunFolder
from matryo.training.run.seal import read_facts

PARTS = ["model.safetensors", "tokenizer.json", "encoder/main/config.json"]


def flip(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def again(run):
    return train(made.recipe(), made.labelled(), run, progress=False)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return again(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("harm", [lambda path: flip(path, path.stat().st_size // 2), lambda path: path.unlink()])
def test_a_damaged_part_is_found_and_the_advice_repairs_it(run, original, name, harm):
    harm(run / name)
    for use in (lambda: load(run, device="cpu"), RunFolder(run).verify):
        with pytest.raises(RunError, match=rf"{name} is damaged .*: delete it and run.json, and run .* again"):
            use()
    for path in (run / name, run / "run.json"):   # as advised
        path.unlink(missing_ok=True)
    again(run)
    assert RunFolder(run).verify()
    assert (run / name).read_bytes() == (original / name).read_bytes()


def test_without_a_checkpoint_the_advice_is_a_backup(run):
    (run / "checkpoint.safetensors").unlink()
    assert RunFolder(run).verify(), "a complete run does not need it"
    flip(run / "model.safetensors")
    with pytest.raises(RunError, match=r"model.safetensors is damaged .*: restore it from a backup, or train again"):
        load(run, device="cpu")


def test_damaged_weights_are_no_start(run):
    flip(run / "model.safetensors")
    with pytest.raises(RunError, match=r"model.safetensors is damaged"):
        start_from(torch.nn.Linear(2, 2), run)


@pytest.mark.parametrize("at", [9, 200, 5000, -1])   # header, facts, tensors
def test_a_damaged_checkpoint_is_not_resumed(run, at):
    (run / "run.json").unlink()
    flip(run / "checkpoint.safetensors", at)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=r"checkpoint.safetensors is damaged .*: restore it from a backup, or delete it"):
        again(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("change", [{"classes": ["x", "y", "z"]}, {"files": {}}, {"sha256": "0" * 64}, {"dims": [8]}])
def test_a_changed_run_json_is_found(run, change):
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts, sort_keys=True))
    assert RunFolder(run).verify(), "neither order nor white space counts"
    (run / "run.json").write_text(json.dumps(facts | change))
    with pytest.raises(RunError, match=r"run.json is damaged .*delete it and run the same"):
        load(run, device="cpu")


def test_a_run_from_before_checksums_loads_and_is_checked_by_structure(run, original):
    facts = json.loads((run / "run.json").read_text())
    del facts["files"], facts["sha256"]
    (run / "run.json").write_text(json.dumps(facts))
    assert load(run, device="cpu").weights == load(original, device="cpu").weights
    assert not RunFolder(run).verify()
    (run / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:-1])
    with pytest.raises(RunError, match=r"model.safetensors is damaged .*bytes instead of"):
        RunFolder(run).verify()


def test_a_checkpoint_from_before_checksums_is_resumed(run, original):
    path = run / "checkpoint.safetensors"
    facts = read_facts(path)
    del facts["files"]
    save_file(load_weights(path), path, metadata={"facts": json.dumps(facts)})
    (run / "run.json").unlink()
    assert not RunFolder(run).verify()
    again(run)
    assert RunFolder(run).verify(), "its checkpoint and run.json are new"
    assert (run / "model.safetensors").read_bytes() == (original / "model.safetensors").read_bytes()


def test_a_lost_name_of_the_checksum_is_damage(run):
    path = run / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"sha256":"', b'"sha257":"'))
    with pytest.raises(RunError, match=r"checkpoint.safetensors is damaged"):
        RunFolder(run).verify()


def test_damage_to_the_log_loses_its_lines_only(run, original):
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(lines[0] + b"\xff\n[]\n7\n{}\n" + lines[1] + b'{"step": 1, "ki')
    (run / "run.json").unlink()
    again(run)
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()][:2] == [1, 2]
    one, other = (load_weights(folder / "model.safetensors") for folder in (run, original))
    assert all(torch.equal(one[name], other[name]) for name in other)
