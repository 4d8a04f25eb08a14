"""Two processes against one with the whole batch: the same loss, and the same gradients once they are averaged."""

import faulthandler
import os
import subprocess
import sys

import torch
from torch import distributed, nn

from matryo import Nesting
from matryo.errors import InputError
from matryo.losses import nested_contrastive

NESTING = Nesting([3, 8, 12], weights=[1.0, 0.5, 2.0])
CASES = [(symmetric, engine) for symmetric in (False, True) for engine in ("plain", "chunked")]
WORLD = 2


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encode = nn.Linear(7, 12).double()
        self.temperature = nn.Parameter(torch.tensor(0.2, dtype=torch.float64))

    def forward(self, texts, symmetric, engine, gather):
        a, b, negatives = (self.encode(one) for one in texts)
        return nested_contrastive(
            a, b, NESTING, self.temperature, symmetric=symmetric, negatives=negatives, gather=gather, engine=engine
        )


def texts():
    source = torch.Generator().manual_seed(1)
    return [torch.randn(n, 7, generator=source, dtype=torch.float64) for n in (6, 6, 4)]


def whole(symmetric, engine):
    """The loss and the gradients of the whole batch."""
    model = Towers()
    loss = model(texts(), symmetric, engine, False)
    loss.backward()
    return loss.detach(), [one.grad for one in model.parameters()]


def shared(rank, symmetric, engine):
    """The mean of the processes' losses, and what DDP makes of their gradients."""
    model = nn.parallel.DistributedDataParallel(Towers())
    loss = model([one.chunk(WORLD)[rank] for one in texts()], symmetric, engine, True)
    loss.backward()
    distributed.all_reduce(total := loss.detach().clone())
    return total / WORLD, [one.grad for one in model.module.parameters()]


def check_uneven(rank):
    """A last batch that is smaller in one process, or has negatives in one alone, is named in both, which go on."""
    z = torch.randn(4, 12)
    uneven = [(2 + rank, z[:2], "got 2, 3 by rank"), (3, z[: 2 - rank], "got 2, 1 by rank"),
              (3, None if rank else z, "got 4, 0 by rank")]  # fmt: skip
    for rows, negatives, named in uneven:
        try:
            nested_contrastive(z[:rows], z[:rows], NESTING, negatives=negatives, gather=True)
        except InputError as error:
            assert named in str(error), error
        else:
            raise AssertionError("other numbers of rows must not be gathered")


def main(file):
    """Import once, then split in two."""
    wanted = [whole(*case) for case in CASES]
    other = os.fork()
    faulthandler.dump_traceback_later(90, exit=True)
    rank = 1 if other else 0
    distributed.init_process_group("gloo", f"file://{file}", world_size=WORLD, rank=rank)
    for case, want in zip(CASES, wanted, strict=True):
        torch.testing.assert_close(shared(rank, *case), want)
    check_uneven(rank)
    distributed.destroy_process_group()
    if other:
        sys.exit(os.waitpid(other, 0)[1])


def test_two_processes_equal_one(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__, str(tmp_path / "store")]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert found.returncode == 0, found.stderr


if __name__ == "__main__":
    main(sys.argv[1])
