"""NestedModel: an encoder and what its objective adds; all that the loop, checkpoints and encoding know of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from matryo.losses.cross_entropy import weighed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.nesting import Nesting

__all__ = ["NestedModel", "hits_by_dim"]


class NestedModel(nn.Module):
    """Inputs to embeddings, and to the loss at every dim of a nesting. Kinds differ in what they learn from."""

    nesting: Nesting
    encoder: nn.Module

    def forward(self, inputs: Any, target: Tensor) -> tuple[Tensor, Tensor]:
        """What the loss was computed from, and the unweighted loss at each dim [dims]."""
        raise NotImplementedError

    def embed(self, inputs: Any, *, flip: bool = False) -> Tensor:
        """The columns of z that the nesting trains, float32; with ``flip``, averaged with the mirror image's.

        The average, not the sum: summing would sharpen every softmax on top of it.
        """
        z: Tensor = self.encoder(inputs)
        if flip:
            z = (z + self.encoder(inputs.flip(-1))) / 2
        return z[..., : self.nesting.dim].float()

    def hits(self, z: Tensor, target: Tensor) -> Tensor:
        """The share of this batch that is right at each dim, [dims], from the first thing ``forward`` returned."""
        raise NotImplementedError

    def weigh(self, losses: Tensor) -> Tensor:
        """Σ c_m · losses[m]: what training minimises."""
        return weighed(losses, self.nesting)

    def share_of(self, part: Tensor, whole: Tensor) -> Tensor | float:
        """What the loss of a part of a batch counts in that of the whole, by their targets."""
        return len(part) / len(whole)

    def compile_encoder(self) -> None:
        """Let torch compile the encoder alone: runs that differ in what is on top share the compiled code."""
        self.encoder.compile()

    def always_trained(self) -> Iterator[nn.Parameter]:
        """Parameters inside the encoder that train however much of it is frozen."""
        yield from ()


@torch.no_grad()
def hits_by_dim(z: Tensor, weight: Tensor, target: Tensor, nesting: Nesting, bias: Tensor | None = None) -> Tensor:
    """How many rows have their target's score highest at each dim, [dims]; one dim's scores exist at a time.

    Targets below 0 are no rows.
    """
    asked = target >= 0
    z, target = z.float()[asked], target[asked]
    scores = z.new_zeros(len(z), len(weight)) if bias is None else bias.float().expand(len(z), -1).clone()
    found = []
    for low, high in nesting.blocks:
        scores += z[:, low:high] @ weight[:, low:high].float().T
        found.append((scores.argmax(1) == target).sum())
    return torch.stack(found)
