"""Classifier: an encoder with a nested head, trained on labelled images or texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from matryo.encoders import SlimmableLinear, SlimmableResNet
from matryo.errors import InputError
from matryo.heads import NestedLinear
from matryo.training.objectives.base import NestedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.losses import SelfDistil


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
        """The embeddings [batch, d] and the unweighted loss at each dim [dims]."""
        z = self.encoder(inputs)
        options = {"label_smoothing": self.label_smoothing, "self_distil": self.self_distil or 0.0}
        return z, self.head.losses(z, target, **options)

    def hits(self, z: Tensor, target: Tensor) -> Tensor:
        """The share of the batch that is classified correctly at each dim."""
        return (self.head.logits(z.float()).argmax(-1) == target).float().mean(1)

    def weigh(self, losses: Tensor) -> Tensor:
        """Σ c_m · losses[m], with the weights of the head."""
        return self.head.weigh(losses)


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
