"""Training for real, on a tiny dataset: it learns, survives kill -9 bit for bit, and many processes equal one."""

import dataclasses
import json
import math
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tqdm import tqdm

from matryo.data import array_dataset
from matryo.errors import DataError, InputError, NestingError, RunError, TrainingError
from matryo.inference import load
from matryo.training import held_out, load_recipe, loop, train
from matryo.training.measure import measure
from matryo.training.model import build_model
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override
from matryo.training.run.checkpoint import load_weights
from matryo.training.run.seal import read_facts

SMALL = {
    "data.test": "test", "data.size": "16", "encoder.dim": "16", "loop.batch": "16", "loop.epochs": "3",
    "optim.lr": "0.05", "optim.peak": "0.5", "loop.log_every": "1", "loop.device": "cpu", "augment.pad": "2",
}  # fmt: skip


def recipe(**changes):
    fields = {name.replace("__", "."): str(value) for name, value in changes.items()}
    return override(Recipe(name="small"), {**SMALL, **fields})


def dataset(count=96, classes=4, seed=0):
    """Coloured squares: the class is the colour, the place is chance."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count)
    labels[:classes] = np.arange(classes)
    images = rng.integers(0, 60, size=(count, 16, 16, 3), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        x, y = rng.integers(0, 8, size=2)
        image[y : y + 8, x : x + 8, label % 3] += 150
        image[y : y + 8, x : x + 8] //= np.uint8(1 + label // 3)
    return array_dataset({"train": (images, labels), "test": (images[: count // 2], labels[: count // 2])})


def metrics(run, kind="train"):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


@pytest.mark.parametrize("kind", ["separate", "tied", "fixed"])
def test_it_learns_at_every_dim(tmp_path, kind):
    run = train(recipe(head__kind=kind, loop__epochs=12), dataset(), tmp_path / "run", progress=False)
    facts = json.loads((run / "run.json").read_text())
    top1 = facts["row"]["figures"]["top1"]["test"]
    assert list(top1) == (["16"] if kind == "fixed" else ["8", "16"])
    assert all(value > 0.8 for value in top1.values()), top1
    first, last = metrics(run)[0], metrics(run)[-1]
    assert all(last["loss"][dim] < 0.5 * first["loss"][dim] for dim in top1)
    assert (run / "recipe.toml").exists()
    assert load_recipe(run / "recipe.toml") == dataclasses.replace(recipe(head__kind=kind, loop__epochs=12))


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path):
    a, b, c = (
        load_weights(train(recipe(loop__seed=s, optim__ema=0.9), dataset(), tmp_path / n, progress=False)
                     / "model.safetensors")
        for n, s in (("a", 0), ("b", 0), ("c", 1))
    )  # fmt: skip
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)


APART = multiprocessing.get_context("forkserver")
# What training imports is imported once, before the processes fork: then they start at once.
APART.set_forkserver_preload(["pytest", "matryo.training.loop", "torch._dynamo", "torch.utils.tensorboard"])


def start(out, *, room=None, **changes):
    """Train in a process of its own, which says what it says into a file; no file grows beyond ``room`` bytes."""
    process = APART.Process(target=train_apart, args=(out, room, changes))
    process.start()
    return process


def train_apart(out, room, changes, log=None):
    with (log or said(out)).open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if room is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    torch.set_num_threads(1)
    train(recipe(**changes), dataset(), out, progress=False)


def said(out):
    return out.with_suffix(".txt")


def finish(process, out):
    process.join(120)
    assert process.exitcode == 0, said(out).read_text()


def test_killed_at_any_moment_it_ends_with_the_same_bits(tmp_path):
    streamed = {"data__resident": "no", "data__size": 12, "augment__crop": "resized"}   # read by threads
    changes = {"loop__epochs": 10, "optim__ema": 0.99, **streamed}
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    train(recipe(**changes), dataset(), plain, progress=False)
    rng, kills = np.random.default_rng(0), 0
    while not (killed / "run.json").exists():
        before = _modified(killed / "checkpoint.safetensors")
        process = start(killed, loop__checkpoint_seconds=0, **changes)
        while process.is_alive() and _modified(killed / "checkpoint.safetensors") == before:
            time.sleep(0.002)   # until it has started up and gone on by a step
        time.sleep(float(rng.uniform(0, 0.2)) * (kills < 4))
        if kills < 4 and process.is_alive():
            process.kill()
            process.join()
            kills += process.exitcode == -signal.SIGKILL
        else:
            finish(process, killed)
    assert kills >= 2
    wanted, got = (load_weights(run / "model.safetensors") for run in (plain, killed))
    assert wanted.keys() == got.keys()
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)
    assert [m["step"] for m in metrics(killed)] == [m["step"] for m in metrics(plain)]
    assert [m["loss"] for m in metrics(killed)] == [m["loss"] for m in metrics(plain)]
    assert not list(killed.glob(".*.tmp*")), "leftovers of a kill are swept"


def _modified(path):
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


SCRIPT = """
import sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_loop import dataset, recipe
from matryo.training import train
torch.set_num_threads(1)
changes = dict(item.split("=", 1) for item in sys.argv[3:])
train(recipe(**changes), dataset(), Path(sys.argv[2]), progress=False)
"""


def test_two_processes_equal_one_on_the_same_global_batch(tmp_path):
    changes = {"encoder__norm": "group", "loop__precision": "fp32", "optim__lr_batch": 32, "loop__epochs": 2,
               "data__resident": "no"}   # each process reads its part
    train(recipe(**changes, loop__batch=32), dataset(), tmp_path / "one", progress=False)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [f"{name}={value}" for name, value in (changes | {"loop__batch": 16}).items()]
    command = [*torchrun, str(Path(__file__).parent), str(tmp_path / "two"), *words]
    subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=180)
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert len(one) == len(two) == 6
    for a, b in zip(one, two, strict=True):
        for dim in a["loss"]:
            assert a["loss"][dim] == pytest.approx(b["loss"][dim], abs=1e-5)
            assert a["top1"][dim] == pytest.approx(b["top1"][dim], abs=1e-6)
    wanted, got = (load_weights(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name in wanted:
        torch.testing.assert_close(wanted[name], got[name], atol=1e-5, rtol=1e-4)


def test_a_run_stopped_after_its_last_step_trains_no_further(tmp_path, monkeypatch):
    """Seven steps are one epoch and a part of another, whose rest must not be trained on."""
    whole = train(recipe(loop__steps=7), dataset(), tmp_path / "whole", progress=False)
    with monkeypatch.context() as patched:
        patched.setattr(held_out, "measure", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(recipe(loop__steps=7), dataset(), tmp_path / "run", progress=False)
    run = train(recipe(loop__steps=7), dataset(), tmp_path / "run", progress=False)
    assert [line["step"] for line in metrics(run)] == [1, 2, 3, 4, 5, 6, 7]
    a, b = load_weights(whole / "model.safetensors"), load_weights(run / "model.safetensors")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_what_cannot_be_measured_is_told_before_training(tmp_path):
    with pytest.raises(InputError, match="multiple of the patch size"):
        train(recipe(encoder__name="vit-ti8", encoder__dim=0, data__test_size=20), dataset(), tmp_path / "run",
              progress=False)  # fmt: skip
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_run_may_be_measured_on_other_splits_than_it_began_with(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(held_out, "measure", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(recipe(), dataset(), tmp_path / "run", progress=False)
    run = train(recipe(data__test=""), dataset(), tmp_path / "run", progress=False)
    assert json.loads((run / "run.json").read_text())["row"]["figures"]["top1"] == {}


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(RunError, match=r"a run needs a folder of its own .*which holds model.safetensors"):
        train(recipe(), dataset(), tmp_path / "mine", progress=False)
    assert (tmp_path / "mine" / "model.safetensors").read_bytes() == b"precious"
    assert len(list((tmp_path / "mine").iterdir())) == 1
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".keep").touch()
    train(recipe(loop__steps=1), dataset(), tmp_path / "empty", progress=False)


def test_measuring_has_a_bar_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("matryo.training.batches.open.tqdm", lambda *a, **k: tqdm(*a, **{**k, "delay": 0}))
    train(recipe(loop__steps=1), dataset(), tmp_path / "run")
    said = capsys.readouterr().err
    assert "test test: 100%" in said
    assert "the warm-up takes 3 steps and training only 1" in said


def test_other_images_under_the_same_labels_are_another_run(tmp_path):
    data = dataset()
    train(recipe(loop__steps=1), data, tmp_path / "run", progress=False)
    other = {name: (255 - np.stack([split.image(i) for i in range(len(split))]), split.labels)
             for name, split in data.splits.items()}  # fmt: skip
    with pytest.raises(RunError, match=r"holds another run .*dataset content"):
        train(recipe(loop__steps=1), array_dataset(other), tmp_path / "run", progress=False)


def test_a_complete_run_is_left_as_it_is(tmp_path):
    run = train(recipe(), dataset(), tmp_path / "run", progress=False)
    before = (run / "model.safetensors").stat().st_mtime_ns
    train(recipe(loop__log_every=2), dataset(), run, progress=False)   # a field that changes no result may differ
    assert (run / "model.safetensors").stat().st_mtime_ns == before


def test_a_run_older_than_a_field_is_the_same_at_its_default(tmp_path):
    run = train(recipe(), dataset(), tmp_path / "run", progress=False)
    facts = json.loads((run / "run.json").read_text())
    del facts["recipe"]["encoder"]["widths"], facts["recipe"]["optim"]["clip"]
    del facts["files"], facts["sha256"]   # nor were there checksums
    (run / "run.json").write_text(json.dumps(facts))
    before = (run / "model.safetensors").stat().st_mtime_ns
    train(recipe(), dataset(), run, progress=False)
    assert (run / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(RunError, match=r"another run.*optim.clip: 0.0 there, 1.0 now"):
        train(recipe(optim__clip=1), dataset(), run, progress=False)


def test_another_recipe_or_dataset_in_the_folder_is_an_error_and_loses_nothing(tmp_path):
    run = train(recipe(), dataset(), tmp_path / "run", progress=False)
    before = {path: path.read_bytes() for path in run.glob("*.*") if path.is_file()}
    with pytest.raises(RunError, match=r"another run.*optim.lr: 0.05 there, 0.1 now.*choose another --out"):
        train(recipe(optim__lr=0.1), dataset(), run, progress=False)
    (run / "run.json").unlink()   # now as if it were unfinished: the checkpoint says the same
    with pytest.raises(RunError, match="another run"):
        train(recipe(optim__lr=0.1), dataset(), run, progress=False)
    with pytest.raises(RunError, match="dataset images: 96 there, 80 now"):
        train(recipe(), dataset(count=80), run, progress=False)
    for path, content in before.items():
        assert path.name == "run.json" or path.read_bytes() == content


def test_a_loss_that_is_not_finite_stops_with_a_cure(tmp_path):
    with pytest.raises(TrainingError, match=r"must stay finite.*another --out with a lower --optim.lr"):
        train(recipe(optim__lr=1e30, loop__precision="fp32"), dataset(), tmp_path / "run", progress=False)


def test_one_lost_gradient_is_left_out_and_counted_many_stop_the_run(tmp_path, monkeypatch):
    calls = iter(range(100))

    def fragile(*args, **options):
        model = build_model(*args, **options)
        model.head.weight.register_hook(lambda gradient: gradient * (math.inf if next(calls) == 4 else 1))
        return model

    monkeypatch.setattr(loop, "build_model", fragile)
    careful = {"optim__clip": 1, "encoder__norm": "group", "loop__precision": "fp32"}
    run = train(recipe(**careful), dataset(), tmp_path / "run", progress=False)
    assert [line.get("left_out", 0) for line in metrics(run)] == [0, 0, 0, 0, 1] + [0] * 13
    assert all(value.isfinite().all() for value in load_weights(run / "model.safetensors").values())
    monkeypatch.undo()
    with pytest.raises(TrainingError, match=r"must stay finite.*no finite gradient in 10 steps"):
        train(recipe(**careful, optim__lr=1e30), dataset(), tmp_path / "lost", progress=False)


def test_attention_of_cudnn_has_no_part_in_training_and_is_given_back(tmp_path, monkeypatch):
    seen = []

    def watched(*args, **options):
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return measure(*args, **options)

    monkeypatch.setattr(held_out, "measure", watched)
    for before in (True, False):
        torch.backends.cuda.enable_cudnn_sdp(before)
        try:
            train(recipe(loop__epochs=1), dataset(), tmp_path / str(before), progress=False)
            assert torch.backends.cuda.cudnn_sdp_enabled() is before
        finally:
            torch.backends.cuda.enable_cudnn_sdp(True)
    assert seen == [False, False]


def test_mistakes_are_told_before_any_work(tmp_path):
    cases = [
        (recipe(data__test="nope"), DataError, r'must name splits.*got nope\): .*test, train, or .* --data.test ""'),
        (recipe(data__train="nope"), DataError, "has no such split"),
        (recipe(head__dims="8,32"), NestingError, "must not exceed the 16 dimensions"),
        (recipe(loop__batch=1000), DataError, r"fill one batch.*--loop.batch 96"),
        (recipe(finetune__start=tmp_path / "none"), RunError, "run folder or a .safetensors"),
    ]
    for number, (made, error, message) in enumerate(cases):
        with pytest.raises(error, match=message):
            train(made, dataset(), tmp_path / f"run{number}", progress=False)
        assert not (tmp_path / f"run{number}" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("unfreeze", ["none", "blocks.2", ""])
def test_finetuning_trains_from_the_named_layer_on(tmp_path, unfreeze):
    first = train(recipe(head__kind="fixed"), dataset(), tmp_path / "first", progress=False)
    second = train(
        recipe(finetune__start=first, finetune__unfreeze=unfreeze), dataset(), tmp_path / "second", progress=False
    )
    before, after = load_weights(first / "model.safetensors"), load_weights(second / "model.safetensors")
    changed = {name.split(".body")[0].split(".shortcut")[0] for name in before if name.startswith("encoder.")
               and not torch.equal(before[name], after[name])}  # fmt: skip
    early = ["stem", "blocks.0", "blocks.1"]
    frozen = {"none": [*early, "blocks.2"], "blocks.2": early, "": []}
    for part in frozen[unfreeze]:   # batch-norm statistics included
        assert not any(name.startswith(f"encoder.{part}") for name in changed), changed
    assert any(name.startswith("encoder.blocks.2") for name in changed) == (unfreeze != "none")


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path):
    """A file-size limit stands in for the full disk: the kernel refuses the write in the same way."""
    run, often = tmp_path / "run", {"loop__checkpoint_seconds": 0}
    process = start(run, loop__epochs=20, **often)
    while not (run / "checkpoint.safetensors").exists():
        time.sleep(0.01)
        assert process.is_alive()
    process.kill()
    process.join()
    size = (run / "checkpoint.safetensors").stat().st_size
    refused = start(run, room=size // 2, loop__epochs=20, **often)
    refused.join(60)
    assert refused.exitcode == 1
    assert "StorageError" in said(run).read_text()
    assert "earlier files are intact" in said(run).read_text()
    finish(start(run, loop__epochs=20), run)
    assert load(run).nesting.dims == (8, 16)


def test_ctrl_c_saves_first_and_the_run_goes_on(tmp_path):
    run, changes = tmp_path / "run", {"loop__epochs": 20, "loop__checkpoint_seconds": 1000}
    process = start(run, **changes)
    while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_text().splitlines()) < 5:
        time.sleep(0.01)
        assert process.is_alive()
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert "KeyboardInterrupt" in said(run).read_text()
    assert (run / "checkpoint.safetensors").exists()
    finish(start(run, **changes), run)
    assert [m["step"] for m in metrics(run)] == list(range(1, 121))


def train_one_of_two(out, rank, port, interrupted):
    """Train as one of two processes, of which ``interrupted`` hears Ctrl-C before its third step."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port)}  # fmt: skip
    real = loop.make_step

    def make_step(*given):
        step, taken = real(*given), []

        class Interrupted(type(step)):
            def __call__(self, *batch):
                taken.append(None)
                if rank == interrupted and len(taken) == 3:
                    signal.raise_signal(signal.SIGINT)
                return super().__call__(*batch)

        step.__class__ = Interrupted
        return step

    loop.make_step = make_step
    signal.signal(signal.SIGINT, signal.default_int_handler)   # which a shell's background may have ignored
    changes = {"loop__epochs": 20, "loop__checkpoint_seconds": 1000, "loop__batch": 16}
    train_apart(out, None, changes, out.with_name(f"{rank}.txt"))


@pytest.mark.parametrize("interrupted", [0, 1])
def test_ctrl_c_that_one_process_hears_first_saves_too(tmp_path, interrupted):
    """Signals reach processes between different steps: whoever hears one must not leave the others waiting."""
    run = tmp_path / "run"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    processes = [APART.Process(target=train_one_of_two, args=(run, rank, port, interrupted)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode
    for rank in (0, 1):
        assert "RuntimeError" not in (tmp_path / f"{rank}.txt").read_text()   # a connection that was closed
    assert 3 <= read_facts(run / "checkpoint.safetensors")["step"] <= 5
