"""Cost of a nested ranking loss: sentence-transformers' MatryoshkaLoss against NestedRankingLoss, on embeddings.

The model hands over the embeddings it is given, so that a step is the loss and its gradient by them, and nothing else.
All variants run side by side in one process, in turns, so that clocks and neighbours disturb them alike.

    python benchmarks/sentence_loss.py --batch 1024 8192 32768 --dim 384 768 1024
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from matryo import Nesting
from matryo.losses.sentence_transformers.ranking import NestedRankingLoss
from matryo.results import Row, append_rows, stamp

MIB = 1 << 20


class Given(nn.Sequential):
    """A model whose texts are embeddings already; a sequence, since sentence-transformers looks at its first module."""

    def __init__(self, dim: int) -> None:
        super().__init__(nn.Identity())
        self.dim = dim

    def get_embedding_dimension(self) -> int:
        """The interface that sentence-transformers expects of a model."""
        return self.dim

    def forward(self, texts: dict[str, Tensor]) -> dict[str, Tensor]:
        """The embeddings, as they came."""
        return {"sentence_embedding": texts["embeddings"]}


def main() -> None:
    """Measure every shape, print the tables, store a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--batch", type=int, nargs="+", default=[1024, 4096, 8192, 16384, 32768] if cuda else [256])
    parser.add_argument("--dim", type=int, nargs="+", default=[384, 768, 1024] if cuda else [384])
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"] if cuda else ["float32"])
    parser.add_argument("--smallest", type=int, default=8, help="dims halve down to this one")
    parser.add_argument("--negatives", type=int, default=0, help="hard negatives for each anchor")
    parser.add_argument("--mini-batch", type=int, default=1024, help="rows at a time of the cached variants")
    parser.add_argument("--rounds", type=int, default=20, help="timed steps a variant")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/sentence-loss.jsonl"))
    args = parser.parse_args()
    device = torch.device("cuda" if cuda else "cpu")
    for dtype in args.dtype:
        for dim in args.dim:
            for batch in args.batch:
                append_rows(args.rows, [measure(args, device, batch, dim, getattr(torch, dtype))])


def measure(args: argparse.Namespace, device: torch.device, batch: int, dim: int, dtype: torch.dtype) -> Row:
    """One shape: milliseconds and peak memory of a step of each variant."""
    nesting = Nesting.halving(dim, smallest=args.smallest)
    torch.manual_seed(0)
    shape = (batch, dim)
    columns = [torch.randn(shape, device=device, dtype=dtype).requires_grad_() for _ in range(2 + args.negatives)]
    steps = {name: step_of(loss, columns) for name, loss in variants(nesting, min(args.mini_batch, batch)).items()}
    peaks, broken = {}, []
    for name, step in steps.items():
        try:
            step()   # kernels are compiled and libraries loaded before anything is measured
            peaks[name] = peak_of(step, device)
        except torch.cuda.OutOfMemoryError:
            broken.append(name)
            torch.cuda.empty_cache()
    times: dict[str, list[float]] = {name: [] for name in peaks}
    for _ in range(args.rounds):
        for name in peaks:
            synchronize(device)
            begin = time.perf_counter()
            steps[name]()
            synchronize(device)
            times[name].append((time.perf_counter() - begin) * 1000)
    figures: dict[str, Any] = {name: summary(times[name]) | peaks[name] for name in peaks}
    subject = f"batch {batch} d {dim} {str(dtype).removeprefix('torch.')}"
    subject += f" negatives {args.negatives}" if args.negatives else ""
    show(subject, nesting, figures, broken)
    settings = {"dims": nesting.dims, "mini_batch": min(args.mini_batch, batch), "out_of_memory": broken}
    settings["sentence_transformers"] = metadata.version("sentence-transformers")
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else ""
    return stamp("sentence-loss", subject, {"variants": figures} | settings, seed=0, hardware=hardware)


def variants(nesting: Nesting, mini_batch: int) -> dict[str, nn.Module]:
    """Theirs at one dim and at all, ours at all; and both with cached gradients."""
    losses: Any = importlib.import_module("sentence_transformers.sentence_transformer.losses")
    model, dims = Given(nesting.dim), list(nesting.dims)
    single = losses.MultipleNegativesRankingLoss(model)
    cached = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=mini_batch)
    return {
        "single": single,
        "matryoshka": losses.MatryoshkaLoss(model, single, dims),
        "nested": NestedRankingLoss(model, nesting),
        "matryoshka cached": losses.MatryoshkaLoss(model, cached, dims),
        "nested cached": NestedRankingLoss(model, nesting, mini_batch_size=mini_batch),
    }


def step_of(loss: nn.Module, columns: list[Tensor]) -> Callable[[], Tensor]:
    """The loss and its gradient by all embeddings; gives the loss."""

    def step() -> Tensor:
        for column in columns:
            column.grad = None
        value: Tensor = loss([{"embeddings": column} for column in columns], None)
        value.backward()
        return value.detach()

    return step


def peak_of(step: Callable[[], Tensor], device: torch.device) -> dict[str, float]:
    """The loss, and on a GPU the most memory that a step held beyond what is there before it."""
    if device.type != "cuda":
        return {"loss": float(step())}
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss = float(step())
    return {"loss": loss, "peak_mib": round((torch.cuda.max_memory_allocated() - before) / MIB, 1)}


def summary(values: list[float]) -> dict[str, float]:
    """p20, p50 and p80 of milliseconds."""
    p20, _, _, p80 = statistics.quantiles(values, n=5)
    return {"p20": round(p20, 3), "p50": round(statistics.median(values), 3), "p80": round(p80, 3)}


def show(subject: str, nesting: Nesting, figures: dict[str, dict[str, float]], broken: list[str]) -> None:
    """The table of one shape."""
    print(f"{subject}, {len(nesting)} dims")
    for name, figure in figures.items():
        memory = f"{figure['peak_mib']:10.0f} MiB" if "peak_mib" in figure else ""
        print(f"  {name:18} {figure['p50']:9.2f} ms {memory}  loss {figure['loss']:.4f}")
    for name in broken:
        print(f"  {name:18} out of memory")


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
