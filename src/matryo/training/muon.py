"""Muon: matrices move by their orthogonalised momentum (Jordan et al., 2024), everything else as under AdamW.

A step moves a matrix along all its singular directions alike, so that what few words or dims ask for is not drowned by
what all of them do. Matrices of one shape are orthogonalised together: one by one, their small products would leave a
GPU waiting.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

__all__ = ["Muon", "orthogonalised"]

_MOMENTUM = 0.95
_ROUNDS = 5
_QUINTIC = (3.4445, -4.7750, 2.0315)   # a x + b x³ + c x⁵ takes values of 0.003 … 1 to 0.7 … 1.2 within five rounds
_AS_ADAMW = 0.2   # makes a step as long as AdamW's are (Liu et al., 2025), so that one learning rate serves both


class Muon(torch.optim.Optimizer):
    """An optimiser of parameter groups: those that say ``turned`` hold matrices alone, the others are AdamW's.

    Args:
        groups: as any optimiser takes them, each with ``params`` and ``turned``.
        lr: the learning rate of all.
        betas: of AdamW.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0, "turned": False})
        others = [group for group in self.param_groups if not group["turned"]]
        self._adamw = torch.optim.AdamW(others, lr=lr, betas=betas, fused=True) if others else None
        self._share()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what ``state_dict()`` gave."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """AdamW sees its groups of this optimiser, whose state is that of both."""
        if self._adamw is not None:
            self._adamw.param_groups = [group for group in self.param_groups if not group["turned"]]
            self._adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["turned"]:
                alike: dict[Any, list[Tensor]] = {}
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        alike.setdefault((parameter.shape, parameter.dtype, parameter.device), []).append(parameter)
                for some in alike.values():
                    self._turn(some, group["lr"], group["weight_decay"])
        if self._adamw is not None:
            self._adamw.step()
        return loss

    def _turn(self, matrices: list[Tensor], rate: float, decay: float) -> None:
        """Move matrices of one shape."""
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        for matrix in matrices:
            if "momentum_buffer" not in self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        momenta = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - _MOMENTUM)
        ahead = torch._foreach_lerp(gradients, momenta, _MOMENTUM)   # Nesterov's
        turned = orthogonalised(torch.stack(ahead)).to(matrices[0].dtype)
        torch._foreach_mul_(matrices, 1 - rate * decay)
        torch._foreach_add_(matrices, turned.unbind(), alpha=-rate * _AS_ADAMW * math.sqrt(max(matrices[0].shape)))


def orthogonalised(matrices: Tensor) -> Tensor:
    """Each of the matrices [n, a, b] with singular values near 1 (0.7 … 1.2) in place of its own.

    >>> values = torch.linalg.svdvals(orthogonalised(torch.randn(3, 8, 20)))
    >>> bool(((values > 0.6) & (values < 1.3)).all())
    True
    """
    a, b, c = _QUINTIC
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)   # no singular value is above 1
    if x.is_cuda:
        x = x.bfloat16()   # what is rounded here is far below what the quintic leaves undone
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
