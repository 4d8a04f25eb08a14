"""One training step: forward, backward, update. On a GPU it is recorded once and replayed as a CUDA graph.

A small network has hundreds of kernels a step, and launching them one by one from Python takes longer than
running them. A replay launches them all at once, and the heads of a nesting then cost next to nothing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.training.distributed import Group
    from matryo.training.objectives.base import NestedModel
    from matryo.training.recipe.fields import Recipe

__all__ = ["Step", "autocast", "make_step"]

_WARM_UP = 3   # steps before recording: cuDNN picks kernels, compilation and buffers settle
_FUSED = ("sgd", "adamw")   # optimisers that find out on the device whether a gradient is finite


def make_step(model: NestedModel, optimizer: torch.optim.Optimizer, recipe: Recipe, group: Group) -> Step:
    """The step for this model: compiled, spread over processes and recorded, as far as the recipe asks."""
    if recipe.loop.compile:
        model.compile_encoder()
    alone = group.device.type == "cuda" and group.world == 1
    if recipe.loop.graph and alone and recipe.optim.name == "sgd":   # the others count their steps
        return _RecordedStep(model, model, optimizer, recipe, group.device)
    # Models of other libraries bring parameters that their embedding does not use (a pooler, say).
    spread: nn.Module = model
    if group.world > 1:
        spread = nn.parallel.DistributedDataParallel(model, find_unused_parameters=recipe.pretrained)
    return Step(model, spread, optimizer, recipe, group.device)


def autocast(recipe: Recipe, device: torch.device) -> Any:
    """bfloat16 where it is safe, if the recipe says so."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.loop.precision == "bf16")


class Step:
    """Called with a batch and a learning rate, it improves the model and returns (embeddings, loss at each dim)."""

    def __init__(
        self,
        model: NestedModel,
        spread: nn.Module,
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        device: torch.device,
    ) -> None:
        self.model, self.spread, self.optimizer = model, spread, optimizer
        self.recipe, self.device = recipe, device
        # The running statistics of a batch norm would be lost all the same, so there a lost step must stop the run.
        careful = not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
        self.may_leave_out = bool(recipe.optim.clip) and careful
        self.moved = bool(optimizer.state)   # by this run or the one it goes on from
        self.lost = torch.zeros(2, device=device)   # steps left out: since someone asked, and in a row up to now
        self.counted = torch.ones(len(model.nesting), device=device)   # 0 for dims that have not joined yet

    def join(self, joined: bool) -> None:
        """Whether the smaller dims take part in the steps from now on."""
        self.counted[:-1] = float(joined)

    def __call__(self, inputs: Any, target: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        """Take the step."""
        for part in self.optimizer.param_groups:
            part["lr"] = rate * part["share"]
        return self._step(inputs, target)

    def _step(self, inputs: Any, target: Tensor) -> tuple[Tensor, Tensor]:
        self.optimizer.zero_grad(set_to_none=True)
        parts = self.recipe.loop.parts
        z, losses = self._backward(inputs, target) if parts == 1 else self._in_parts(inputs, target, parts)
        sound = True
        if self.recipe.optim.clip:
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optim.clip)
            sound = not self.may_leave_out or self._is_sound(norm)
        if sound:
            self.optimizer.step()
        return z, losses

    def left_out(self) -> tuple[int, int]:
        """How many steps had a gradient that was not finite and moved nothing: since last asked, and in a row."""
        since, in_a_row = self.lost.int().tolist()
        self.lost[0] = 0
        return since, in_a_row

    def _is_sound(self, norm: Tensor) -> bool:
        """Count the step if its gradient is not finite: one such step would make every weight NaN.

        Fused optimisers find out on the device whether to leave it out, so nobody waits, and say here it is sound.
        """
        bad = norm.isfinite().logical_not().float()
        self.lost.add_(bad)
        self.lost[1:].mul_(bad)
        if self.recipe.optim.name not in _FUSED or not self.moved:   # the first step fills buffers, whatever with
            sound = not bool(bad)
            self.moved |= sound
            return sound
        self.optimizer.found_inf = bad   # type: ignore[attr-defined]   # as torch's GradScaler says it
        return True

    def _backward(self, inputs: Any, target: Tensor, share: Tensor | float | None = None) -> tuple[Tensor, Tensor]:
        with autocast(self.recipe, self.device):
            z, losses = self.spread(inputs, target)
        weighed = self.model.weigh(losses * self.counted if self.recipe.head.join else losses)
        (weighed if share is None else weighed * share).backward()
        return z.detach(), losses.detach()

    def _in_parts(self, inputs: Any, target: Tensor, parts: int) -> tuple[Tensor, Tensor]:
        """The same gradient from one part of the batch after the other; processes meet at the last."""
        found = []
        for number, (some, wanted) in enumerate(zip(_chunks(inputs, parts), target.chunk(parts), strict=True)):
            alone = number < parts - 1 and isinstance(self.spread, nn.parallel.DistributedDataParallel)
            with self.spread.no_sync() if alone else contextlib.nullcontext():   # type: ignore[operator]
                share = self.model.share_of(wanted, target)
                z, losses = self._backward(some, wanted, share)
                found.append((z, losses * share))
        return torch.cat([z for z, _ in found], -2), torch.stack([losses for _, losses in found]).sum(0)


def _chunks(inputs: Any, parts: int) -> Iterator[Any]:
    """A tensor, tokens or a tuple of those, cut along its first axis."""
    if inputs is None:
        yield from [None] * parts
    elif isinstance(inputs, Tensor):
        yield from inputs.chunk(parts)
    else:
        make = getattr(inputs, "_make", tuple)
        for part in zip(*(_chunks(one, parts) for one in inputs), strict=True):
            yield make(part)


class _RecordedStep(Step):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.stream = torch.cuda.Stream()
        self.shape: torch.Size | None = None
        for part in self.optimizer.param_groups:   # a number would be recorded as a constant
            part["lr"] = torch.zeros((), device=self.device)

    def __call__(self, inputs: Any, target: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        """Take the step: as it is at first, then as a replay. The results are overwritten by the next call."""
        if not isinstance(inputs, Tensor):   # texts change their shape at every step
            return super().__call__(inputs, target, rate)
        images = inputs
        if images.shape != self.shape:   # the first batch, or larger images from this epoch on
            self.shape, self.calls = images.shape, 0
            self.images, self.target = images.clone(), target.clone()
        self.images.copy_(images)
        self.target.copy_(target)
        for part in self.optimizer.param_groups:
            part["lr"].fill_(rate * part["share"])
        self.calls += 1
        if self.calls <= _WARM_UP:
            return self._on_own_stream()
        if self.calls == _WARM_UP + 1:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.results = self._step(self.images, self.target)
        self.graph.replay()
        return self.results

    def _on_own_stream(self) -> tuple[Tensor, Tensor]:
        """Memory that a recording uses must have been used off the main stream."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            results = self._step(self.images, self.target)
        torch.cuda.current_stream().wait_stream(self.stream)
        return results
