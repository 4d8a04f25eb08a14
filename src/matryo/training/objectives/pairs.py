"""PairModel and DistilledModel: contrastive learning and distillation, with one encoder or a dual one."""

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
from matryo.training.objectives.base import NestedModel, embed_side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.nesting import Nesting
    from matryo.training.objectives.teacher import Teacher
    from matryo.training.recipe.fields import Objective


class _Taught(NestedModel):
    """A model that may have a teacher. The teacher is not a submodule: it is not trained or stored."""

    def __init__(self, encoder: nn.Module, nesting: Nesting, objective: Objective) -> None:
        super().__init__()
        self.encoder, self.nesting, self.objective = encoder, nesting, objective
        self.taught_by: tuple[Teacher, ...] = ()   # a tuple, in which torch does not look for submodules

    def compile_encoder(self) -> None:
        """Compile the encoder; of a dual one the two towers, because training calls those."""
        towers = self.encoder.children() if isinstance(self.encoder, DualEncoder) else [self.encoder]
        for part in towers:
            part.compile()

    def _distil(self, inputs: Any, a: Tensor, b: Tensor | None) -> Tensor:
        """The distance of the similarities at each dim from the teacher's, [dims]."""
        (teacher,) = self.taught_by
        both = inputs if b is not None else (inputs,)
        targets = [teacher(side) for side in both]   # once per batch, for all dims
        return distil_by_dim(
            a, targets[0], self.nesting, self.objective.temperature,
            candidates=b, teacher_candidates=targets[1] if b is not None else None,
        )  # fmt: skip


class PairModel(_Taught):
    """Contrastive learning of pairs at every dim, with the other candidates of the batch as negatives."""

    def __init__(self, encoder: nn.Module, nesting: Nesting, objective: Objective) -> None:
        super().__init__(encoder, nesting, objective)
        if not isinstance(encoder, DualEncoder):   # a dual encoder has its own temperature
            start = torch.tensor(-math.log(objective.temperature))
            self.logit_scale = nn.Parameter(start, requires_grad=objective.learn_temperature)
        for scale in _scales(self):
            scale.requires_grad_(objective.learn_temperature)

    @property
    def temperature(self) -> Tensor:
        """The divisor of the cosine similarities."""
        encoder = self.encoder
        return encoder.temperature if isinstance(encoder, DualEncoder) else temperature_of(self.logit_scale)

    def forward(self, inputs: tuple[Any, Any], target: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of queries and their candidates, [2, batch, d], and the unweighted loss at each dim [dims]."""
        a, candidates = (embed_side(self.encoder, side) for side in inputs)
        b, negatives = candidates[: len(target)], candidates[len(target) :]
        objective = self.objective
        losses = contrastive_by_dim(
            a, b, self.nesting, self.temperature, symmetric=objective.symmetric,
            gather=objective.gather and self.training,
            negatives=negatives if len(negatives) else None,
        )  # fmt: skip
        if objective.distil and self.taught_by:
            losses = losses + objective.distil * self._distil(inputs, a, candidates)
        return torch.stack([a, b]), losses

    def hits(self, z: Tensor, target: Tensor) -> Tensor:
        """The share of the queries whose own candidate is the nearest one of the batch, at each dim."""
        a, b = z.float().unbind()
        cosines = prefix_logits(a, b, self.nesting) * inverse_norms(b, self.nesting)[:, None]
        return (cosines.argmax(-1) == target).float().mean(1)

    def always_trained(self) -> Iterator[nn.Parameter]:
        """The learned temperatures, which finetune.unfreeze never freezes."""
        yield from _scales(self) if self.objective.learn_temperature else ()


class DistilledModel(_Taught):
    """Distillation: at every dim, the similarities of items or pairs should equal those of a teacher."""

    def __init__(self, encoder: nn.Module, nesting: Nesting, objective: Objective) -> None:
        super().__init__(encoder, nesting, objective)
        if isinstance(encoder, DualEncoder):   # the loss does not use its temperature
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
        """Empty, as distillation has no correct answers."""
        return z.new_zeros(0)


def _scales(module: nn.Module) -> list[nn.Parameter]:
    return [value for name, value in module.named_parameters() if name.rpartition(".")[2] == "logit_scale"]
