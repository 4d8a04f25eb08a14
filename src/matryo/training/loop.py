"""Training: from a recipe and a dataset to a run folder. `_train` is the method, top to bottom."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from matryo.errors import RecipeError, TrainingError
from matryo.training.batches import open_batches, test_batches
from matryo.training.distributed import process_group
from matryo.training.log import Log
from matryo.training.model import build_model, freeze_before, start_from
from matryo.training.optim import Average, learning_rate, make_optimizer
from matryo.training.run import Run, describe, is_complete, writing
from matryo.training.step import autocast, make_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from matryo.data import Dataset, ImageSplit
    from matryo.training.distributed import Group
    from matryo.training.model import NestedModel
    from matryo.training.recipe import Recipe

__all__ = ["head_accuracy", "train"]


def train(recipe: Recipe, dataset: Dataset, out: str | Path, *, progress: bool = True) -> Path:
    """Train ``recipe`` on ``dataset`` into the run folder ``out``, going on from its checkpoint if there is one.

    A complete run of the same recipe is left as it is. Under ``torchrun`` all processes call this alike.
    """
    out = Path(out)
    with process_group(recipe.loop.device) as group:
        facts = describe(recipe, dataset, group)
        with writing(out, group):
            if not is_complete(out, facts):
                _train(recipe, dataset, out, facts, group, progress)
            group.wait()
    return out


def _train(
    recipe: Recipe, dataset: Dataset, out: Path, facts: dict[str, Any], group: Group, progress: bool
) -> None:
    model, frozen = _make_model(recipe, len(dataset.classes), group)
    batches = open_batches(dataset.split(recipe.data.train), recipe, group, progress=progress and group.first)
    optimizer = make_optimizer(model, recipe)
    average = Average(model, recipe.optim.ema) if recipe.optim.ema else None
    run = Run(recipe, out, facts, group, model, optimizer, average)
    run.restore()
    step = make_step(model, optimizer, recipe, group)
    total = recipe.loop.epochs * batches.steps
    log = Log(out, done=run.done, total=total, enabled=group.first, progress=progress)

    with contextlib.closing(log), _fast_convolutions(), _interruptible() as interrupted:
        for epoch in range(run.done // batches.steps, recipe.loop.epochs):
            model.train()
            for layer in frozen:
                layer.eval()
            for images, target in batches.epoch(epoch, start=run.done % batches.steps):
                rate = learning_rate(recipe, run.done, batches.steps, recipe.loop.batch * group.world)
                z, losses = step(images, target, rate)
                if average is not None:
                    average.update(model, run.done)
                run.done += 1
                log.step()
                if run.done % recipe.loop.log_every == 0 or run.done == total:
                    _report(run, log, z, losses, target, rate)
                if run.is_due() or interrupted.is_set():
                    _check_finite(run, losses.tolist())   # a checkpoint of a lost run would only go on losing
                    run.save()
                if interrupted.is_set():
                    raise KeyboardInterrupt
            if recipe.loop.test_every and (epoch + 1) % recipe.loop.test_every == 0 and run.done < total:
                _test(run, log, dataset)
        run.save()
        run.finish(dataset, _test(run, log, dataset))


def _make_model(recipe: Recipe, classes: int, group: Group) -> tuple[NestedModel, list[nn.Module]]:
    """The model where it will train, and the layers that stay as they are."""
    if recipe.finetune.unfreeze and not recipe.finetune.start:
        raise RecipeError(
            "finetune.unfreeze needs trained weights to keep",
            got="no finetune.start",
            cure="name a run folder or a .safetensors file: --finetune.start RUN",
        )
    model = build_model(recipe, classes)
    if recipe.finetune.start:
        start_from(model.encoder, Path(recipe.finetune.start))
    if group.world > 1 and group.device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    frozen = freeze_before(model.encoder, recipe.finetune.unfreeze)   # after the line that exchanges layers
    model.to(group.device, memory_format=torch.channels_last)   # type: ignore[call-overload]
    return model, frozen


def _fast_convolutions() -> Any:
    """Let cuDNN time its kernels once and keep the fastest: all batches have one shape."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True)


def _report(run: Run, log: Log, z: Tensor, losses: Tensor, target: Tensor, rate: float) -> None:
    """Log the loss and accuracy of this batch at every dim, and stop if the loss is lost."""
    head = run.model.head
    with torch.no_grad():
        right = (head.logits(z.float()).argmax(-1) == target).float().mean(1)
        figures = run.group.mean(torch.stack([losses.float(), right])).tolist()
    dims = head.nesting.dims
    loss, top1 = (dict(zip(dims, row, strict=True)) for row in figures)
    _check_finite(run, figures[0])
    log.line(run.done, "train", loss=loss, top1=top1, lr=rate, images_per_second=round(run.speed, 1))
    ends = {f"top1@{dim}": f"{top1[dim]:.1%}" for dim in dict.fromkeys((dims[0], dims[-1]))}
    log.show(loss=f"{sum(loss.values()) / len(loss):.3f}", **ends, images=f"{run.speed:,.0f}/s")


def _check_finite(run: Run, losses: list[float]) -> None:
    if not all(map(math.isfinite, losses)):
        raise TrainingError(
            "the loss must stay finite",
            got=f"{losses} at step {run.done}",
            cure="start again in another --out with a lower --optim.lr, --optim.clip 1 or --loop.precision fp32",
        )


@contextlib.contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Ctrl-C is heard between two steps, so that the run can be saved; a second one stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():   # only there may signals be handled
        yield asked
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        asked.set()

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _test(run: Run, log: Log, dataset: Dataset) -> dict[str, dict[int, float]]:
    """Head accuracy on the test splits with the weights the run would end with now."""
    if not run.group.first:
        return {}
    own = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.model.load_state_dict(run.weights())
    names = run.recipe.data.test
    found = {name: head_accuracy(run.model, dataset.split(name), run.recipe, run.group.device) for name in names}
    run.model.load_state_dict(own)
    for name, accuracy in found.items():
        log.line(run.done, f"test-{name}", top1=accuracy)
    return found


def head_accuracy(model: NestedModel, split: ImageSplit, recipe: Recipe, device: torch.device) -> dict[int, float]:
    """Top-1 accuracy of the head at every dim on the images of ``split`` whose class is known."""
    right = torch.zeros(len(model.head.nesting), dtype=torch.int64, device=device)
    model.eval()
    with torch.no_grad():
        for images, labels in test_batches(split, recipe, device):
            with autocast(recipe, device):
                z = model.embed(images, flip=recipe.data.test_flip)
            right += (model.head.logits(z).argmax(-1) == labels.to(device)).sum(1)
    known = max(1, int((split.labels >= 0).sum()))
    return {dim: count / known for dim, count in zip(model.head.nesting.dims, right.tolist(), strict=True)}
