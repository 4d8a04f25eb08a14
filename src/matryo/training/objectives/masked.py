"""MaskedModel: masked language modelling at every dim, tied to the embedding of words (which makes it MRL-E)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from matryo.encoders import Tokens, pool
from matryo.errors import RecipeError
from matryo.losses.cross_entropy import cross_entropy_of, prefix_logits
from matryo.losses.engines.contract import Scores
from matryo.training.batches.masking import IGNORED
from matryo.training.objectives.base import NestedModel, hits_by_dim

if TYPE_CHECKING:
    from matryo.nesting import Nesting
    from matryo.training.batches.masking import MaskedText

__all__ = ["MaskedModel", "Transform"]


class Transform(nn.Module):
    """What BERT has between its last layer and the words: a dense layer, GELU and a norm, at full d.

    Its names and numbers are those of transformers' ``BertPredictionHeadTransform``. The norm begins with ``gain``:
    from 1 the words, which are the input too, have to grow until few dims tell them apart.
    """

    def __init__(self, dim: int, gain: float = 1.0) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=1e-12)
        nn.init.constant_(self.LayerNorm.weight, gain)
        nn.init.trunc_normal_(self.dense.weight, std=0.02, a=-0.04, b=0.04)
        nn.init.zeros_(self.dense.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[…, d] → […, d]."""
        transformed: Tensor = self.LayerNorm(F.gelu(self.dense(hidden)))
        return transformed


class MaskedModel(NestedModel):
    """Texts to the loss of predicting their hidden words at every dim.

    At dim m the first m outputs of the transform meet the first m columns of the embedding of words; the bias is one
    for all dims. So a fixed model of m uses those columns alone.
    """

    def __init__(self, encoder: nn.Module, nesting: Nesting, gain: float = 1.0) -> None:
        super().__init__()
        if not hasattr(encoder, "words") or not hasattr(encoder, "hidden"):
            raise RecipeError(
                "only an encoder that embeds words itself can predict them",
                got=type(encoder).__name__,
                cure="use bert-small, bert-base, … or bert:FOLDER, and encoder.dim 0",
            )
        self.encoder, self.nesting = encoder, nesting
        self.transform = Transform(int(encoder.dim), gain)   # type: ignore[arg-type]
        self.bias = nn.Parameter(torch.zeros(len(self.words)))

    @property
    def words(self) -> Tensor:
        """The embedding of words, [vocabulary, d]."""
        words: Tensor = self.encoder.words   # type: ignore[assignment]
        return words

    def forward(self, inputs: MaskedText, target: Tensor) -> tuple[Tensor, Tensor]:
        """The transformed hidden tokens [batch · hidden, d] and the unweighted loss at each dim [dims]."""
        hidden: Tensor = self.encoder.hidden(inputs.tokens)   # type: ignore[operator]
        chosen = hidden.gather(1, inputs.places[:, :, None].expand(-1, -1, hidden.shape[-1]))
        z, target = self.transform(chosen).flatten(0, 1), target.flatten()
        losses = cross_entropy_of(
            Scores(z, self.words, self.nesting, bias=self.bias),
            target,
            lambda: prefix_logits(z, self.words, self.nesting, self.bias),
            ignore_index=IGNORED,
        )
        asked = target >= 0
        return z, losses.where(asked.any(), 0.0) * self._share(asked.sum())   # texts of unknown words ask for nothing

    def embed(self, inputs: Tokens, *, flip: bool = False) -> Tensor:   # noqa: ARG002 - a text has no mirror image
        """The transformed tokens, pooled: what was trained to be good at every dim."""
        hidden: Tensor = self.encoder.hidden(inputs)   # type: ignore[operator]
        pooling = str(getattr(self.encoder, "pooling", "mean"))
        return pool(self.transform(hidden), inputs.mask, pooling)[:, : self.nesting.dim].float()

    def hits(self, z: Tensor, target: Tensor) -> Tensor:
        """The share of the hidden words that are predicted at each dim."""
        right = hits_by_dim(z, self.words, target.flatten(), self.nesting, self.bias)
        return right / (target >= 0).sum().clamp(min=1)

    def compile_encoder(self) -> None:
        """Its parts: what is called is not the encoder but its ``hidden``."""
        for part in self.encoder.children():
            part.compile()

    def share_of(self, part: Tensor, whole: Tensor) -> Tensor:
        """By the words that are asked for, in all processes."""
        words: Tensor = self._over_processes(torch.stack([(part >= 0).sum(), (whole >= 0).sum()]))
        return words[0] / words[1].clamp(min=1)

    def _share(self, own: Tensor) -> Tensor:
        """What makes the mean over processes that over all their words, however many each has."""
        both: Tensor = self._over_processes(torch.stack([own, torch.ones_like(own)]))   # words, and processes
        return own * both[1] / both[0].clamp(min=1)

    def _over_processes(self, counts: Tensor) -> Tensor:
        if not (self.training and distributed.is_available() and distributed.is_initialized()):
            return counts
        distributed.all_reduce(total := counts.clone())
        return total
