"""A finished run is continued to more epochs when asked to, and says how when not."""

import json

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from matryo.data import array_dataset
from matryo.errors import RunError
from matryo.training import train
from matryo.training.optim import learning_rate
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override
from matryo.training.run.checkpoint import load_weights
from matryo.training.run.paths import RunFolder
from matryo.training.run.seal import read_facts


def recipe(epochs, **changes):
    fields = {"data.size": "8", "encoder.dim": "8", "loop.batch": "8", "loop.epochs": str(epochs), "loop.device": "cpu",
              "optim.peak": "0.5", "augment.pad": "1", "optim.ema": "0.9", "loop.log_every": "1"}  # fmt: skip
    return override(Recipe(name="small"), {**fields, **{k.replace("__", "."): str(v) for k, v in changes.items()}})


def dataset():
    rng = np.random.default_rng(0)
    return array_dataset({"train": (rng.integers(0, 255, (16, 8, 8, 3), dtype=np.uint8), np.arange(16) % 2)})


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(recipe(2), dataset(), tmp_path_factory.mktemp("runs") / "run", progress=False)


def copy_of(run, tmp_path):
    import shutil

    return shutil.copytree(run, tmp_path / "run")


def test_it_continues_with_the_schedule_of_the_new_length(finished, tmp_path):
    run = copy_of(finished, tmp_path)
    before = metrics(run)
    train(recipe(4), dataset(), run, extend=True, progress=False)
    lines = metrics(run)
    assert lines[:4] == before, "the steps already taken are not repeated"
    assert [line["step"] for line in lines] == list(range(1, 9))
    wanted = [learning_rate(recipe(4), step, 2, 8) for step in range(4, 8)]
    assert [line["lr"] for line in lines[4:]] == pytest.approx(wanted)
    folder = RunFolder(run)
    assert folder.complete
    assert folder.recipe.loop.epochs == 4
    assert "epochs = 4" in (run / "recipe.toml").read_text()
    weights = (run / "model.safetensors").stat().st_mtime_ns
    train(recipe(4), dataset(), run, extend=True, progress=False)   # the same command again changes nothing
    assert (run / "model.safetensors").stat().st_mtime_ns == weights


def test_an_interrupted_extension_is_resumed_to_the_same_weights(finished, tmp_path, monkeypatch):
    whole = train(recipe(4), dataset(), copy_of(finished, tmp_path / "a"), extend=True, progress=False)
    run = copy_of(finished, tmp_path / "b")
    with monkeypatch.context() as patched:
        patched.setattr("matryo.training.held_out.HeldOut.measure", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(recipe(4), dataset(), run, extend=True, progress=False)
    assert RunFolder(run).unfinished
    assert read_facts(run / "checkpoint.safetensors")["step"] == 8
    train(recipe(4), dataset(), run, progress=False)   # a plain resume
    a, b = load_weights(whole / "model.safetensors"), load_weights(run / "model.safetensors")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_errors_name_the_cure_and_keep_the_run(finished, tmp_path):
    before = {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()}
    cases = [
        (recipe(4), False, r"run of another length \(got loop.epochs: 2 there, 4 now\): add --extend"),
        (recipe(1), True, r"more steps than it has taken \(got 2 steps, and 4 taken\)"),
        (recipe(4, optim__lr=0.7), True, r"another run \(got optim.lr: 0.1 there, 0.7 now\)"),
        (recipe(4, head__join=0.5), True, r"without head.join can be extended \(got head.join 0.5\)"),
    ]
    for made, extend, message in cases:
        with pytest.raises(RunError, match=message):
            train(made, dataset(), finished, extend=extend, progress=False)
    assert {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()} == before
    with pytest.raises(RunError, match=r"which has no checkpoint.safetensors\): train a new run"):
        train(recipe(4), dataset(), tmp_path / "new", extend=True, progress=False)
