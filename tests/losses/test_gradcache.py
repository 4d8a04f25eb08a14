"""GradCache against one forward pass over the whole batch: values, gradients, dropout, precision, several processes."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from matryo.losses.gradcache import cached


def network(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 5)).double()


def contrast(a, b):
    return F.cross_entropy(a @ b.T, torch.arange(len(a)))


def gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


COLUMNS = torch.randn(2, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).unbind()


@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_value_and_gradients_are_those_of_the_whole_batch(size):
    model = network()
    wanted = contrast(*map(model, COLUMNS))
    (wanted * 3).backward()
    expected = gradients(model)
    model.zero_grad()
    value = cached(contrast, [column.split(size) for column in COLUMNS], model, model)
    assert all(parameter.grad is None for parameter in model.parameters())
    (value * 3).backward()
    torch.testing.assert_close(value, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients(model), expected, rtol=1e-10, atol=1e-12)


def test_dropout_is_the_same_both_times_and_the_random_numbers_go_on():
    model = network(dropout=0.5)
    batches = [column.split(3) for column in COLUMNS]
    torch.manual_seed(5)
    wanted = contrast(*(torch.cat([model(batch) for batch in column]) for column in batches))
    after = torch.rand(())
    wanted.backward()
    expected = gradients(model)
    model.zero_grad()
    torch.manual_seed(5)
    value = cached(contrast, batches, model, model)
    assert torch.rand(()) == after
    torch.manual_seed(99)
    value.backward()
    assert torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(99))
    torch.testing.assert_close(value, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients(model), expected, rtol=1e-10, atol=1e-12)


def test_two_losses_may_wait_for_their_gradients():
    model = network()
    first = cached(contrast, [column.split(3) for column in COLUMNS], model, model)
    second = cached(contrast, [column.split(2) for column in reversed(COLUMNS)], model, model)
    (first + second / 2).backward()
    got = gradients(model)
    model.zero_grad()
    a, b = map(model, COLUMNS)
    (contrast(a, b) + contrast(b, a) / 2).backward()
    torch.testing.assert_close(got, gradients(model), rtol=1e-10, atol=1e-12)


def test_one_mini_batch_has_a_graph_at_a_time():
    model, graphs = network(), []

    def embed(batch):
        graphs.append(torch.is_grad_enabled())
        return model(batch)

    value = cached(contrast, [column.split(3) for column in COLUMNS], embed, model)
    assert graphs == [False] * 6
    value.backward()
    assert graphs == [False] * 6 + [True] * 6


def test_without_gradients_it_is_the_loss():
    model = network()
    with torch.no_grad():
        value = cached(contrast, [column.split(3) for column in COLUMNS], model, model)
        torch.testing.assert_close(value, contrast(*map(model, COLUMNS)), rtol=1e-12, atol=0)
    assert not value.requires_grad


def test_the_second_pass_has_the_precision_of_the_first():
    model, dtypes = network().float(), []

    def embed(batch):
        z = model(batch)
        dtypes.append(z.dtype)
        return z.float()

    columns = [column.float().split(3) for column in COLUMNS]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = cached(contrast, columns, embed, model)
    value.backward()
    assert dtypes == [torch.bfloat16] * 12


def test_what_is_frozen_learns_nothing():
    model = network()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    value = cached(contrast, [column.split(3) for column in COLUMNS], model, model)
    value.backward()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.fixture
def alone(tmp_path):
    """A group of one process."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("frozen", [False, True])
def test_processes_average_once(frozen):
    plain = network()
    plain[0].bias.requires_grad_(not frozen)
    model, averaged = DistributedDataParallel(plain), []
    plain[0].weight.register_hook(lambda _: averaged.append(model.require_backward_grad_sync))
    cached(contrast, [column.split(3) for column in COLUMNS], model, model).backward()
    assert averaged == [frozen] * 5 + [True]   # with a frozen part, after each: the last may be frozen whole
    assert model.require_backward_grad_sync
    got = plain[0].weight.grad.clone()
    plain.zero_grad()
    contrast(*map(plain, COLUMNS)).backward()
    torch.testing.assert_close(got, plain[0].weight.grad, rtol=1e-10, atol=1e-12)


PROCESS = """
import sys
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from matryo.losses.sentence_transformers.ranking import NestedRankingLoss

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(50, 16)
        self.out = nn.Linear(16, 12)

    def forward(self, texts):
        return {"sentence_embedding": self.out(self.table(texts["input_ids"]))}

def learn(rank, world):
    torch.manual_seed(0)
    model = Words().double()
    columns = torch.randint(50, (4, 8, 6))   # anchors, positives, two negatives
    share = columns[:, rank * 8 // world : (rank + 1) * 8 // world]
    if world > 1:
        model = DistributedDataParallel(model)
    found = {}
    for size in (None, 3):
        for symmetric in (False, True):
            loss = NestedRankingLoss(model, [3, 12], symmetric=symmetric, mini_batch_size=size, gather=True)
            model.zero_grad()
            value = loss([{"input_ids": texts} for texts in share])
            value.backward()
            found[f"{size} {symmetric}"] = value.detach()
            found |= {f"{size} {symmetric} {i}": p.grad.clone() for i, p in enumerate(model.parameters())}
    return found

def learn_together(rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = learn(rank, 2)
    torch.distributed.destroy_process_group()
    return found

if __name__ == "__main__":
    torch.set_num_threads(1)
    save_file(learn_together(1, sys.argv[1]), sys.argv[1] + "/second.safetensors")
"""


def test_two_processes_learn_what_one_does_with_the_whole_batch(tmp_path):
    script = {"__name__": "script"}
    exec(PROCESS, script)
    wanted = script["learn"](0, 1)
    other = subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    first = script["learn_together"](0, tmp_path)
    output, _ = other.communicate(timeout=120)
    assert other.returncode == 0, output
    second = load_file(tmp_path / "second.safetensors")
    for name, want in wanted.items():
        # Losses are means over the queries of a process; gradients have been averaged.
        assert torch.equal(first[name], second[name]) == (want.ndim > 0)
        torch.testing.assert_close((first[name] + second[name]) / 2, want, rtol=1e-9, atol=1e-12)
