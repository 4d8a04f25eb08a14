"""NestedModel: the interface of every trained model: an encoder, and the loss of its objective at every dim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from matryo.encoders import DualEncoder, Tokens, depth_of
from matryo.losses.cross_entropy import weighed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.nesting import Nesting
    from matryo.training.objectives.depths import Depth


class NestedModel(nn.Module):
    """Maps inputs to embeddings, and to the loss at every dim of a nesting. Each objective is a subclass."""

    nesting: Nesting
    encoder: nn.Module
    depths: tuple[Depth, ...] = ()
    """Where the encoder is trained after fewer layers, too."""

    def forward(self, inputs: Any, target: Tensor) -> tuple[Tensor, Tensor]:
        """The tensor from which the loss is computed, and the unweighted losses.

        The losses are those at each dim [dims], followed by those at the dims of each of ``depths``.
        """
        raise NotImplementedError

    def embed(self, inputs: Any, *, flip: bool = False) -> Tensor:
        """The columns of z that the nesting trains, float32; with ``flip``, averaged with those of the mirror image.

        The average, not the sum: a sum would sharpen the softmax of the head.
        """
        z = embed_side(self.encoder, inputs)
        if flip and isinstance(inputs, Tensor):   # texts have no mirror image
            z = (z + embed_side(self.encoder, inputs.flip(-1))) / 2
        return z[..., : self.nesting.dim].float()

    def hits(self, z: Tensor, target: Tensor) -> Tensor:
        """The share of this batch that is correct at each dim, [dims]; ``z`` is the first result of ``forward``."""
        raise NotImplementedError

    def weigh(self, losses: Tensor) -> Tensor:
        """Σ c_m · losses[m], which training minimises; summed over the depths."""
        if not self.depths:
            return weighed(losses, self.nesting)
        nestings = [self.nesting, *(depth.nesting for depth in self.depths)]
        parts = losses.split([len(nesting) for nesting in nestings])
        return torch.stack([weighed(part, nesting) for part, nesting in zip(parts, nestings, strict=True)]).sum()

    def share_of(self, part: Tensor, whole: Tensor) -> Tensor | float:
        """The weight of the loss of a part of a batch in that of the whole batch, given their targets."""
        return len(part) / len(whole)

    def embed_after_layers(self, inputs: Any) -> tuple[Tensor, ...]:
        """The embeddings of one side after the layers of each of ``depths``, and last those of the whole encoder."""
        if not self.depths:
            return (embed_side(self.encoder, inputs),)
        layers = [*(depth.layers for depth in self.depths), depth_of(self.encoder)]
        z: Tensor = self.encoder(inputs, layers)
        return z.unbind()

    def compile_encoder(self) -> None:
        """Compile the encoder only, so that runs with other heads share the compiled code."""
        self.encoder.compile()

    def always_trained(self) -> Iterator[nn.Parameter]:
        """Parameters of the encoder that are trained even if the rest is frozen."""
        yield from ()


def embed_side(encoder: nn.Module, inputs: Tensor | Tokens) -> Tensor:
    """The embedding z of images or texts; a dual encoder embeds images as queries and texts as candidates."""
    if isinstance(encoder, DualEncoder):
        return encoder.embed_candidates(inputs) if isinstance(inputs, Tokens) else encoder.embed_queries(inputs)
    z: Tensor = encoder(inputs)
    return z


@torch.no_grad()
def hits_by_dim(z: Tensor, weight: Tensor, target: Tensor, nesting: Nesting, bias: Tensor | None = None) -> Tensor:
    """The number of rows whose target has the highest score at each dim, [dims]; targets below 0 are ignored.

    Only the scores of one dim are in memory at a time.
    """
    known = target >= 0
    z, target = z.float()[known], target[known]
    scores = z.new_zeros(len(z), len(weight)) if bias is None else bias.float().expand(len(z), -1).clone()
    counts = []
    for low, high in nesting.blocks:
        scores += z[:, low:high] @ weight[:, low:high].float().T
        counts.append((scores.argmax(1) == target).sum())
    return torch.stack(counts)
