"""Self-distillation: a small dim learns the probabilities that the model itself predicts at a larger dim.

A label says which class is right; the full dim also says which classes are similar. The teacher is detached, so nothing
makes it less certain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from matryo.arguments import checked
from matryo.errors import InputError, shown

if TYPE_CHECKING:
    from collections.abc import Callable


@checked
@dataclass(frozen=True)
class SelfDistil:
    """The loss of each dim but the largest is (1 − share) · cross-entropy + share · that to the teacher's softmax.

    >>> SelfDistil.of(0.5)
    SelfDistil(share=0.5, teacher='full', temperature=1.0)
    """

    share: float
    teacher: Literal["full", "next"] = "full"
    """The full dim, or the next larger dim."""
    temperature: float = 1.0
    """Divides both logits; the loss is multiplied by its square, so that gradients keep their size."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InputError("self_distil must be a share in 0 … 1", got=self.share, cure="use 0.5, or 0 for none")
        if self.teacher not in ("full", "next"):
            raise InputError("the teacher is full or next", got=shown(self.teacher), cure="use full")
        if not self.temperature > 0:
            raise InputError("the temperature must be positive", got=self.temperature, cure="use 1")

    @classmethod
    def of(cls, given: Any) -> SelfDistil | None:
        """Return ``given``, a share or an object of this class; None if it has no effect."""
        made = given if isinstance(given, SelfDistil) else cls(given)
        return made if made.share else None

    def teachers(self, dims: int) -> list[int]:
        """The number of the teacher of each dim but the largest."""
        return [dims - 1] * (dims - 1) if self.teacher == "full" else list(range(1, dims))

    def mixed(self, losses: Tensor, soft: Callable[[], Tensor]) -> Tensor:
        """Mix the losses of the labels [dims, …] with those of the teacher, ``soft()`` [dims − 1, …]."""
        if len(losses) == 1:
            return losses
        return torch.cat([self.mix(losses[:-1], soft()), losses[-1:]])

    def mix(self, losses: Tensor, soft: Tensor) -> Tensor:
        """Mix the losses of the labels with those of the teacher, all of dims that it teaches."""
        return (1 - self.share) * losses + self.share * self.temperature**2 * soft

    def soft(self, logits: Tensor, log_shares: Tensor | None = None) -> Tensor:
        """The cross-entropy to the teacher, [dims − 1, batch], of stored logits [dims, batch, classes].

        ``log_shares`` are their log-softmax, if it is known.
        """
        if self.temperature != 1 or log_shares is None:
            log_shares = (logits / self.temperature).log_softmax(-1)
        larger = log_shares.detach()
        # Slices: a list of indices would be copied to the GPU, which a CUDA graph cannot record.
        teacher = (larger[-1:] if self.teacher == "full" else larger[1:]).exp()
        return -(teacher * log_shares[:-1]).sum(-1)
