"""Checkpoints: what was saved comes back bit for bit, and the next step is the one that would have come."""

import hashlib
import json
import struct
from itertools import pairwise

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from matryo.errors import RunError
from matryo.training.model import build_model
from matryo.training.optim import make_optimizer, moving_average
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override
from matryo.training.run.checkpoint import load_checkpoint, load_weights, save_checkpoint, save_weights
from matryo.training.run.seal import check_seal, read_facts

CPU = torch.device("cpu")


class Run:
    """A tiny training whose steps depend on nothing but their number."""

    def __init__(self, optimiser="sgd", ema=0.9, seed=0, slimmable=False):
        changes = {"optim.name": optimiser, "optim.lr": "0.05", "encoder.dim": "16", "loop.seed": str(seed)}
        if slimmable:
            changes |= {"head.kind": "slimmable", "encoder.name": "resnet18", "encoder.dim": "0"}
        recipe = override(Recipe(), changes)
        self.model = build_model(recipe, classes=3).to(memory_format=torch.channels_last)   # as training has it
        self.optimizer = make_optimizer(self.model, recipe)
        self.average = moving_average(self.model, ema) if ema else None
        self.parts = (self.model, self.optimizer, self.average)

    def step(self, number):
        generator = torch.Generator().manual_seed(number)
        images = torch.randn(6, 3, 16, 16, generator=generator).to(memory_format=torch.channels_last)
        target = torch.randint(3, (6,), generator=generator)
        self.optimizer.zero_grad()
        _, losses = self.model(images, target)
        losses.sum().backward()
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)

    def steps(self, first, last):
        for number in range(first, last):
            self.step(number)
        return self

    def everything(self):
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        if self.average is not None:
            found |= {f"average.{name}": value for name, value in self.average.module.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{index}.{key}": value for key, value in state.items()}
        return found


def assert_same(a, b):
    wanted, got = a.everything(), b.everything()
    assert wanted.keys() == got.keys()
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype, name
        assert torch.equal(got[name], value), name


@pytest.mark.parametrize("ema", [0.9, 0])
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_everything_comes_back_and_the_next_steps_are_the_same(tmp_path, optimiser, ema):
    path = tmp_path / "checkpoint.safetensors"
    first = Run(optimiser, ema).steps(0, 3)
    save_checkpoint(path, *first.parts, {"step": 3})
    kept = {name: value.clone() for name, value in first.everything().items()}
    second = Run(optimiser, ema, seed=1)   # other weights, all of which must go
    load_checkpoint(path, *second.parts)
    assert_same(first, second)
    assert all(torch.equal(value, kept[name]) for name, value in first.everything().items()), "saving changes nothing"
    state = {key for part in second.optimizer.state_dict()["state"].values() for key in part}
    assert state == ({"momentum_buffer"} if optimiser == "sgd" else {"step", "exp_avg", "exp_avg_sq"})
    assert_same(first.steps(3, 6), second.steps(3, 6))
    assert_same(Run(optimiser, ema).steps(0, 6), second)


def test_every_width_of_a_slimmable_network_comes_back(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    first, second = Run(slimmable=True).steps(0, 2), Run(slimmable=True, seed=1)
    save_checkpoint(path, *first.parts, {"step": 2})
    load_checkpoint(path, *second.parts)
    assert_same(first, second)
    assert_same(first.steps(2, 4), second.steps(2, 4))
    moved = [value for name, value in second.everything().items() if name.endswith("running_mean")]
    assert len(moved) == 2 * 4 * 20, "twenty norms a width, in the model and in its average"
    assert all(value.any() for value in moved)


def test_the_optimisers_state_lies_in_memory_as_its_parameters_do(tmp_path):
    """Fused updates walk both side by side: another order would mix up the momentum of different weights."""
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, *Run().steps(0, 1).parts, {})
    run = Run()
    load_checkpoint(path, *run.parts)
    strides = set()
    for group in run.optimizer.param_groups:
        for parameter in group["params"]:
            buffer = run.optimizer.state[parameter]["momentum_buffer"]
            assert buffer.stride() == parameter.stride()
            strides.add(parameter.is_contiguous())
    assert strides == {True, False}, "both kinds of memory were there"


def test_a_checkpoint_before_the_first_step(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    first, second = Run(), Run(seed=1)
    save_checkpoint(path, *first.parts, {"step": 0})
    load_checkpoint(path, *second.parts)
    assert_same(first.steps(0, 2), second.steps(0, 2))


def test_the_random_state_comes_back(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    run = Run()
    torch.manual_seed(5)
    torch.rand(3)
    save_checkpoint(path, *run.parts, {})
    wanted = torch.rand(4)
    torch.manual_seed(6)
    load_checkpoint(path, *run.parts)
    assert torch.equal(torch.rand(4), wanted)


def test_the_facts_are_read_without_the_tensors(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    facts = {"step": 12, "recipe": {"optim": {"lr": 0.1}, "name": "ä"}, "none": None, "list": [1, 2]}
    save_checkpoint(path, *Run().parts, facts)
    assert read_facts(path) == facts
    # Cut the file after its header and declare no tensors: the facts are all there.
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    header = json.dumps({"__metadata__": metadata}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    assert read_facts(path) == facts


def test_a_checkpoint_is_safetensors_and_nothing_else(tmp_path):
    """A header of JSON, then bytes that the header accounts for to the last one: nothing to unpickle."""
    path = tmp_path / "checkpoint.safetensors"
    run = Run("adamw").steps(0, 1)
    save_checkpoint(path, *run.parts, {"step": 1})
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    unsealed = data.replace(metadata.pop("sha256").encode(), b"0" * 64)
    assert hashlib.sha256(unsealed).hexdigest().encode() in data[:length], "the checksum of all other bytes"
    assert metadata == {"facts": '{"step": 1}'}
    assert header.keys() == {*run.everything(), "random.cpu", *(["random.cuda"] if torch.cuda.is_available() else [])}
    ranges = sorted(entry["data_offsets"] for entry in header.values())
    assert ranges[0][0] == 0
    assert all(end == start for (_, end), (start, _) in pairwise(ranges))
    assert 8 + length + ranges[-1][1] == len(data)
    assert list(tmp_path.iterdir()) == [path], "no temporary file stays behind"


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, -1])
def test_a_file_cut_short_is_named(tmp_path, keep):
    path = tmp_path / "checkpoint.safetensors"
    run = Run()
    save_checkpoint(path, *run.parts, {"step": 1})
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    for read in (read_facts, check_seal, load_weights, lambda path: load_checkpoint(path, *run.parts)):
        with pytest.raises(RunError, match=r"checkpoint.safetensors (cannot be read|is damaged) \(got .*\): restore"):
            read(path)


def test_a_missing_or_foreign_file_is_named(tmp_path):
    with pytest.raises(RunError, match=r"none.safetensors cannot be read"):
        load_weights(tmp_path / "none.safetensors")
    (tmp_path / "pickle.safetensors").write_bytes(b"\x80\x04\x95" + b"x" * 100)
    with pytest.raises(RunError, match=r"pickle.safetensors cannot be read"):
        load_weights(tmp_path / "pickle.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(RunError, match=r"weights.safetensors is damaged \(got no facts in it\)"):
        read_facts(tmp_path / "weights.safetensors")


def test_weights_that_share_memory_are_saved_in_full(tmp_path):
    path = tmp_path / "model.safetensors"
    base = torch.arange(12.0).view(3, 4)
    state = {
        "whole": base,
        "tied": base,
        "part": base[1:],            # overlaps, from another start
        "turned": base.T,
        "spread": torch.ones(1).expand(5),
        "empty": torch.zeros(0, 4),
        "nothing": torch.zeros(0),
    }
    save_weights(path, state)
    loaded = load_weights(path)
    assert loaded.keys() == state.keys()
    for name, value in state.items():
        assert torch.equal(loaded[name], value), name
    assert torch.equal(base, torch.arange(12.0).view(3, 4))


def test_tied_modules_go_through_a_checkpoint(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4, bias=False)
            self.b = nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

    path = tmp_path / "checkpoint.safetensors"
    first, second = Tied(), Tied()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in (first, second)]
    first.a.weight.grad = torch.randn(4, 4)
    optimizers[0].step()
    save_checkpoint(path, first, optimizers[0], None, {})
    load_checkpoint(path, second, optimizers[1], None)
    assert torch.equal(first.a.weight, second.a.weight)
    assert second.a.weight is second.b.weight


def test_weights_keep_their_type_and_come_back_on_the_cpu(tmp_path):
    path = tmp_path / "model.safetensors"
    state = {
        "half": torch.randn(3).to(torch.bfloat16), "double": torch.randn(3, dtype=torch.float64),
        "count": torch.tensor(2**40), "conv": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }  # fmt: skip
    save_weights(path, state)
    for name, value in load_weights(path).items():
        assert value.dtype == state[name].dtype
        assert value.device == CPU
        assert torch.equal(value, state[name])
