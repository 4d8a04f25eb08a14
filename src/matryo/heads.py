"""NestedLinear: a linear classifier at every dim of a nesting, separate (MRL) or tied (MRL-E).

A *fixed* head, trained for one dim only, is the same thing over a nesting of that one dim:
``NestedLinear(Nesting([64]), classes)`` reads the first 64 columns and ignores the rest.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from matryo.errors import InputError, NestingError
from matryo.losses.cross_entropy import cross_entropy_of, prefix_logits, weighed
from matryo.losses.engines.contract import Scores
from matryo.losses.vectors import check_dims
from matryo.nesting import Nesting, truncate

__all__ = ["NestedLinear"]


class NestedLinear(nn.Module):
    """One linear classifier a dim, computed together.

    Args:
        nesting: the dims and their loss weights c_m.
        classes: how many classes.
        tied: True shares one weight between the dims, dim m using its first m columns (MRL-E);
            False gives every dim a weight of its own (MRL).
        bias: a bias a head; a tied head has one bias for all dims.

    >>> head = NestedLinear(Nesting([8, 16, 32]), classes=10)
    >>> [tuple(logits.shape) for logits in head(torch.randn(4, 32))]
    [(4, 10), (4, 10), (4, 10)]
    >>> loss = head.loss(torch.randn(4, 32), torch.tensor([0, 1, 2, 3]))
    """

    bias: Tensor | None

    def __init__(self, nesting: Nesting, classes: int, *, tied: bool = False, bias: bool = True) -> None:
        super().__init__()
        check_dims(nesting)
        if classes < 1:
            raise InputError("a head needs at least one class", got=classes, cure="pass how many classes there are")
        self.nesting, self.classes, self.tied = nesting, classes, tied
        # Separate heads lie side by side in one parameter, [classes, Σ m], so that padding them to a common
        # width is one copy and all heads are one matrix product.
        self.weight = nn.Parameter(torch.empty(classes, nesting.dim if tied else sum(nesting.dims)))
        if bias:
            self.bias = nn.Parameter(torch.empty(classes if tied else (len(nesting), classes)))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw each head as ``nn.Linear`` would: uniform in ±1/√(its own dim)."""
        with torch.no_grad():
            for i, dim in enumerate(self.nesting.dims if not self.tied else (self.nesting.dim,)):
                bound = 1 / math.sqrt(dim)
                self.weight_at(dim).uniform_(-bound, bound)
                if self.bias is not None:
                    (self.bias if self.tied else self.bias[i]).uniform_(-bound, bound)

    def forward(self, z: Tensor) -> tuple[Tensor, ...]:
        """One [batch, classes] tensor of logits a dim; leading axes of ``z`` stay, however many."""
        return self.logits(z).unbind(0)

    def logits(self, z: Tensor) -> Tensor:
        """The logits at every dim, [dims, batch, classes]."""
        self.nesting.check_fits(z.shape[-1])
        if self.tied:
            return prefix_logits(z, self.weight, self.nesting, self.bias)
        rows = z.reshape(-1, z.shape[-1])
        logits = self._in_one_product(rows) if z.is_cuda else self._one_by_one(rows)
        logits = logits if self.bias is None else logits + self.bias[:, None]
        return logits.reshape(len(self.nesting), *z.shape[:-1], self.classes)

    def losses(
        self,
        z: Tensor,
        target: Tensor,
        *,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        class_weight: Tensor | None = None,
        engine: str = "auto",
    ) -> Tensor:
        """The unweighted cross-entropy at each dim, [dims]; logits too many to keep are not kept.

        The options are those of :func:`~matryo.losses.nested_cross_entropy`.
        """
        self.nesting.check_fits(z.shape[-1])
        return cross_entropy_of(
            Scores(z, self.weight, self.nesting, self.tied, self.bias),
            target,
            partial(self.logits, z),
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            class_weight=class_weight,
            engine=engine,
        )

    def loss(self, z: Tensor, target: Tensor, **options: Any) -> Tensor:
        """Σ c_m · cross_entropy at dim m: what training minimises. The options are those of :meth:`losses`."""
        return self.weigh(self.losses(z, target, **options))

    def weigh(self, losses: Tensor) -> Tensor:
        """Σ c_m · losses[m]."""
        return weighed(losses, self.nesting)

    def weight_at(self, dim: int) -> Tensor:
        """The [classes, dim] weight used at ``dim`` (a view: changing it changes the head)."""
        if self.tied:
            return truncate(self.weight, dim, normalize=False)
        start = sum(self.nesting.dims[: self._place(dim)])
        return self.weight[:, start : start + dim]

    def bias_at(self, dim: int) -> Tensor | None:
        """The [classes] bias used at ``dim``."""
        if self.bias is None or self.tied:
            return self.bias
        return self.bias[self._place(dim)]

    def _place(self, dim: int) -> int:
        """Which of the separate heads it is."""
        if dim not in self.nesting.dims:
            raise NestingError(
                "a separate head classifies only at the dims it was trained for",
                got=dim,
                cure=f"choose one of {', '.join(map(str, self.nesting.dims))}, or train a tied head",
            )
        return self.nesting.dims.index(dim)

    def _one_by_one(self, z: Tensor) -> Tensor:
        """As few operations as possible: what a CPU is short of."""
        weights = self.weight.split(self.nesting.dims, 1)
        return torch.stack([F.linear(z[:, : weight.shape[1]], weight) for weight in weights])

    def _in_one_product(self, z: Tensor) -> Tensor:
        """As few launches as possible, which is what a GPU waits for: every head padded to the largest dim."""
        width, zero, parts = self.nesting.dim, self.weight.new_zeros(1, 1), []
        for weight in self.weight.split(self.nesting.dims, 1):
            parts += [weight, zero.expand(self.classes, width - weight.shape[1])]
        padded = torch.cat(parts, 1).view(self.classes * len(self.nesting), width)
        return F.linear(z[:, :width], padded).view(len(z), self.classes, len(self.nesting)).permute(2, 0, 1)

    def extra_repr(self) -> str:
        """What ``print(head)`` shows."""
        kind = "tied" if self.tied else "separate"
        return f"dims={self.nesting.dims}, classes={self.classes}, {kind}, bias={self.bias is not None}"
