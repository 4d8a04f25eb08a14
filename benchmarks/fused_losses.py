"""Time and memory of nested losses on a GPU, forward and backward, compared with the plain losses they replace.

``single`` is the loss at the full dim alone, ``nested`` the loop over the dims that people write, each as it is and
under ``torch.compile``; all take the same bfloat16 tensors and compute the softmax in float32. They take turns, each
with some steps in a row, as a training has them: while the GPU is at one, the host asks for the next. The
memory of a loss is its peak less what was there before and the gradients; ``limit`` is the time of four products of the
full width, or of all heads (forward, again for the backward pass, and the two gradients), at the rate measured for one.

    python benchmarks/fused_losses.py
    python benchmarks/fused_losses.py --cases dims --variants "single eager" fused
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from matryo import Nesting
from matryo.losses import nested_contrastive, nested_cross_entropy
from matryo.losses.cross_entropy import cross_entropy_of, weighed
from matryo.losses.engines.contract import Scores
from matryo.nesting import truncate
from matryo.results import append_rows, stamp

VARIANTS = ("single eager", "single compiled", "nested eager", "nested compiled", "fused", "fused, self-distilled")
STEPS = 3   # in a row
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """One shape."""

    group: str
    kind: str
    """cross-entropy (of one head for all dims), separate (one head per dim), or contrastive."""
    batch: int
    columns: int
    nesting: Nesting
    variants: tuple[str, ...] = VARIANTS

    @property
    def name(self) -> str:
        """As the rows call it."""
        size = f"{self.kind} {self.batch} × {self.columns} × {self.nesting.dim}, {len(self.nesting)} dims"
        return f"{size} by doublings" if self.group == "doublings" else size


def cases() -> list[Case]:
    """All of them, the two that most was asked of first."""
    bert, large, few = Nesting.halving(768, 12), Nesting.halving(2048), ("single eager", "nested eager", "fused")
    found = [
        Case("main", "cross-entropy", 8192, 30_522, bert),
        Case("main", "cross-entropy", 8192, 131_072, large),
        Case("contrastive", "contrastive", 32_768, 32_768, Nesting.halving(1024, 4)),
        Case("contrastive", "contrastive", 4096, 4096, Nesting.halving(1024, 4), few),
    ]
    # Heads that begin at multiples of 16 bytes, and heads that do not.
    found += [Case("separate", "separate", 8192, 30_522, nesting) for nesting in (Nesting.halving(768, 24), bert)]
    found += [Case("classes", "cross-entropy", 8192, n, large, few) for n in (1000, 4000, 16_000, 64_000, 256_000)]
    found += [Case("batch", "cross-entropy", n, 30_522, bert, few) for n in (1024, 4096, 16_384, 32_768)]
    for count in (1, 2, 4, 8, 16, 32):
        nesting = Nesting.uniform(2048, count, 2048 // count)
        found.append(Case("dims", "cross-entropy", 8192, 131_072, nesting, ("single eager", "fused")))
    for parts in (1, 2, 4):   # dims a doubling: 8, 16 and 32 from 16 (12, 10) to 2048
        dims = [(parts + part) << octave for octave in range(11) for part in range(1, parts + 1)]
        nesting = Nesting([dim // parts for dim in dims if dim % parts == 0 and 8 * parts < dim <= 2048 * parts])
        found.append(Case("doublings", "cross-entropy", 8192, 131_072, nesting, ("single eager", "fused")))
    return found


def loss_at(case: Case, dim: int) -> Loss:
    """The plain loss at one dim."""
    if case.kind == "contrastive":
        return lambda a, b, target: F.cross_entropy((truncate(a, dim) @ truncate(b, dim).T).float() / 0.05, target)
    start = sum(one for one in case.nesting.dims if one < dim) if case.kind == "separate" else 0
    return lambda a, b, target: F.cross_entropy(F.linear(a[:, :dim], b[:, start : start + dim]).float(), target)


def losses(case: Case) -> dict[str, Loss]:
    """The loss of each variant."""
    nesting, parts = case.nesting, [loss_at(case, dim) for dim in case.nesting.dims]

    def loop(a: Tensor, b: Tensor, target: Tensor) -> Tensor:
        return torch.stack([c * part(a, b, target) for part, c in zip(parts, nesting.weights, strict=True)]).sum()

    def fused(a: Tensor, b: Tensor, target: Tensor) -> Tensor:
        if case.kind == "contrastive":
            return nested_contrastive(a, b, nesting, engine="triton")   # row i belongs to row i
        if case.kind == "separate":   # as NestedLinear.loss has it
            scores = Scores(a, b, nesting, tied=False)
            return weighed(cross_entropy_of(scores, target, lambda: b, engine="triton"), nesting)
        return nested_cross_entropy(a, b, target, nesting, engine="triton")

    def distilled(a: Tensor, b: Tensor, target: Tensor) -> Tensor:
        return nested_cross_entropy(a, b, target, nesting, self_distil=0.5, engine="chunked")

    made: dict[str, Loss] = {"single eager": parts[-1], "nested eager": loop, "fused": fused}
    if case.kind == "cross-entropy":
        made["fused, self-distilled"] = distilled
    for name, loss in (("single compiled", parts[-1]), ("nested compiled", loop)):
        if name in case.variants:
            made[name] = torch.compile(loss, dynamic=False)
    return {name: made[name] for name in VARIANTS if name in case.variants}


def gradient_error(case: Case, fused: Loss, a: Tensor, b: Tensor, target: Tensor) -> float:
    """How far the fused gradients are from those of the loop, by norm: what is quick and wrong is not timed."""
    wanted = [torch.zeros_like(one, dtype=torch.float32) for one in (a, b)]
    for dim, c in zip(case.nesting.dims, case.nesting.weights, strict=True):
        for sums, part in zip(wanted, torch.autograd.grad(loss_at(case, dim)(a, b, target), (a, b)), strict=True):
            sums.add_(part, alpha=c)
    got = torch.autograd.grad(fused(a, b, target), (a, b))
    error = max(float((one - two).norm() / two.norm()) for one, two in zip(got, wanted, strict=True))
    if not error < 0.02:
        raise SystemExit(f"{case.name}: the fused gradients are wrong, by {error:.3f} of their norm")
    return error


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Milliseconds and memory of every variant of one case."""
    draw = torch.Generator("cuda").manual_seed(0)
    a = torch.randn(case.batch, case.nesting.dim, generator=draw, device="cuda").bfloat16().requires_grad_()
    wide = sum(case.nesting.dims) if case.kind == "separate" else case.nesting.dim
    b = torch.randn(case.columns, wide, generator=draw, device="cuda") / case.nesting.dim**0.5
    b = b.bfloat16().requires_grad_()
    target = torch.arange(case.batch, device="cuda") % case.columns
    made = losses(case)
    error = gradient_error(case, made["fused"], a, b, target)
    run = {name: step(loss, a, b, target) for name, loss in made.items()}
    figures: dict[str, Any] = {name: {"extra_bytes": extra(one, a, b)} for name, one in run.items()}
    times: dict[str, list[float]] = {name: [] for name in run}
    for _ in range(rounds):
        for name, one in run.items():
            times[name].append(milliseconds(one, STEPS))
    for name, found in times.items():
        p20, _, _, p80 = statistics.quantiles(found, n=5)
        figures[name] |= {"p20": p20, "p50": statistics.median(found), "p80": p80}
        figures[name]["ratio"] = figures[name]["p50"] / statistics.median(times["single eager"])
    even = case.columns // 128 * 128   # the library is slow at odd numbers of columns
    with torch.no_grad():
        last = b[:even, -case.nesting.dim :].contiguous()
        product = statistics.median(milliseconds(lambda: a @ last.T, STEPS) for _ in range(5))
    product *= case.columns / even * wide / case.nesting.dim
    figures["product"] = product
    figures["fused"]["gradient_error"] = error
    figures["fused"]["of_limit"] = 4 * product / figures["fused"]["p50"]
    return figures


