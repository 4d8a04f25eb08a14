"""PairModel: what belongs together is near at every dim; one encoder for texts, or a dual one for images and texts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from matryo.encoders import DualEncoder, Tokens
from matryo.encoders.dual import temperature_of
from matryo.losses.contrastive import contrastive_by_dim, inverse_norms
from matryo.losses.cross_entropy import prefix_logits
from matryo.losses.distil import distil_by_dim
from matryo.training.objectives.base import NestedModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.nesting import Nesting
    from matryo.training.objectives.teacher import Teacher
    from matryo.training.recipe.fields import Objective

__all__ = ["DistilledModel", "PairModel", "embed_side"]


class _Taught(NestedModel):
    """A model that may have a teacher, which is no part of it: nothing of it is trained, counted or stored."""

    def __init__(self, encoder: nn.Module, nesting: Nesting, objective: Objective) -> None:
        super().__init__()
        self.encoder, self.nesting, self.objective = encoder, nesting, objective
        self.taught_by: tuple[Teacher, ...] = ()   # in a tuple, where torch does not look for modules

    def embed(self, inputs: Any, *, flip: bool = False) -> Tensor:
        """The columns of z that the nesting trains; with ``flip``, averaged with the mirror image's."""
        z = embed_side(self.encoder, inputs)
        if flip and not isinstance(inputs, Tokens):
            z = (z + embed_side(self.encoder, inputs.flip(-1))) / 2
        return z[..., : self.nesting.dim].float()

    def compile_encoder(self) -> None:
        """A dual encoder's towers, as they are what is called; else the encoder."""
        towers = self.encoder.children() if isinstance(self.encoder, DualEncoder) else [self.encoder]
        for part in towers:
            part.compile()

    def _distil(self, inputs: Any, a: Tensor, b: Tensor | None) -> Tensor:
        """How far each dim's similarities are from the teacher's, [dims]."""
        (teacher,) = self.taught_by
        both = inputs if b is not None else (inputs,)
        known = [teacher(one) for one in both]   # once a batch, whatever the number of dims
        return distil_by_dim(
            a, known[0], self.nesting, self.objective.temperature,
            candidates=b, teacher_candidates=known[1] if b is not None else None,
        )  # fmt: skip


class PairModel(_Taught):
    """Queries and candidates to the contrastive loss at every dim, with the other candidates as negatives."""

    def __init__(self, encoder: nn.Module, nesting: Nesting, objective: Objective) -> None:
        super().__init__(encoder, nesting, objective)
        if not isinstance(encoder, DualEncoder):   # which brings its own
            start = torch.tensor(-math.log(objective.temperature))
            self.logit_scale = nn.Parameter(start, requires_grad=objective.learn_temperature)
        for scale in _scales(self):
            scale.requires_grad_(objective.learn_temperature)

    @property
    def temperature(self) -> Tensor:
        """What cosines are divided by."""
        encoder = self.encoder
        return encoder.temperature if isinstance(encoder, DualEncoder) else temperature_of(self.logit_scale)

    def forward(self, inputs: tuple[Any, Any], target: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of queries and their candidates, [2, batch, d], and the unweighted loss at each dim [dims]."""
        a, candidates = (embed_side(self.encoder, side) for side in inputs)
        b, negatives = candidates[: len(target)], candidates[len(target) :]
        it = self.objective
        losses = contrastive_by_dim(
            a, b, self.nesting, self.temperature, symmetric=it.symmetric, gather=it.gather and self.training,
            negatives=negatives if len(negatives) else None,
        )  # fmt: skip
        if it.distil and self.taught_by:
            losses = losses + it.distil * self._distil(inputs, a, candidates)
        return torch.stack([a, b]), losses

    def hits(self, z: Tensor, target: Tensor) -> Tensor:
        """The share of the queries whose own candidate is the nearest in the batch, at each dim."""
        a, b = z.float().unbind()
        cosines = prefix_logits(a, b, self.nesting) * inverse_norms(b, self.nesting)[:, None]
        return (cosines.argmax(-1) == target).float().mean(1)

    def always_trained(self) -> Iterator[nn.Parameter]:
        """A dual encoder's temperature, if it is learned."""
        yield from _scales(self) if self.objective.learn_temperature else ()


class DistilledModel(_Taught):
    """Items, or queries and candidates, to the distance of their similarities at every dim from a teacher's."""

    def __init__(self, encoder: nn.Module, nesting: Nesting, objective: Objective) -> None:
        super().__init__(encoder, nesting, objective)
        if isinstance(encoder, DualEncoder):   # its temperature has no part in this
            for scale in _scales(encoder):
                scale.requires_grad_(False)

    def forward(self, inputs: Any, target: Tensor) -> tuple[Tensor, Tensor]:   # noqa: ARG002 - the teacher is the target
        """The vectors [batch, d] and the unweighted loss at each dim [dims]."""
        if isinstance(inputs, Tensor | Tokens):
            z = embed_side(self.encoder, inputs)
            return z, self._distil(inputs, z, None)
        a, b = (embed_side(self.encoder, side) for side in inputs)
        return a, self._distil(inputs, a, b)

    def hits(self, z: Tensor, target: Tensor) -> Tensor:   # noqa: ARG002
        """Nothing is right or wrong: none."""
        return z.new_zeros(0)


def _scales(module: nn.Module) -> list[nn.Parameter]:
    return [value for name, value in module.named_parameters() if name.rpartition(".")[2] == "logit_scale"]


def embed_side(encoder: nn.Module, inputs: Tensor | Tokens) -> Tensor:
    """z of images or texts; of a dual encoder, the one of its two that reads them (images are its queries)."""
    if isinstance(encoder, DualEncoder):
        return encoder.embed_candidates(inputs) if isinstance(inputs, Tokens) else encoder.embed_queries(inputs)
    z: Tensor = encoder(inputs)
    return z
