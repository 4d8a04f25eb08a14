"""MaskedModel: masked language modelling at every dim, tied to the word embedding (like MRL-E)."""

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


class Transform(nn.Module):
    """BERT's prediction head without the word embedding: a dense layer, GELU and a norm, at full d.

    Names and numbers equal those of transformers' ``BertPredictionHeadTransform``. The norm is initialised with
    ``gain``: with 1, the word embeddings must grow during training until a few dims can distinguish words.
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
    """Masked language modelling: the loss of predicting the masked words of a text, at every dim.

    At dim m the first m outputs of the transform are multiplied with the first m columns of the word embedding; all
    dims share one bias. A fixed model of dim m uses only those columns.
    """

    def __init__(self, encoder: nn.Module, nesting: Nesting, gain: float = 1.0) -> None:
        super().__init__()
        if not hasattr(encoder, "words") or not hasattr(encoder, "hidden"):
            raise RecipeError(
                "objective.kind masked needs an encoder with a word embedding",
                got=type(encoder).__name__,
                cure="use bert-small, bert-base, … or bert:FOLDER, and encoder.dim 0",
            )
        self.encoder, self.nesting = encoder, nesting
        self.transform = Transform(int(encoder.dim), gain)   # type: ignore[arg-type]
        self.bias = nn.Parameter(torch.zeros(len(self.words)))

    @property
    def words(self) -> Tensor:
        """The word embedding, [vocabulary, d]."""
        words: Tensor = self.encoder.words   # type: ignore[assignment]
        return words

    def forward(self, inputs: MaskedText, target: Tensor) -> tuple[Tensor, Tensor]:
        """The transformed masked tokens [batch · masked, d] and the unweighted loss at each dim [dims]."""
        hidden: Tensor = self.encoder.hidden(inputs.tokens)   # type: ignore[operator]
        chosen = hidden.gather(1, inputs.places[:, :, None].expand(-1, -1, hidden.shape[-1]))
        z, target = self.transform(chosen).flatten(0, 1), target.flatten()
        losses = cross_entropy_of(
            Scores(z, self.words, self.nesting, bias=self.bias),
            target,
            lambda: prefix_logits(z, self.words, self.nesting, self.bias),
            ignore_index=IGNORED,
        )
        predicted = target >= 0   # none in texts without ordinary words
        return z, losses.where(predicted.any(), 0.0) * self._share(predicted.sum())

    def embed(self, inputs: Tokens, *, flip: bool = False) -> Tensor:   # noqa: ARG002 - texts are not mirrored
        """The transformed tokens, pooled: their prefixes were trained."""
        hidden: Tensor = self.encoder.hidden(inputs)   # type: ignore[operator]
        pooling = str(getattr(self.encoder, "pooling", "mean"))
        return pool(self.transform(hidden), inputs.mask, pooling)[:, : self.nesting.dim].float()

    def hits(self, z: Tensor, target: Tensor) -> Tensor:
        """The share of the masked words that are predicted correctly at each dim."""
        correct = hits_by_dim(z, self.words, target.flatten(), self.nesting, self.bias)
        return correct / (target >= 0).sum().clamp(min=1)

    def compile_encoder(self) -> None:
        """Compile the parts of the encoder, because training calls its ``hidden``, not the encoder itself."""
        for part in self.encoder.children():
            part.compile()

    def share_of(self, part: Tensor, whole: Tensor) -> Tensor:
        """The share of the masked words that are in ``part``, over all processes."""
        words: Tensor = self._over_processes(torch.stack([(part >= 0).sum(), (whole >= 0).sum()]))
        return words[0] / words[1].clamp(min=1)

    def _share(self, own: Tensor) -> Tensor:
        """The factor that turns the mean over processes into the mean over all their words."""
        both: Tensor = self._over_processes(torch.stack([own, torch.ones_like(own)]))   # words, and processes
        return own * both[1] / both[0].clamp(min=1)

    def _over_processes(self, counts: Tensor) -> Tensor:
        if not (self.training and distributed.is_available() and distributed.is_initialized()):
            return counts
        distributed.all_reduce(total := counts.clone())
        return total
