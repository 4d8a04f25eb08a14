"""GradCache: a loss over a whole batch for the memory of a mini batch (Gao et al., 2021).

Embed the mini batches without a graph, take the loss of all embeddings at once and keep its gradient by each of them;
when the loss is asked for its gradients, embed each mini batch again, now with a graph, and pass its part back.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    Batch = TypeVar("Batch")

__all__ = ["cached"]


def cached(
    loss: Callable[..., Tensor],
    columns: Sequence[Sequence[Batch]],
    embed: Callable[[Batch], Tensor],
    model: nn.Module,
) -> Tensor:
    """``loss(*embeddings)``, an embeddings tensor for each column, with the graph of one mini batch at a time.

    The value and the gradients are those of ``loss(*(torch.cat([embed(b) for b in column]) for column in columns))``,
    dropout included: each mini batch is embedded twice with the same random numbers. Gradients reach the parameters by
    ``backward()``; ``torch.autograd.grad`` does not see them.

    Args:
        loss: a function of embeddings. Parameters of its own would get no gradient.
        columns: for each argument of ``loss``, its mini batches.
        embed: maps a mini batch to [rows, d].
        model: what ``embed`` calls: its devices' random numbers are replayed and, if it is a
            ``DistributedDataParallel``, the processes average their gradients once.

    >>> model = torch.nn.Linear(4, 2)
    >>> texts = torch.randn(6, 4)
    >>> cached(lambda z: z.square().mean(), [texts.split(2)], model, model).backward()
    >>> once = torch.autograd.grad(model(texts).square().mean(), model.weight)[0]
    >>> torch.allclose(model.weight.grad, once, atol=1e-6)
    True
    """
    devices = {parameter.device for parameter in model.parameters()}
    with torch.no_grad():
        embedded, states = [], []
        for column in columns:
            parts = []
            for batch in column:
                states.append(_RandomState(devices))
                parts.append(embed(batch))
            embedded.append(parts)
        whole = [torch.cat(parts) for parts in embedded]
    if not torch.is_grad_enabled():
        return loss(*whole)
    value = loss(*(z.requires_grad_() for z in whole))
    gradients = torch.autograd.grad(value, whole)
    shares = [
        share
        for gradient, parts in zip(gradients, embedded, strict=True)
        for share in gradient.split([len(part) for part in parts])
    ]
    batches = [batch for column in columns for batch in column]
    precisions = _autocasts(devices)

    def replay(scale: Tensor) -> None:
        for i, (batch, gradient, state) in enumerate(zip(batches, shares, states, strict=True)):
            with torch.enable_grad(), _averaging(model, last=i == len(batches) - 1):
                with state.again(), _entered(precisions):
                    z = embed(batch)
                if z.requires_grad:   # a frozen part of a model has nothing to learn
                    z.backward((_wide(gradient) * scale).to(z.dtype))

    result = value.detach().requires_grad_()
    result.register_hook(replay)
    return result


class _RandomState:
    """Where the random numbers of the CPU and of ``devices`` stand, to draw the same ones again."""

    def __init__(self, devices: set[torch.device]) -> None:
        self.cpu = torch.get_rng_state()
        others = (device for device in devices if device.type not in ("cpu", "meta"))
        self.others = {device: _generator(device).get_rng_state(*_index(device)) for device in others}

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw from here inside the context, and go on outside as if nothing had been drawn."""
        now = _RandomState(set(self.others))
        self._set()
        try:
            yield
        finally:
            now._set()

    def _set(self) -> None:
        torch.set_rng_state(self.cpu)
        for device, state in self.others.items():
            _generator(device).set_rng_state(state, *_index(device))


def _generator(device: torch.device) -> Any:
    return torch.get_device_module(device)


def _index(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)   # there is only one, and its functions take none


def _autocasts(devices: set[torch.device]) -> list[tuple[str, torch.dtype]]:
    # A hook may run on another thread, where the autocast of the forward pass is not in force.
    kinds = {device.type for device in devices if device.type != "meta"}
    return [(kind, torch.get_autocast_dtype(kind)) for kind in sorted(kinds) if torch.is_autocast_enabled(kind)]


@contextmanager
def _entered(precisions: list[tuple[str, torch.dtype]]) -> Iterator[None]:
    if not precisions:
        yield
        return
    (kind, dtype), *rest = precisions
    with torch.autocast(kind, dtype=dtype), _entered(rest):
        yield


def _averaging(model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Have the processes average their gradients after the last mini batch only.

    Averages taken after every mini batch add up to the same gradients. So they are taken where it is not certain that
    the last one has any: parts of the model are frozen, or its graph must stay the same.
    """
    model = getattr(model, "_orig_mod", model)   # what torch.compile wraps
    if last or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    if model.static_graph or not all(parameter.requires_grad for parameter in model.parameters()):
        return nullcontext()
    quiet: AbstractContextManager[None] = model.no_sync()
    return quiet


def _wide(gradient: Tensor) -> Tensor:
    return gradient.to(torch.promote_types(gradient.dtype, torch.float32))
