"""GradCache (Gao et al., 2021): the loss of a whole batch with the activation memory of one mini-batch.

The forward pass embeds the mini-batches without a graph, computes the loss of all embeddings and stores its gradient
with respect to each embedding. The backward pass embeds each mini-batch again, with a graph, and propagates its part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from matryo.losses.engines import wide

Batch = TypeVar("Batch")


def cached(
    loss: Callable[..., Tensor],
    columns: Sequence[Sequence[Batch]],
    embed: Callable[[Batch], Tensor],
    model: nn.Module,
) -> Tensor:
    """Return ``loss(*embeddings)``, one embeddings tensor per column, with the graph of one mini-batch at a time.

    The value and the gradients are those of ``loss(*(torch.cat([embed(b) for b in column]) for column in columns))``,
    including dropout: each mini-batch is embedded twice with the same random state. Call ``backward()`` on the result;
    ``torch.autograd.grad`` does not work.

    Args:
        loss: a function of embeddings. Parameters of the loss itself get no gradient.
        columns: the mini-batches of each argument of ``loss``.
        embed: maps a mini-batch to [rows, d].
        model: the model that ``embed`` calls. The random state of its devices is replayed. If it is a
            ``DistributedDataParallel``, gradients are averaged once.

    >>> model = torch.nn.Linear(4, 2)
    >>> texts = torch.randn(6, 4)
    >>> cached(lambda z: z.square().mean(), [texts.split(2)], model, model).backward()
    >>> once = torch.autograd.grad(model(texts).square().mean(), model.weight)[0]
    >>> torch.allclose(model.weight.grad, once, atol=1e-6)
    True
    """
    devices = {parameter.device for parameter in model.parameters()}
    with torch.no_grad():
        passes = [[(_RandomState(devices), embed(batch)) for batch in column] for column in columns]
        whole = [torch.cat([z for _, z in column]) for column in passes]
    if not torch.is_grad_enabled():
        return loss(*whole)
    value = loss(*(z.requires_grad_() for z in whole))
    gradients = torch.autograd.grad(value, whole)
    shares = [
        share
        for gradient, column in zip(gradients, passes, strict=True)
        for share in gradient.split([len(z) for _, z in column])
    ]
    states = [state for column in passes for state, _ in column]
    batches = [batch for column in columns for batch in column]
    precisions = _autocasts(devices)

    def replay(scale: Tensor) -> None:
        for i, (batch, gradient, state) in enumerate(zip(batches, shares, states, strict=True)):
            with torch.enable_grad(), _averaging(model, last=i == len(batches) - 1):
                with state.replayed(), ExitStack() as autocasts:
                    for kind, dtype in precisions:
                        autocasts.enter_context(torch.autocast(kind, dtype=dtype))
                    z = embed(batch)
                if z.requires_grad:   # False if the model is frozen
                    z.backward((gradient.to(wide(gradient.dtype)) * scale).to(z.dtype))

    result = value.detach().requires_grad_()
    result.register_hook(replay)
    return result


class _RandomState:
    """The random state of the CPU and of ``devices``, to be replayed."""

    def __init__(self, devices: set[torch.device]) -> None:
        self.cpu = torch.get_rng_state()
        others = (device for device in devices if device.type not in ("cpu", "meta"))
        self.others = {device: _generator(device).get_rng_state(*_index(device)) for device in others}

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Restore this state inside the context, and the current one afterwards."""
        current = _RandomState(set(self.others))
        self._set()
        try:
            yield
        finally:
            current._set()

    def _set(self) -> None:
        torch.set_rng_state(self.cpu)
        for device, state in self.others.items():
            _generator(device).set_rng_state(state, *_index(device))


def _generator(device: torch.device) -> Any:
    return torch.get_device_module(device)


def _index(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)   # torch.mps functions take no device


def _autocasts(devices: set[torch.device]) -> list[tuple[str, torch.dtype]]:
    # A hook may run on another thread, where the autocast state of the forward pass does not apply.
    kinds = {device.type for device in devices if device.type != "meta"}
    return [(kind, torch.get_autocast_dtype(kind)) for kind in sorted(kinds) if torch.is_autocast_enabled(kind)]


def _averaging(model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Average the gradients of all processes after the last mini-batch only, where that is safe.

    Averaging after every mini-batch gives the same result. It is the fallback if the last mini-batch might not touch
    every parameter (parts of the model are frozen) or if the graph must not change (``static_graph``).
    """
    model = getattr(model, "_orig_mod", model)   # unwrap torch.compile
    if last or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    if model.static_graph or not all(parameter.requires_grad for parameter in model.parameters()):
        return nullcontext()
    unsynchronised: AbstractContextManager[None] = model.no_sync()
    return unsynchronised
