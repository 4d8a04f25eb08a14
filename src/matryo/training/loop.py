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
from matryo.training.batches.open import open_batches
from matryo.training.batches.texts import open_tokenizer
from matryo.training.distributed import Agreement, process_group
from matryo.training.measure import measure, rehearse
from matryo.training.model import build_model, freeze_before, start_from
from matryo.training.objectives.pairs import DistilledModel, PairModel
from matryo.training.objectives.teacher import open_teacher
from matryo.training.optim import Average, learning_rate, make_optimizer
from matryo.training.recipe.against_data import check_colours, check_encoder, check_objective, noun
from matryo.training.run.folder import Run, describe, is_complete, writing
from matryo.training.run.log import Log
from matryo.training.run.paths import CHECKPOINT
from matryo.training.step import Step, make_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from matryo.data import Dataset
    from matryo.data.texts.tokenizer import Tokenizer
    from matryo.training.distributed import Group
    from matryo.training.objectives.base import NestedModel
    from matryo.training.recipe.fields import Recipe

__all__ = ["train"]

_LOST = 10   # steps in a row without a finite gradient after which no more are left out


def train(recipe: Recipe, dataset: Dataset, out: str | Path, *, progress: bool = True) -> Path:
    """Train ``recipe`` on ``dataset`` into the run folder ``out``, going on from its checkpoint if there is one.

    A complete run of the same recipe is left as it is. Under ``torchrun`` all processes call this alike.
    """
    out = Path(out)
    with process_group(recipe.loop.device) as group:
        facts = describe(recipe, dataset, group)
        with writing(out, group):
            if not is_complete(out, facts):
                with _own_chance(group):
                    _train(recipe, dataset, out, facts, group, progress)
            group.wait()
    return out


