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
from matryo.losses.self_distil import SelfDistil
from matryo.training.objectives.base import NestedModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.nesting import Nesting
    from matryo.training.objectives.depths import Depth
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

    @property
    def nestings(self) -> list[Nesting]:
        """The dims trained at each of the depths, and last those of the whole encoder."""
        return [*(depth.nesting for depth in self.depths), self.nesting]

    def _distil(self, inputs: Any, sides: list[tuple[Tensor, ...]]) -> list[Tensor]:
        """The distance of the similarities at each dim from the teacher's, [dims] for each of ``nestings``.

        ``sides`` are the embeddings of items, or of queries and of their candidates, for each of ``nestings``.
        """
        (teacher,) = self.taught_by
        targets = [teacher(side) for side in (inputs if len(sides) == 2 else (inputs,))]   # once, for all dims
        return [self._similar(own, targets, nesting) for *own, nesting in zip(*sides, self.nestings, strict=True)]

    def _similar(self, own: list[Tensor], targets: Sequence[Tensor], nesting: Nesting, warmth: float = 1.0) -> Tensor:
        candidates, wanted = (own[1], targets[1]) if len(own) == 2 else (None, None)
        temperature = self.objective.temperature * warmth
        return distil_by_dim(
            own[0], targets[0], nesting, temperature, candidates=candidates, teacher_candidates=wanted
        )


class PairModel(_Taught):
    """Contrastive learning of pairs at every dim, with the other candidates of the batch as negatives."""

    def __init__(
        self, encoder: nn.Module, nesting: Nesting, objective: Objective, self_distil: SelfDistil | None = None
    ) -> None:
        super().__init__(encoder, nesting, objective)
        self.self_distil = SelfDistil.of(self_distil or 0.0)
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
        """The vectors of queries and their candidates, [2, batch, d], and the unweighted losses.

        Those are the losses at each dim [dims], then those at the dims of each depth.
        """
        sides = [self.embed_after_layers(side) for side in inputs]
        pairs = [*zip(*sides, strict=True)]
        losses, a, candidates = [], *pairs[-1]
        for own, depth in zip(pairs[:-1], self.depths, strict=True):
            loss = self._contrast(own[0], own[1], depth.nesting, len(target))
            distil = self.self_distil   # from the whole model, not from a larger dim after fewer layers
            losses.append(loss if distil is None else distil.mix(loss, self._taught(own, pairs[-1], depth, distil)))
        losses.append(self._contrast(a, candidates, self.nesting, len(target), self.self_distil))
        if self.objective.distil and self.taught_by:
            distances = self._distil(inputs, sides)
            losses = [own + self.objective.distil * far for own, far in zip(losses, distances, strict=True)]
        *after, full = losses
        return torch.stack([a, candidates[: len(target)]]), torch.cat([full, *after])

    def _contrast(
        self, a: Tensor, candidates: Tensor, nesting: Nesting, pairs: int, distil: SelfDistil | None = None
    ) -> Tensor:
        """The contrastive loss at each dim."""
        b, negatives = candidates[:pairs], candidates[pairs:]
        return contrastive_by_dim(
            a, b, nesting, self.temperature, symmetric=self.objective.symmetric,
            gather=self.objective.gather and self.training,
            negatives=negatives if len(negatives) else None,
            self_distil=distil or 0.0,
        )  # fmt: skip

    def _taught(
        self, own: tuple[Tensor, ...], full: tuple[Tensor, ...], depth: Depth, distil: SelfDistil
    ) -> Tensor:
        """The distance at each dim, after fewer layers, from the similarities of the whole model, in this process."""
        (a, b), warmth = own, distil.temperature
        targets = [side[:, : self.nesting.dim].detach() for side in full]
        distance = self._similar([a, b], targets, depth.nesting, warmth)
        if self.objective.symmetric:
            count = len(a)   # hard negatives are no queries
            reverse = self._similar([b[:count], a], [targets[1][:count], targets[0]], depth.nesting, warmth)
            distance = (distance + reverse) / 2
        return distance

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
        alone = isinstance(inputs, Tensor | Tokens)
        sides = [self.embed_after_layers(side) for side in ((inputs,) if alone else inputs)]
        *after, full = self._distil(inputs, sides)
        return sides[0][-1], torch.cat([full, *after])

    def hits(self, z: Tensor, target: Tensor) -> Tensor:   # noqa: ARG002
        """Empty, as distillation has no correct answers."""
        return z.new_zeros(0)


def _scales(module: nn.Module) -> list[nn.Parameter]:
    return [value for name, value in module.named_parameters() if name.rpartition(".")[2] == "logit_scale"]
