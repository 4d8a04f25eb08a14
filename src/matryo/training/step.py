"""One training step: forward, backward, update. On a GPU it is recorded once and replayed as a CUDA graph.

A small network has hundreds of kernels per step, and launching them one by one from Python takes longer than
running them. A replay launches them all at once, and the heads of a nesting then add almost no time.
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

_WARM_UP = 3   # steps before recording, in which cuDNN picks kernels and buffers are allocated
_FUSED = ("sgd", "adamw")   # optimisers that check on the device whether a gradient is finite


def make_step(model: NestedModel, optimizer: torch.optim.Optimizer, recipe: Recipe, group: Group) -> Step:
    """The step for this model: compiled, distributed over processes or recorded, as the recipe says."""
    if recipe.loop.compile:
        model.compile_encoder()
    # Only sgd: the other optimisers count steps on the CPU, which a graph cannot record.
    recorded = recipe.loop.graph and group.device.type == "cuda" and group.world == 1 and recipe.optim.name == "sgd"
    return (_RecordedStep if recorded else Step)(model, optimizer, recipe, group)


def autocast(recipe: Recipe, device: torch.device) -> Any:
    """Autocast to bfloat16 if loop.precision is bf16."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.loop.precision == "bf16")


class Step:
    """Called with a batch and a learning rate, updates the model and returns (embeddings, loss at each dim)."""

    def __init__(
        self, model: NestedModel, optimizer: torch.optim.Optimizer, recipe: Recipe, group: Group
    ) -> None:
        self.model, self.optimizer, self.recipe = model, optimizer, recipe
        self.group, self.device = group, group.device
        self.spread: nn.Module = model
        if group.world > 1:   # models of other libraries have parameters that the embedding does not use (a pooler)
            self.spread = nn.parallel.DistributedDataParallel(model, find_unused_parameters=recipe.pretrained)
        # The running statistics of a batch norm become NaN even if the update is skipped: there, the run must stop.
        no_batch_norm = not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
        self.may_skip = bool(recipe.optim.clip) and no_batch_norm
        self.updated = bool(optimizer.state)   # now or before the checkpoint
        self.skipped = torch.zeros(2, device=self.device)   # steps skipped since the last query, and in a row until now
        self.joined = torch.ones(len(model.nesting), device=self.device)   # 0 for dims that have not joined yet

    def join(self, joined: bool) -> None:
        """Set whether the smaller dims are trained from now on."""
        self.joined[:-1] = float(joined)

    def __call__(self, inputs: Any, target: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        """Take the step."""
        for part in self.optimizer.param_groups:
            part["lr"] = rate * part["share"]
        return self._step(inputs, target)

    def _step(self, inputs: Any, target: Tensor) -> tuple[Tensor, Tensor]:
        self.optimizer.zero_grad(set_to_none=True)
        parts = self.recipe.loop.parts
        z, losses = self._backward(inputs, target) if parts == 1 else self._in_parts(inputs, target, parts)
        finite = True
        if self.recipe.optim.clip:
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optim.clip)
            finite = not self.may_skip or self._is_finite(norm)
        if finite:
            self.optimizer.step()
        return z, losses

    def skipped_steps(self) -> tuple[int, int]:
        """How many steps were skipped because their gradient was not finite: since the last call, and in a row."""
        since, in_a_row = self.skipped.int().tolist()
        self.skipped[0] = 0
        return since, in_a_row

    def try_part(self, inputs: Any, target: Tensor, parts: int) -> None:
        """Compute the gradient of the first of ``parts`` parts of a batch, without an update."""
        with torch.random.fork_rng(devices=[]):
            self._backward(next(_chunks(inputs, parts)), target.chunk(parts)[0])

    def _is_finite(self, norm: Tensor) -> bool:
        """Whether to update the weights; counts the step as skipped if its gradient is not finite.

        Fused optimisers skip the update on the device, so that the CPU need not wait; for them this returns True.
        """
        bad = norm.isfinite().logical_not().float()
        self.skipped.add_(bad)
        self.skipped[1:].mul_(bad)
        if self.recipe.optim.name not in _FUSED or not self.updated:   # a first step would fill the buffers with NaN
            finite = not bool(bad)
            self.updated |= finite
            return finite
        self.optimizer.found_inf = bad   # type: ignore[attr-defined]   # the protocol of torch's GradScaler
        return True

    def _backward(self, inputs: Any, target: Tensor, share: Tensor | float | None = None) -> tuple[Tensor, Tensor]:
        with autocast(self.recipe, self.device):
            z, losses = self.spread(inputs, target)
        weighted = self.model.weigh(losses * self.joined if self.recipe.head.join else losses)
        (weighted if share is None else weighted * share).backward()
        return z.detach(), losses.detach()

    def _in_parts(self, inputs: Any, target: Tensor, parts: int) -> tuple[Tensor, Tensor]:
        """Accumulate the gradient of the batch over its parts; processes synchronise at the last one."""
        results = []
        for number, (part, wanted) in enumerate(zip(_chunks(inputs, parts), target.chunk(parts), strict=True)):
            unsynchronised = number < parts - 1 and self.group.world > 1
            with self.spread.no_sync() if unsynchronised else contextlib.nullcontext():   # type: ignore[operator]
                share = self.model.share_of(wanted, target)
                z, losses = self._backward(part, wanted, share)
                results.append((z, losses * share))
        return torch.cat([z for z, _ in results], -2), torch.stack([losses for _, losses in results]).sum(0)


def _chunks(inputs: Any, parts: int) -> Iterator[Any]:
    """A tensor, tokens or a tuple of those, split along the first axis."""
    if inputs is None:
        yield from [None] * parts
    elif isinstance(inputs, Tensor):
        yield from inputs.chunk(parts)
    else:
        make = getattr(inputs, "_make", tuple)
        for part in zip(*(_chunks(element, parts) for element in inputs), strict=True):
            yield make(part)


class _RecordedStep(Step):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.stream = torch.cuda.Stream()
        self.shape: torch.Size | None = None
        for part in self.optimizer.param_groups:   # a Python number would be recorded as a constant
            part["lr"] = torch.zeros((), device=self.device)

    def __call__(self, inputs: Any, target: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        """Take the step, directly at first and then as a replay. The next call overwrites the results."""
        if not isinstance(inputs, Tensor):   # batches of texts have various shapes
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
        """Take the step on the stream of the recording, as CUDA graphs require of the warm-up."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            results = self._step(self.images, self.target)
        torch.cuda.current_stream().wait_stream(self.stream)
        return results
