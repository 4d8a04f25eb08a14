"""Extra time of nested heads in a training step: separate, tied and a plain loop of heads against one fixed head.

``best`` has separate heads and what tiny-imagenet-rn18-best adds: a norm before them, and small dims that learn from
the full dim.

All variants run side by side in one process, in turns, so that clocks and neighbours disturb them alike.

    python benchmarks/step_cost.py --encoder resnet18 --batch 512 --size 32 --classes 200
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from matryo import Nesting
from matryo.results import append_rows, stamp
from matryo.training.distributed import Group
from matryo.training.model import build_model
from matryo.training.objectives.classify import Classifier
from matryo.training.optim import make_optimizer
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override
from matryo.training.step import make_step

VARIANTS = ("fixed", "separate", "tied", "best", "loop")
INGREDIENTS = {"encoder.neck": "batch", "head.self_distil": "0.7", "head.balance": "ends"}


class HeadLoop(nn.Module):
    """The usual hand-written version: one nn.Linear and one cross-entropy per dim, in a loop."""

    def __init__(self, nesting: Nesting, classes: int) -> None:
        super().__init__()
        self.nesting = nesting
        self.heads = nn.ModuleList(nn.Linear(dim, classes) for dim in nesting.dims)

    def losses(self, z: Tensor, target: Tensor, label_smoothing: tuple[float, ...], **_: object) -> Tensor:
        """The cross-entropy at each dim; the recipe of this variant asks for nothing else."""
        parts = [
            F.cross_entropy(head(z[:, :dim]), target, label_smoothing=smoothing)
            for dim, head, smoothing in zip(self.nesting.dims, self.heads, label_smoothing, strict=True)
        ]
        return torch.stack(parts)

    def weigh(self, losses: Tensor) -> Tensor:
        """Every dim counts the same."""
        return losses.sum()


def main() -> None:
    """Measure every variant, print the table, store the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--steps", type=int, default=60, help="timed steps a variant")
    parser.add_argument("--compile", action="store_true", help="torch.compile the encoder, as the recipe does")
    parser.add_argument("--graph", action="store_true", help="record the step as a CUDA graph, as the recipe does")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/step-cost.jsonl"))
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = torch.randn(args.batch, 3, args.size, args.size, device=device).to(memory_format=torch.channels_last)
    target = torch.randint(args.classes, (args.batch,), device=device)
    steps = {name: variant(name, args, images, target, device) for name in VARIANTS}
    times: dict[str, list[float]] = {name: [] for name in steps}
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True):
        for step in steps.values():
            for _ in range(5):
                step()
        for _ in range(args.steps // 10):
            for name, step in steps.items():   # in turns, ten steps each
                synchronize(device)
                begin = time.perf_counter()
                for _ in range(10):
                    step()
                synchronize(device)
                times[name].append((time.perf_counter() - begin) * 100)
    base = statistics.median(times["fixed"])
    figures = {name: summary(values) | {"ratio": statistics.median(values) / base} for name, values in times.items()}
    for name, figure in figures.items():
        print(f"{name:10} {figure['p50']:.2f} ms/step  {figure['ratio']:.3f}× fixed")
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else ""
    subject = f"{args.encoder} batch {args.batch}{' compiled' if args.compile else ''}{' graph' if args.graph else ''}"
    append_rows(args.rows, [stamp("step-cost", subject, figures, seed=0, hardware=hardware)])


def variant(
    name: str, args: argparse.Namespace, images: Tensor, target: Tensor, device: torch.device
) -> Callable[[], object]:
    """One training step of a variant, made by the library's own loop."""
    fields = {"encoder.name": args.encoder, "encoder.stem": "small", "optim.nesterov": "true"}
    fields |= {"head.kind": "fixed" if name == "fixed" else "tied" if name == "tied" else "separate"}
    fields |= {"loop.compile": str(args.compile), "loop.graph": str(args.graph), "optim.label_smoothing": "0.1"}
    recipe = override(Recipe(), fields | (INGREDIENTS if name == "best" else {}))
    model = build_model(recipe, args.classes)
    assert isinstance(model, Classifier)
    if name == "loop":
        model.head = HeadLoop(model.head.nesting, args.classes)   # type: ignore[assignment]
    model.to(device, memory_format=torch.channels_last)   # type: ignore[call-overload]
    step = make_step(model, make_optimizer(model, recipe), recipe, Group(0, 1, device))
    return lambda: step(images, target, 0.01)


def summary(values: list[float]) -> dict[str, float]:
    """p20, p50 and p80 of milliseconds."""
    p20, _, _, p80 = statistics.quantiles(values, n=5)
    return {"p20": round(p20, 3), "p50": round(statistics.median(values), 3), "p80": round(p80, 3)}


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