def _train(
    recipe: Recipe, dataset: Dataset, out: Path, facts: dict[str, Any], group: Group, progress: bool
) -> None:
    split = dataset.split(recipe.data.train)
    if not recipe.as_it_is:
        check_objective(recipe, split)
    check_encoder(recipe, split)
    tokenizer = open_tokenizer(recipe, split, out, group, begun=(out / CHECKPOINT).exists())
    model, frozen = _make_model(recipe, len(dataset.classes), tokenizer, group)
    if not (out / CHECKPOINT).exists():   # a run goes on as it began
        _check_colours(recipe, split, model)
    optimizer = make_optimizer(model, recipe)
    if recipe.as_it_is:
        log = Log(out, done=0, total=0, enabled=group.first, progress=progress)
        with contextlib.closing(log):
            run = Run(recipe, out, facts, group, model, optimizer, None)
            run.restore()
            run.finish(dataset, _test(run, log, dataset, tokenizer))
        return
    batches = open_batches(split, recipe, group, progress=progress and group.first, tokenizer=tokenizer)
    average = Average(model, recipe.optim.ema) if recipe.optim.ema else None
    if group.first:   # what cannot be measured is better known before training than after it
        for name in recipe.data.test:
            rehearse(model, dataset.split(name), recipe, group.device, tokenizer)
    run = Run(recipe, out, facts, group, model, optimizer, average)
    run.restore()
    step = make_step(model, optimizer, recipe, group)
    total = recipe.loop.steps or recipe.loop.epochs * batches.steps
    log = Log(out, done=run.done, total=total, enabled=group.first, progress=progress)
    if (warm_up := recipe.optim.warmup or recipe.optim.peak * batches.steps) >= total:
        log.remark(f"the warm-up of {warm_up:g} steps outlasts the {total} of training: the rate only grows")
    if recipe.loop.compile:
        log.tell("compiling, which may take minutes")

    with (
        contextlib.closing(log), _fast_convolutions(), _sound_attention(), _interruptible() as interrupted,
    ):  # fmt: skip
        agreed = Agreement(group)
        for epoch in range(run.done // batches.steps, math.ceil(total / batches.steps) if run.done < total else 0):
            model.train()
            for layer in frozen:
                layer.eval()
            for inputs, target in batches.epoch(epoch, start=run.done % batches.steps):
                rate = learning_rate(recipe, run.done, batches.steps, recipe.loop.batch * group.world)
                # Dropout, too, is a function of seed, step and process: no state to lose.
                torch.manual_seed((recipe.loop.seed << 32) + run.done * group.world + group.rank)
                if recipe.head.join:
                    step.join(run.done >= recipe.head.join * total)
                z, losses = step(inputs, target, rate)
                if average is not None:
                    average.update(model, run.done)
                run.done += 1
                log.step()
                if run.done % recipe.loop.log_every == 0 or run.done == total:
                    _report(run, log, step, z, losses, target, rate, noun(split, recipe.objective.kind))
                stopping = agreed(interrupted.is_set())
                if run.is_due() or stopping:
                    if not step.may_leave_out:
                        _check_finite(run, losses.tolist())   # a checkpoint of a lost run would only go on losing
                    run.save()
                if stopping:
                    group.wait()   # torchrun ends the others when one has left, and the first may still be saving
                    raise KeyboardInterrupt
                if run.done == total:
                    break
            if recipe.loop.test_every and (epoch + 1) % recipe.loop.test_every == 0 and run.done < total:
                _test(run, log, dataset, tokenizer)
        run.save()
        log.end()
        run.finish(dataset, _test(run, log, dataset, tokenizer))


def _make_model(
    recipe: Recipe, classes: int, tokenizer: Tokenizer | None, group: Group
) -> tuple[NestedModel, list[nn.Module]]:
    """The model where it will train, and the layers that stay as they are."""
    if recipe.finetune.unfreeze and not recipe.pretrained:
        raise RecipeError(
            "finetune.unfreeze needs trained weights to keep",
            got="no finetune.start",
            cure="name a run folder or a .safetensors file: --finetune.start RUN",
        )
    model = build_model(recipe, classes, vocabulary=0 if tokenizer is None else tokenizer.vocabulary)
    if recipe.finetune.start:
        start_from(model.encoder, Path(recipe.finetune.start))
    if group.world > 1 and group.device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    frozen = freeze_before(model.encoder, recipe.finetune.unfreeze)   # after the line that exchanges layers
    for parameter in model.always_trained():
        parameter.requires_grad_(True)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RecipeError(
            "something must be left to train",
            got=f"objective.kind {recipe.objective.kind}, which has no head, and finetune.unfreeze none",
            cure="name the module of the encoder to train from, or leave finetune.unfreeze empty",
        )
    model.to(group.device, memory_format=torch.channels_last)   # type: ignore[call-overload]
    if recipe.objective.teacher and isinstance(model, PairModel | DistilledModel):
        model.taught_by = (open_teacher(recipe, tokenizer, group.device),)
    return model, frozen


def _check_colours(recipe: Recipe, split: Any, model: NestedModel) -> None:
    if not recipe.finetune.start:   # whose weights took the place of published ones
        check_colours(recipe, split, model.encoder, f"encoder.name {recipe.encoder.name}")
    for teacher in getattr(model, "taught_by", ()):
        check_colours(recipe, split, teacher.network, f"the teacher {recipe.objective.teacher}")


def _own_chance(group: Group) -> Any:
    """Leave the caller's random state as it was."""
    return torch.random.fork_rng([group.device] if group.device.type == "cuda" else [])


def _fast_convolutions() -> Any:
    """Let cuDNN time its kernels once and keep the fastest: all batches have one shape."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True)


@contextlib.contextmanager
def _sound_attention() -> Iterator[None]:
    """Without cuDNN's attention, which torch prefers on an H100 or H200: its gradients may be NaN.

    They were found so in torch 2.11 to 2.13 where the keys do not fill a tile of 128, say for 64 patches or tokens
    (github.com/pytorch/pytorch/issues/196678). Other kernels take its place.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _report(
    run: Run, log: Log, step: Step, z: Tensor, losses: Tensor, target: Tensor, rate: float, items: str
) -> None:
    """Log the loss and accuracy of this batch at every dim, and stop if the loss is lost."""
    with torch.no_grad():
        right = run.model.hits(z, target)
        figures = run.group.mean(torch.stack([losses.float(), right] if len(right) else [losses.float()])).tolist()
    dims = run.model.nesting.dims
    since, in_a_row = step.left_out()
    if not in_a_row or in_a_row >= _LOST:
        _check_finite(run, figures[0], in_a_row)
    left_out = {"left_out": since} if since else {}
    if not all(map(math.isfinite, figures[0])):   # of a step that moved nothing: there is no more to say of it
        log.line(run.done, "train", lr=rate, **left_out)
        return
    by_dim = {name: dict(zip(dims, row, strict=True)) for name, row in zip(("loss", "top1"), figures, strict=False)}
    loss, top1 = by_dim["loss"], by_dim.get("top1", {})
    log.line(run.done, "train", **by_dim, lr=rate, **left_out, **{f"{items}_per_second": round(run.speed, 1)})
    ends = {f"top1@{dim}": f"{top1[dim]:.1%}" for dim in dict.fromkeys((dims[0], dims[-1])) if top1}
    log.show(loss=f"{sum(loss.values()) / len(loss):.3f}", **ends, **{items: f"{run.speed:,.{run.speed < 10:d}f}/s"})


def _check_finite(run: Run, losses: list[float], in_a_row: int = 0) -> None:
    if in_a_row or not all(map(math.isfinite, losses)):
        lost = f", no finite gradient in {in_a_row} steps" if in_a_row else ""
        raise TrainingError(
            "the loss must stay finite",
            got=f"{losses} at step {run.done}{lost}",
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


def _test(
    run: Run, log: Log, dataset: Dataset, tokenizer: Tokenizer | None
) -> dict[str, dict[str, dict[int, float]]]:
    """Each figure on each test split at each dim, with the weights the run would end with now."""
    if not run.group.first:
        return {}
    own = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.model.load_state_dict(run.weights())
    found: dict[str, dict[str, dict[int, float]]] = {}
    for name in run.recipe.data.test:
        progress = f"test {name}" if log.progress else ""
        figures = measure(run.model, dataset.split(name), run.recipe, run.group.device, tokenizer, progress)
        log.line(run.done, f"test-{name}", **figures)
        for figure, by_dim in figures.items():
            found.setdefault(figure, {})[name] = by_dim
    run.model.load_state_dict(own)
    return found if found or run.recipe.objective.kind != "classify" else {"top1": {}}
