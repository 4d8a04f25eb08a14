"""Training: from a recipe and a dataset to a run folder. Read `_train` top to bottom; that is the method.

::

    runs/demo/
      recipe.toml              the resolved recipe: `matryo train runs/demo/recipe.toml` repeats the run
      run.json                 classes, nesting, figures and provenance; present once training is complete
      model.safetensors        the trained weights (their average, when the recipe asks for one)
      checkpoint.safetensors   everything needed to go on after a kill
      metrics.jsonl            loss and accuracy at every dim; also under tensorboard/
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from matryo import results
from matryo.errors import RunError, TrainingError
from matryo.files import replacing, write_json
from matryo.training.batches import open_batches, test_batches
from matryo.training.checkpoint import load_checkpoint, load_weights, read_step, save_checkpoint, save_weights
from matryo.training.distributed import Group, process_group
from matryo.training.log import Log
from matryo.training.model import NestedModel, build_model, freeze_before
from matryo.training.optim import Average, learning_rate, make_optimizer
from matryo.training.step import autocast, make_step

if TYPE_CHECKING:
    from torch import Tensor

    from matryo.data import Dataset, ImageSplit
    from matryo.training.recipe import Recipe

__all__ = ["head_accuracy", "train"]

_CHECKPOINT, _WEIGHTS, _RUN = "checkpoint.safetensors", "model.safetensors", "run.json"


def train(recipe: Recipe, dataset: Dataset, out: str | Path, *, progress: bool = True) -> Path:
    """Train ``recipe`` on ``dataset`` into the run folder ``out``, going on from its checkpoint if there is one.

    A complete run of the same recipe is left as it is. Under ``torchrun`` all processes call this alike.
    """
    out = Path(out)
    with process_group(recipe.loop.device) as group:
        facts = {"recipe": dataclasses.asdict(recipe), "dataset": _describe(dataset, recipe), "world": group.world}
        if not _is_complete(out, facts):
            _train(recipe, dataset, out, facts, group, progress)
        group.wait()
    return out


def _train(
    recipe: Recipe, dataset: Dataset, out: Path, facts: dict[str, Any], group: Group, progress: bool
) -> None:
    show = progress and group.first
    model = build_model(recipe, len(dataset.classes))
    _start_from(model, recipe)
    frozen = freeze_before(model.encoder, recipe.finetune.unfreeze)
    model.to(group.device, memory_format=torch.channels_last)   # type: ignore[call-overload]
    if group.world > 1 and group.device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    batches = open_batches(dataset.split(recipe.data.train), recipe, group, progress=show)
    optimizer = make_optimizer(model, recipe)
    average = Average(model, recipe.optim.ema) if recipe.optim.ema else None

    done = 0
    checkpoint = out / _CHECKPOINT
    if checkpoint.exists():
        stored = read_step(checkpoint)
        _check_same(stored, facts, out)
        load_checkpoint(checkpoint, model, optimizer, average, group.device)
        done = stored["step"]
    elif group.first:
        with replacing(out / "recipe.toml") as file:
            file.write(recipe.to_toml().encode())

    step = make_step(model, optimizer, recipe, group)
    nesting, total = model.head.nesting, recipe.loop.epochs * batches.steps
    log = Log(out, done=done, total=total, enabled=group.first, progress=progress)
    saved_at, started, first_step = time.monotonic(), time.monotonic(), done
    with contextlib.closing(log), _fast_convolutions():
        for epoch in range(done // batches.steps, recipe.loop.epochs):
            model.train()
            for module in frozen:
                module.eval()
            for images, target in batches.epoch(epoch, start=done % batches.steps):
                rate = learning_rate(recipe, done, batches.steps, recipe.loop.batch * group.world)
                z, losses = step(images, target, rate)
                if average is not None:
                    average.update(model, done)
                done += 1
                log.step()

                if done % recipe.loop.log_every == 0 or done == total:
                    speed = (done - first_step) * len(target) * group.world / (time.monotonic() - started)
                    _report(log, model, group, done, z, losses, target, rate, speed)
                if group.first and time.monotonic() - saved_at > recipe.loop.checkpoint_seconds:
                    save_checkpoint(checkpoint, model, optimizer, average, {**facts, "step": done})
                    saved_at = time.monotonic()
            if _is_test_time(recipe, epoch + 1):
                _test(log, done, _weights(model, average), model, recipe, dataset, group)

        seconds = time.monotonic() - started
        if group.first:
            save_checkpoint(checkpoint, model, optimizer, average, {**facts, "step": done})
            model.load_state_dict(_weights(model, average))
            save_weights(out / _WEIGHTS, model.state_dict())
            accuracy = _test(log, done, model.state_dict(), model, recipe, dataset, group)
            speed = (done - first_step) * recipe.loop.batch * group.world / seconds
            _finish(out, recipe, dataset, facts, group, nesting.dims, seconds, speed, accuracy)


def _fast_convolutions() -> Any:
    """Let cuDNN time its kernels once and keep the fastest: all batches have one shape."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True)


def _report(
    log: Log,
    model: NestedModel,
    group: Group,
    done: int,
    z: Tensor,
    losses: Tensor,
    target: Tensor,
    rate: float,
    speed: float,
) -> None:
    with torch.no_grad():
        right = (model.head.logits(z.float()).argmax(-1) == target).float().mean(1)
        figures = group.mean(torch.stack([losses.float(), right])).tolist()
    dims = model.head.nesting.dims
    loss, top1 = (dict(zip(dims, row, strict=True)) for row in figures)
    if not all(math.isfinite(value) for value in loss.values()):
        raise TrainingError(
            "the loss must stay finite",
            got=f"{loss} at step {done}",
            cure="lower --optim.lr, set --optim.clip 1, or delete the run folder and use --loop.precision fp32",
        )
    log.line(done, "train", loss=loss, top1=top1, lr=rate, images_per_second=round(speed, 1))
    ends = {f"top1@{dim}": f"{top1[dim]:.1%}" for dim in {dims[0]: 0, dims[-1]: 0}}
    log.show(loss=f"{sum(loss.values()) / len(loss):.3f}", **ends, images=f"{speed:,.0f}/s")