def step(loss: Loss, a: Tensor, b: Tensor, target: Tensor) -> Callable[[], None]:
    """Forward and backward."""

    def run() -> None:
        a.grad = b.grad = None
        loss(a, b, target).backward()

    return run


def milliseconds(run: Callable[[], object], steps: int) -> float:
    """Milliseconds per step over ``steps`` consecutive ones on the GPU, after one that is not counted."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    run()
    begin.record()
    for _ in range(steps):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / steps


def extra(run: Callable[[], object], a: Tensor, b: Tensor) -> int:
    """Bytes at the peak, less those before and those of the gradients. The first run compiles."""
    run()
    a.grad = b.grad = None
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before - a.nbytes - b.nbytes


def main() -> None:
    """Measure, print, store the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    groups = list(dict.fromkeys(case.group for case in cases()))
    parser.add_argument("--cases", nargs="+", choices=groups, default=groups, metavar="GROUP", help=", ".join(groups))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=Path, default=Path("docs/results/fused-losses.jsonl"))
    args = parser.parse_args()
    for case in cases():
        if case.group not in args.cases:
            continue
        kept = tuple(name for name in case.variants if name in {"single eager", "fused", *args.variants})
        case = Case(case.group, case.kind, case.batch, case.columns, case.nesting, kept)
        figures = measure(case, args.rounds)
        print(case.name, flush=True)
        for name in kept:
            one = figures[name]
            print(f"  {name:16} {one['p50']:8.2f} ms  {one['ratio']:5.2f}×  {one['extra_bytes'] / 2**30:6.2f} GiB",
                  f"{one['of_limit']:.2f} of the limit" if "of_limit" in one else "", flush=True)  # fmt: skip
        about = {"group": case.group, "kind": case.kind, "batch": case.batch, "columns": case.columns,
                 "dims": case.nesting.dims}  # fmt: skip
        row = stamp("fused-losses", case.name, about | figures, seed=0, hardware=torch.cuda.get_device_name())
        append_rows(args.rows, [row])
        torch.cuda.empty_cache()
        torch.compiler.reset()


if __name__ == "__main__":
    main()
