"""Training: from a recipe and a dataset to a run folder. `_train` is one program, read top to bottom."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from matryo.arguments import checked
from matryo.errors import RecipeError, TrainingError
from matryo.training.batches.open import open_batches
from matryo.training.batches.texts import open_tokenizer
from matryo.training.distributed import Agreement, process_group
from matryo.training.estimate import estimated_step, too_slow
from matryo.training.held_out import HeldOut
from matryo.training.interrupt import interruptible
from matryo.training.model import build_model, freeze_before, start_from
from matryo.training.objectives.pairs import DistilledModel, PairModel
from matryo.training.objectives.teacher import open_teacher
from matryo.training.optim import learning_rate, make_optimizer, moving_average
from matryo.training.pace import Pace
from matryo.training.recipe.against_data import check_encoder, check_normalisation, check_objective, noun
from matryo.training.run.folder import Run, describe, is_complete, writing
from matryo.training.run.log import Log
from matryo.training.run.paths import CHECKPOINT
from matryo.training.run.seal import check_seal
from matryo.training.step import Step, make_step
from matryo.training.whitening import finish_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from matryo.data import Dataset
    from matryo.data.texts.tokenizer import Tokenizer
    from matryo.training.distributed import Group
    from matryo.training.objectives.base import NestedModel
    from matryo.training.recipe.fields import Recipe

_LOST = 10   # consecutive steps without a finite gradient after which the run stops


@checked
def train(
    recipe: Recipe, dataset: Dataset, out: str | Path, *, extend: bool = False, progress: bool = True
) -> Path:
    """Train ``recipe`` on ``dataset`` into the run folder ``out``, resuming from its checkpoint if there is one.

    A complete run of the same recipe is left unchanged. With ``extend``, a run of fewer ``loop.epochs`` or
    ``loop.steps`` is continued to the new length, with the learning-rate schedule recomputed for it. Under ``torchrun``
    every process calls this function with the same arguments.
    """
    out = Path(out)
    with process_group(recipe.loop.device) as group:
        facts = describe(recipe, dataset, group)
        with writing(out, group):
            if not is_complete(out, facts, extend=extend):
                if (out / CHECKPOINT).exists():
                    check_seal(out / CHECKPOINT)
                # The caller's random state is restored afterwards.
                with torch.random.fork_rng([group.device] if group.device.type == "cuda" else []):
                    work = _train if recipe.trains else _keep_pretrained
                    work(recipe, dataset, out, facts, group, progress=progress, extend=extend)
            group.wait()
    return out


def _train(
    recipe: Recipe, dataset: Dataset, out: Path, facts: dict[str, Any], group: Group, *, progress: bool, extend: bool
) -> None:
    # Check the recipe against the data, build the model and open the batches.
    split = dataset.split(recipe.data.train)
    check_objective(recipe, split)
    check_encoder(recipe, split)
    resumed = (out / CHECKPOINT).exists()
    tokenizer = open_tokenizer(recipe, split, out, group, resumed=resumed)
    model, frozen = _make_model(recipe, len(dataset.classes), tokenizer, group)
    average = moving_average(model, recipe.optim.ema) if recipe.optim.ema else None
    if recipe.objective.teacher and isinstance(model, PairModel | DistilledModel):
        model.taught_by = (open_teacher(recipe, tokenizer, group.device),)   # after the copy: a teacher is not averaged
    if not resumed:   # a run keeps the normalisation that it started with
        _check_normalisation(recipe, split, model)
    optimizer = make_optimizer(model, recipe)
    batches = open_batches(split, recipe, group, progress=progress and group.first, tokenizer=tokenizer)
    tests = HeldOut(recipe, dataset, tokenizer)
    if group.first:   # errors of a test split should come before training, not after it
        tests.rehearse(model, group, read=not resumed, progress=progress)

    # Restore the checkpoint, if there is one.
    run = Run(recipe, out, facts, group, model, optimizer, average)
    total = recipe.loop.steps or recipe.loop.epochs * batches.steps
    run.restore(total, extend=extend)
    step = make_step(model, optimizer, recipe, group)
    log = Log(out, done=run.done, total=total, enabled=group.first, progress=progress)
    if (warm_up := recipe.optim.warmup or recipe.optim.peak * batches.steps) >= total:
        log.remark(f"the warm-up takes {warm_up:g} steps and training only {total}: the learning rate never falls")
    if recipe.loop.compile:
        log.bar.set_postfix_str("compiling, which may take minutes")

    # Train, step by step; save when a checkpoint is due or after Ctrl-C.
    with contextlib.closing(log), _gpu_kernels():
        stop_agreed, pace = Agreement(group), Pace(batches.waiting, run.done)
        for epoch in range(run.done // batches.steps, math.ceil(total / batches.steps) if run.done < total else 0):
            model.train()
            for layer in frozen:
                layer.eval()
            with interruptible(lambda: run.step_seconds, quiet=not group.first) as interrupted:
                for inputs, target in batches.epoch(epoch, start=run.done % batches.steps):
                    if not run.step_seconds:   # the first step since this start
                        _warn_if_slow(step, log, inputs, target, total - run.done, reads_texts=tokenizer is not None)
                    rate = learning_rate(recipe, run.done, batches.steps, recipe.loop.batch * group.world)
                    # Dropout, too, is a function of seed, step and process: there is no generator state to restore.
                    torch.manual_seed((recipe.loop.seed << 32) + run.done * group.world + group.rank)
                    if recipe.head.join:
                        step.join(run.done >= recipe.head.join * total)
                    z, losses = step(inputs, target, rate)
                    if average is not None:
                        average.update_parameters(model)
                    run.advance()
                    log.bar.update()
                    if run.done % recipe.loop.log_every == 0 or run.done == total:
                        _report(run, log, step, pace, z, losses, target, rate, noun(split, recipe.objective.kind))
                    stopping = stop_agreed(interrupted.is_set())
                    if run.is_due() or stopping:
                        if not step.may_skip:
                            _check_finite(run, losses.tolist())   # a checkpoint with NaN weights could not be resumed
                        run.save()
                    if stopping:
                        group.wait()   # torchrun stops all processes when one exits, and the first may still be saving
                        raise KeyboardInterrupt
                    if run.done == total:
                        break
            if recipe.loop.test_every and (epoch + 1) % recipe.loop.test_every == 0 and run.done < total:
                run.save()   # Ctrl-C during a test stops at once
                tests.measure(run, log)
                pace.restart(run.done)

        # Measure the result and complete the run folder.
        run.save()
        log.bar.close()   # lines may follow, and other bars
        finish_model(run, split, tokenizer, progress=progress)   # after the checkpoint, which --extend continues
        run.finish(dataset, tests.measure(run, log), tests.unreadable)


def _keep_pretrained(
    recipe: Recipe, dataset: Dataset, out: Path, facts: dict[str, Any], group: Group, *, progress: bool, extend: bool
) -> None:
    """Write a run folder with the pretrained encoder, unchanged (0 epochs), and measure it."""
    split = dataset.split(recipe.data.train)
    check_encoder(recipe, split)
    tokenizer = open_tokenizer(recipe, split, out, group, resumed=False)
    model, _ = _make_model(recipe, len(dataset.classes), tokenizer, group)
    _check_normalisation(recipe, split, model)
    run = Run(recipe, out, facts, group, model, make_optimizer(model, recipe), None)
    run.restore(0, extend=extend)
    tests = HeldOut(recipe, dataset, tokenizer)
    with contextlib.closing(Log(out, done=0, total=0, enabled=group.first, progress=progress)) as log:
        run.finish(dataset, tests.measure(run, log), tests.unreadable)


def _make_model(
    recipe: Recipe, classes: int, tokenizer: Tokenizer | None, group: Group
) -> tuple[NestedModel, list[nn.Module]]:
    """The model on its device, and the frozen layers, which stay in eval mode."""
    if recipe.finetune.unfreeze and not recipe.pretrained:
        raise RecipeError(
            "finetune.unfreeze needs pretrained weights",
            got="no finetune.start",
            cure="set a run folder or a .safetensors file: --finetune.start RUN",
        )
    model = build_model(recipe, classes, vocabulary=0 if tokenizer is None else tokenizer.vocabulary)
    if recipe.finetune.start:
        start_from(model.encoder, Path(recipe.finetune.start))
    if group.world > 1 and group.device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    frozen = freeze_before(model.encoder, recipe.finetune.unfreeze)   # after the conversion, which replaces layers
    for parameter in model.always_trained():
        parameter.requires_grad_(True)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RecipeError(
            "the model has no parameters to train",
            got=f"objective.kind {recipe.objective.kind}, which has no head, and finetune.unfreeze none",
            cure="set finetune.unfreeze to a module of the encoder, or leave it empty",
        )
    model.to(group.device, memory_format=torch.channels_last)   # type: ignore[call-overload]
    return model, frozen


def _check_normalisation(recipe: Recipe, split: Any, model: NestedModel) -> None:
    if not recipe.finetune.start:   # weights from finetune.start replace the published ones
        check_normalisation(recipe, split, model.encoder, f"encoder.name {recipe.encoder.name}")
    for teacher in getattr(model, "taught_by", ()):
        check_normalisation(recipe, split, teacher.network, f"the teacher {recipe.objective.teacher}")


@contextlib.contextmanager
def _gpu_kernels() -> Iterator[None]:
    """Let cuDNN time its convolutions once and keep the fastest, as all batches have one shape; no cuDNN attention.

    That attention is torch's first choice on an H100 or H200, but its gradients may be NaN in torch 2.11 to 2.13 where
    the keys do not fill a tile of 128, for example with 64 tokens (github.com/pytorch/pytorch/issues/196678).
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True):
            yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _warn_if_slow(step: Step, log: Log, inputs: Any, target: Tensor, steps: int, *, reads_texts: bool) -> None:
    """Before the first step on a CPU, print a line if training would take long."""
    recipe = step.recipe
    if step.device.type != "cpu" or recipe.loop.compile or not log.progress or step.group.world > 1:
        return
    for _ in range(2):   # the first pass also sets up kernels, so only a second one is believed
        text = too_slow(estimated_step(step, inputs, target), steps, recipe, reads_texts=reads_texts)
        if not text:
            return
    log.remark(text)