def head_accuracy(model: NestedModel, split: ImageSplit, recipe: Recipe, device: torch.device) -> dict[int, float]:
    """Top-1 accuracy of the head at every dim on the images of ``split`` whose class is known."""
    right = torch.zeros(len(model.head.nesting), dtype=torch.int64, device=device)
    model.eval()
    with torch.no_grad():
        for images, labels in test_batches(split, recipe, device):
            target = labels.to(device)
            with autocast(recipe, device):
                z = model.embed(images, flip=recipe.data.test_flip)
            right += (model.head.logits(z).argmax(-1) == target).sum(1)
    known = max(1, int((split.labels >= 0).sum()))
    return {dim: count / known for dim, count in zip(model.head.nesting.dims, right.tolist(), strict=True)}


def _test(
    log: Log,
    done: int,
    weights: dict[str, Tensor],
    model: NestedModel,
    recipe: Recipe,
    dataset: Dataset,
    group: Group,
) -> dict[str, dict[int, float]]:
    """Head accuracy on the test splits with ``weights``; the model's own come back afterwards."""
    if not group.first:
        return {}
    own = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(weights)
    found = {name: head_accuracy(model, dataset.split(name), recipe, group.device) for name in recipe.data.test}
    model.load_state_dict(own)
    for name, accuracy in found.items():
        log.line(done, f"test-{name}", top1=accuracy)
    return found


def _weights(model: NestedModel, average: Average | None) -> dict[str, Tensor]:
    return average.state if average is not None else model.state_dict()


def _is_test_time(recipe: Recipe, epochs: int) -> bool:
    every = recipe.loop.test_every
    return bool(every) and epochs % every == 0 and epochs < recipe.loop.epochs


def _start_from(model: NestedModel, recipe: Recipe) -> None:
    """Load the encoder's weights from an earlier run or a file, if the recipe names one."""
    if not recipe.finetune.start:
        return
    path = Path(recipe.finetune.start)
    path = path / _WEIGHTS if path.is_dir() else path
    if not path.is_file():
        raise RunError("finetune.start must be a run folder or a .safetensors file", got=path, cure="check the path")
    stored = load_weights(path)
    encoder = {name.removeprefix("encoder."): value for name, value in stored.items() if name.startswith("encoder.")}
    wanted = model.encoder.state_dict()
    given = {name: value for name, value in (encoder or stored).items() if name in wanted}
    missing = [name for name in wanted if name not in given and not name.endswith("num_batches_tracked")]
    if missing:
        raise RunError(
            "finetune.start must hold every weight of the encoder",
            got=f"{len(missing)} missing, the first is {missing[0]}",
            cure="use the encoder settings of the run it came from",
        )
    model.encoder.load_state_dict(given, strict=False)


def _describe(dataset: Dataset, recipe: Recipe) -> dict[str, Any]:
    split = dataset.split(recipe.data.train)
    for name in recipe.data.test:
        dataset.split(name)   # a misspelt test split must not wait until training is over
    return {"name": dataset.name, "classes": len(dataset.classes), "train": len(split)}


def _is_complete(out: Path, facts: dict[str, Any]) -> bool:
    if not (out / _RUN).exists():
        return False
    _check_same(json.loads((out / _RUN).read_text(encoding="utf-8")), facts, out)
    return True


def _check_same(stored: dict[str, Any], facts: dict[str, Any], out: Path) -> None:
    """A run goes on only with what it began with; fields that change no result may differ."""
    free = {"log_every", "checkpoint_seconds", "workers", "device"}
    now = json.loads(json.dumps(facts))
    for name in ("dataset", "world"):
        if stored.get(name) != now[name]:
            raise _other(out, f"{name}: {stored.get(name)} there, {now[name]} now")
    for section, given in now["recipe"].items():
        before = stored["recipe"].get(section)
        if isinstance(given, dict) and isinstance(before, dict):
            for key, value in given.items():
                if key not in free and before.get(key) != value:
                    raise _other(out, f"{section}.{key}: {before.get(key)} there, {value} now")


def _other(out: Path, difference: str) -> RunError:
    return RunError(
        f"{out} holds a run of another recipe", got=difference, cure="choose another --out, or delete that folder"
    )


def _finish(
    out: Path,
    recipe: Recipe,
    dataset: Dataset,
    facts: dict[str, Any],
    group: Group,
    dims: tuple[int, ...],
    seconds: float,
    speed: float,
    accuracy: dict[str, dict[int, float]],
) -> None:
    """run.json comes last: a folder that has it is complete."""
    name = torch.cuda.get_device_name(group.device) if group.device.type == "cuda" else ""
    figures = {"top1": accuracy, "seconds": round(seconds, 1), "images_per_second": round(speed, 1)}
    row = results.stamp(
        "train", f"{recipe.name} {recipe.head.kind}", figures, seed=recipe.loop.seed,
        hardware=f"{group.world} × {name}" if name else "",
    )  # fmt: skip
    write_json(
        out / _RUN,
        {
            **facts,
            "format": 1,
            "classes": dataset.classes,
            "superclasses": dataset.superclasses,
            "superclass_of": dataset.superclass_of,
            "dims": dims,
            "row": dataclasses.asdict(row),
        },
    )
