"""Two processes against one with the whole batch, on pairs (negatives of both) and on masked texts."""

import faulthandler
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("tokenizers")

RUNS = {
    "pairs": {"objective__kind": "pairs", "objective__learn_temperature": "yes"},
    "masked": {"objective__kind": "masked", "head__kind": "tied"},
}


def run(name, out, batch):
    sys.path.append(str(Path(__file__).parents[2] / "helpers"))   # it runs as a program, too
    import texts_made as made

    from matryo.training import train

    data = made.pairs(negatives=1) if name == "pairs" else made.corpus()
    same = {"encoder__dropout": 0, "loop__precision": "fp32", "optim__name": "sgd", "optim__lr": 0.05,
            "loop__epochs": 1}  # fmt: skip
    return train(made.recipe(loop__batch=batch, **same, **RUNS[name]), data, Path(out) / name, progress=False)


def main(out):
    """Import once, then split in two."""
    other = os.fork()
    faulthandler.dump_traceback_later(90, exit=True)
    rank = 1 if other else 0
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for port, name in enumerate(RUNS, int(sys.argv[2])):
        os.environ["MASTER_PORT"] = str(port)
        run(name, out, 4)
    if other:
        sys.exit(os.waitpid(other, 0)[1])


def free_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_two_processes_equal_one(tmp_path):
    from matryo.training.run.checkpoint import load_weights

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, __file__, str(tmp_path / "two"), str(free_port())]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert found.returncode == 0, found.stderr
    for name in RUNS:
        one, two = run(name, tmp_path / "one", 8), tmp_path / "two" / name
        losses = [[json.loads(line)["loss"] for line in (each / "metrics.jsonl").read_text().splitlines()
                   if '"train"' in line] for each in (one, two)]  # fmt: skip
        assert len(losses[0]) == len(losses[1]) >= 4
        for a, b in zip(*losses, strict=True):
            assert a == pytest.approx(b, abs=1e-4)
        wanted, got = (load_weights(each / "model.safetensors") for each in (one, two))
        for key in wanted:
            torch.testing.assert_close(wanted[key], got[key], atol=1e-4, rtol=1e-3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
