"""Classifier: an encoder with a nested head, trained on labelled images or texts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from matryo.encoders import SlimmableLinear, SlimmableResNet
from matryo.errors import InputError
from matryo.heads import NestedLinear
from matryo.losses.cross_entropy import cross_entropy_by_dim
from matryo.losses.engines import wide
from matryo.training.objectives.base import NestedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.losses import SelfDistil
    from matryo.nesting import Nesting


class Classifier(NestedModel):
    """Maps images or texts to embeddings, and to the loss of the head at every dim.

    Embeddings are [batch, d]; those of a slimmable network are [widths, batch, d].
    """

    def __init__(
        self, encoder: nn.Module, head: NestedLinear, label_smoothing: float | Sequence[float] = 0.0,
        self_distil: SelfDistil | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder, self.head, self.nesting = encoder, head, head.nesting
        self.label_smoothing, self.self_distil = label_smoothing, self_distil

    def forward(self, inputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings [batch, d] and the unweighted loss at each dim [dims], then at those of each depth."""
        *shallow, z = self.embed_after_layers(inputs)
        options = {"label_smoothing": self.label_smoothing, "self_distil": self.self_distil or 0.0}
        losses = self.head.losses(z, target, **options)
        if not self.depths:
            return z, losses
        teacher = self._logits(z, self.nesting)[-1:].detach()
        for own, depth in zip(shallow, self.depths, strict=True):
            losses = torch.cat([losses, self._after_layers(own, depth.nesting, teacher, target)])
        return z, losses

    def _after_layers(self, z: Tensor, nesting: Nesting, teacher: Tensor, target: Tensor) -> Tensor:
        """The losses of the embeddings after fewer layers, whose every dim learns from ``teacher`` [1, batch, classes].

        The teacher takes the place of the largest dim, from which smaller ones learn, and its own loss is dropped.
        """
        smoothing = self.label_smoothing
        if isinstance(smoothing, list | tuple):
            by_dim = dict(zip(self.nesting.dims, smoothing, strict=True))
            smoothing = [*(by_dim[dim] for dim in nesting.dims), 0.0]
        distil = self.self_distil and replace(self.self_distil, teacher="full")
        logits = torch.cat([self._logits(z, nesting), teacher])
        return cross_entropy_by_dim(logits, target, label_smoothing=smoothing, self_distil=distil or 0.0)[:-1]

    def _logits(self, z: Tensor, nesting: Nesting) -> Tensor:
        """The logits at the dims of ``nesting``, [dims, batch, classes], in float32 at least."""
        logits = self.head.logits(z)
        kept = [self.nesting.dims.index(dim) for dim in nesting.dims]
        return (logits if nesting == self.nesting else logits[kept]).to(wide(logits.dtype))

    def hits(self, z: Tensor, target: Tensor) -> Tensor:
        """The share of the batch that is classified correctly at each dim."""
        return (self.head.logits(z.float()).argmax(-1) == target).float().mean(1)


def at_width(model: NestedModel, width: float) -> NestedModel:
    """A slimmable model at one width, as a plain model whose head reads the whole embedding; other models unchanged."""
    if isinstance(model, Classifier):
        encoder, head = model.encoder, model.head
        if isinstance(encoder, SlimmableResNet) and isinstance(head, SlimmableLinear):
            with torch.random.fork_rng(devices=[]):   # random initial weights are drawn and then overwritten
                plain = encoder.narrow(width)
                return Classifier(plain, head.narrow(plain.dim), model.label_smoothing)
    if width != 1:
        raise InputError(
            "only a slimmable network has several widths",
            got=f"width {width:g}",
            cure="train one with --head.kind slimmable, or use width 1",
        )
    return model
