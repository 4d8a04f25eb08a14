"""NestedLinear: a linear classifier at every dim of a nesting, separate (MRL) or tied (MRL-E).

A *fixed* head, trained for one dim only, has a nesting of that one dim: ``NestedLinear([64], classes)`` uses the first
64 columns and ignores the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from matryo.arguments import checked
from matryo.errors import InputError, NestingError
from matryo.losses.cross_entropy import cross_entropy_of, prefix_logits, weighed
from matryo.losses.engines.contract import Scores
from matryo.losses.vectors import check_dims, check_vectors
from matryo.nesting import Nesting, as_nesting, truncate

__all__ = ["NestedLinear"]


class NestedLinear(nn.Module):
    """One linear classifier per dim, computed together.

    Args:
        nesting: the dims and their loss weights c_m, or a list of dims.
        classes: the number of classes.
        tied: True shares one weight between the dims, and dim m uses its first m columns (MRL-E);
            False gives each dim its own weight (MRL).
        bias: add a bias: one per dim, or one for all dims if tied.

    >>> head = NestedLinear(Nesting([8, 16, 32]), classes=10)
    >>> [tuple(logits.shape) for logits in head(torch.randn(4, 32))]
    [(4, 10), (4, 10), (4, 10)]
    >>> loss = head.loss(torch.randn(4, 32), torch.tensor([0, 1, 2, 3]))
    """

    bias: Tensor | None

    @checked
    def __init__(
        self, nesting: Nesting | Iterable[int], classes: int, *, tied: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        nesting = as_nesting(nesting)
        if classes < 1:
            raise InputError("classes must be at least 1", got=classes, cure="pass the number of classes")
        self.nesting, self.classes, self.tied = nesting, classes, tied
        # Separate heads are stored side by side in one parameter, [classes, Σ m]. One copy pads them to a common width,
        # and one matrix product then computes all of them.
        self.weight = nn.Parameter(torch.empty(classes, nesting.dim if tied else sum(nesting.dims)))
        if bias:
            self.bias = nn.Parameter(torch.empty(classes if tied else (len(nesting), classes)))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise each head as ``nn.Linear`` does: uniform in ±1/√dim."""
        with torch.no_grad():
            for i, dim in enumerate(self.nesting.dims if not self.tied else (self.nesting.dim,)):
                bound = 1 / math.sqrt(dim)
                self.weight_at(dim).uniform_(-bound, bound)
                if self.bias is not None:
                    (self.bias if self.tied else self.bias[i]).uniform_(-bound, bound)

    def forward(self, z: Tensor) -> tuple[Tensor, ...]:
        """One [batch, classes] tensor of logits per dim. ``z`` may have more than one leading axis."""
        return self.logits(z).unbind(0)

    @checked
    def logits(self, z: Tensor) -> Tensor:
        """The logits at every dim, [dims, batch, classes]."""
        check_dims(self.nesting, z)
        check_vectors(z.reshape(-1, z.shape[-1]), self.weight, "z and the weights", "[…, d] and [classes, d]")
        if self.tied:
            return prefix_logits(z, self.weight, self.nesting, self.bias)
        rows = z.reshape(-1, z.shape[-1])
        logits = self._batched(rows) if z.is_cuda else self._looped(rows)
        logits = logits if self.bias is None else logits + self.bias[:, None]
        return logits.reshape(len(self.nesting), *z.shape[:-1], self.classes)

    @checked
    def losses(self, z: Tensor, target: Tensor, **options: Any) -> Tensor:
        """The unweighted cross-entropy at each dim, [dims], without storing the logits if they are many.

        The options are ``label_smoothing``, ``ignore_index``, ``class_weight``, ``self_distil`` and ``engine`` of
        :func:`~matryo.losses.nested_cross_entropy`.
        """
        check_dims(self.nesting, z)
        scores = Scores(z, self.weight, self.nesting, self.tied, self.bias)
        return cross_entropy_of(scores, target, partial(self.logits, z), **options)

    def loss(self, z: Tensor, target: Tensor, **options: Any) -> Tensor:
        """The training loss, Σ c_m · cross_entropy at dim m. The options are those of :meth:`losses`."""
        return self.weigh(self.losses(z, target, **options))

    @checked
    def weigh(self, losses: Tensor) -> Tensor:
        """Σ c_m · losses[m]."""
        if losses.shape != (len(self.nesting),):
            got = f"shape {tuple(losses.shape)}"
            raise InputError(f"losses must be {len(self.nesting)}, one per dim", got=got, cure="pass head.losses(…)")
        return weighed(losses, self.nesting)

    @checked
    def weight_at(self, dim: int) -> Tensor:
        """The weight at ``dim``, [classes, dim]: a view of the parameter, not a copy."""
        if self.tied:
            return truncate(self.weight, dim, normalize=False)
        start = sum(self.nesting.dims[: self._index(dim)])
        return self.weight[:, start : start + dim]

    @checked
    def bias_at(self, dim: int) -> Tensor | None:
        """The bias at ``dim``, [classes]."""
        if self.bias is None or self.tied:
            return self.bias
        return self.bias[self._index(dim)]

    def weigh_encoder_only(self) -> None:
        """Divide the gradients of each separate head by its weight c_m: the loss weights then act on ``z`` alone.

        A head of a small weight would otherwise learn slowly, and weight decay would keep its logits small.
        """
        if self.tied or min(self.nesting.weights) <= 0:
            got = "a tied head" if self.tied else f"weights {self.nesting.weights}"
            cure = "use separate heads and positive weights"
            raise InputError("only separate heads with positive weights can learn unweighted", got=got, cure=cure)
        shares = torch.tensor([1 / weight for weight in self.nesting.weights])
        columns = shares.repeat_interleave(torch.tensor(self.nesting.dims))
        for name, parameter, pace in (("weight", self.weight, columns), ("bias", self.bias, shares[:, None])):
            if parameter is not None:
                self.register_buffer(f"{name}_pace", pace, persistent=False)   # a buffer follows the module to a GPU
                parameter.register_hook(partial(self._unweigh, f"{name}_pace"))

    def _unweigh(self, pace: str, gradient: Tensor) -> Tensor:
        scaled: Tensor = gradient * getattr(self, pace)
        return scaled

    def _index(self, dim: int) -> int:
        """The index of the separate head for ``dim``."""
        if dim not in self.nesting.dims:
            cure = f"use dim {', '.join(map(str, self.nesting.dims))}, or train a tied head"
            raise NestingError("separate heads classify only at the dims they were trained for", got=dim, cure=cure)
        return self.nesting.dims.index(dim)

    def _looped(self, z: Tensor) -> Tensor:
        """One product per head: the fewest operations, for a CPU."""
        weights = self.weight.split(self.nesting.dims, 1)
        return torch.stack([F.linear(z[:, : weight.shape[1]], weight) for weight in weights])

    def _batched(self, z: Tensor) -> Tensor:
        """One product with all heads padded to the largest dim: the fewest kernel launches, for a GPU."""
        width, zero, parts = self.nesting.dim, self.weight.new_zeros(1, 1), []
        for weight in self.weight.split(self.nesting.dims, 1):
            parts += [weight, zero.expand(self.classes, width - weight.shape[1])]
        padded = torch.cat(parts, 1).view(self.classes * len(self.nesting), width)
        return F.linear(z[:, :width], padded).view(len(z), self.classes, len(self.nesting)).permute(2, 0, 1)

    def extra_repr(self) -> str:
        """The text that ``print(head)`` shows."""
        kind = "tied" if self.tied else "separate"
        return f"dims={self.nesting.dims}, classes={self.classes}, {kind}, bias={self.bias is not None}"