def _report(
    run: Run, log: Log, step: Step, pace: Pace, z: Tensor, losses: Tensor, target: Tensor, rate: float, items: str
) -> None:
    """Log the loss and accuracy of this batch at every dim; stop the run if the loss is not finite."""
    with torch.no_grad():
        correct = run.model.hits(z, target)
        figures = run.group.mean(torch.cat([losses.float(), correct])).tolist()
    current = pace.report(run.done)   # after the line above, which waits for the device
    skipped, in_a_row = step.skipped_steps()
    if not in_a_row or in_a_row >= _LOST:
        _check_finite(run, figures[: len(losses)], in_a_row)
    extra = {"left_out": skipped} if skipped else {}
    if not all(map(math.isfinite, figures[: len(losses)])):   # the step was skipped, so its loss says nothing
        log.line(run.done, "train", lr=rate, **extra)
        return
    names = {"loss": run.model.nesting.dims}
    names |= {f"loss after layer {depth.layers}": depth.nesting.dims for depth in run.model.depths}
    names |= {"top1": run.model.nesting.dims} if len(correct) else {}
    values = iter(figures)   # the order of losses and hits
    by_dim = {name: {dim: next(values) for dim in dims} for name, dims in names.items()}
    loss, top1, dims = by_dim["loss"], by_dim.get("top1", {}), run.model.nesting.dims
    speed = current.steps * run.recipe.loop.batch * run.group.world
    figures_of_speed = {f"{items}_per_second": round(speed, 1), "waiting": round(current.waiting, 3)}
    log.line(run.done, "train", **by_dim, lr=rate, **extra, **figures_of_speed)
    if advice := pace.advice(current, run.recipe, items):
        log.remark(advice)
    ends = {f"top1@{dim}": f"{top1[dim]:.1%}" for dim in dict.fromkeys((dims[0], dims[-1])) if top1}
    mean = f"{sum(loss.values()) / len(loss):.3f}"
    log.bar.set_postfix({"loss": mean, **ends, items: f"{speed:,.{speed < 10:d}f}/s"}, refresh=False)


def _check_finite(run: Run, losses: list[float], in_a_row: int = 0) -> None:
    if in_a_row or not all(map(math.isfinite, losses)):
        lost = f", no finite gradient in {in_a_row} steps" if in_a_row else ""
        raise TrainingError(
            "the loss must stay finite",
            got=f"{losses} at step {run.done}{lost}",
            cure="start again in another --out with a lower --optim.lr, --optim.clip 1 or --loop.precision fp32",
        )
