"""NestedRankingLoss: replaces sentence-transformers' MatryoshkaLoss over MultipleNegativesRankingLoss.

It works in the sentence-transformers trainer or any training loop. It only calls the model, so this module does not
import sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from matryo.arguments import checked
from matryo.errors import InputError, NestingError
from matryo.losses.contrastive import nested_contrastive
from matryo.losses.gradcache import cached
from matryo.losses.self_distil import SelfDistil
from matryo.losses.sentence_transformers.batches import Texts, join, split
from matryo.nesting import Nesting


class NestedRankingLoss(nn.Module):
    """Σ_m c_m · MultipleNegativesRankingLoss of the first m columns. Every text is embedded once for all dims.

    Value and gradients equal ``MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), dims, weights)`` of
    sentence-transformers; with ``mini_batch_size``, those over ``CachedMultipleNegativesRankingLoss``. All dims share
    one matrix product, so there is no ``n_dims_per_step``. docs/results/sentence-loss.md has GPU timings; on a CPU, a
    step takes about as long as with ``MatryoshkaLoss``.

    A batch has the columns anchor, positive and any number of negatives. The candidates of an anchor are the positives
    and negatives of the whole batch; its own positive is the correct one. Labels are ignored.

    Args:
        model: a ``SentenceTransformer``, or any module that maps a dict of inputs to one with a "sentence_embedding".
        nesting: the dims with their weights, or a list of dims in any order.
        weights: the weight c_m of each dim if ``nesting`` is a list; 1 by default.
        scale: the factor of the cosines: one over the temperature.
        symmetric: average the directions anchor to candidates and positive to anchors.
        mini_batch_size: embed this many texts at a time, twice (GradCache). Memory then limits only the embeddings of
            a batch, not its activations.
        gather: under ``torchrun``, also use the candidates of the other processes.
        self_distil: a share of the loss of smaller dims that imitates the similarities at the full dim; see
            :func:`nested_contrastive`.
        engine: see :func:`nested_contrastive`.

    >>> class Words(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.table = nn.EmbeddingBag(100, 32)
    ...     def forward(self, texts):
    ...         return {"sentence_embedding": self.table(texts["input_ids"])}
    >>> loss = NestedRankingLoss(Words(), [32, 16, 8])
    >>> questions, answers = ({"input_ids": torch.randint(100, (4, 7))} for _ in range(2))
    >>> loss([questions, answers]).backward()
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        nesting: Nesting | Sequence[int],
        weights: Sequence[float] | None = None,
        *,
        scale: float = 20.0,
        symmetric: bool = False,
        mini_batch_size: int | None = None,
        gather: bool = False,
        self_distil: float | SelfDistil = 0.0,
        engine: str = "auto",
    ) -> None:
        super().__init__()
        self.model = model   # the trainer replaces this attribute by its wrapped model
        self.nesting = _nesting(nesting, weights)
        if not scale > 0:
            raise InputError("scale must be positive", got=scale, cure="use scale=20, a temperature of 0.05")
        if mini_batch_size is not None and mini_batch_size < 1:
            raise InputError("mini_batch_size must be positive", got=mini_batch_size, cure="None embeds all at once")
        self.scale, self.symmetric, self.mini_batch_size = scale, symmetric, mini_batch_size
        self.gather, self.engine, self.self_distil = gather, engine, SelfDistil.of(self_distil) or 0.0
        width = getattr(model, "get_embedding_dimension", lambda: None)()
        if width is not None:
            self.nesting.check_fits(width)

    def forward(self, sentence_features: Iterable[Texts], labels: Tensor | None = None) -> Tensor:   # noqa: ARG002
        """The loss of a batch, given as the tokenised texts of each column."""
        columns = list(sentence_features)
        if len(columns) < 2:
            rule = "a batch must have the columns anchor and positive, then any negatives"
            cure = "give the dataset these columns and no others"
            raise InputError(rule, got=f"{len(columns)} columns", cure=cure)
        if self.mini_batch_size is not None:
            batches = [split(texts, self.mini_batch_size) for texts in columns]
            return cached(self.of_embeddings, batches, self._embed_copy, self.model)
        # One forward pass for all candidates; another for the anchors, which are often shorter and need less padding.
        anchors, candidates = columns[0], columns[1:]
        joined = join(candidates) if len(candidates) > 1 else None
        if joined is None:
            return self.of_embeddings(*map(self._embed, columns))
        return self.of_embeddings(self._embed(anchors), *self._embed(joined).chunk(len(candidates)))

    def of_embeddings(self, anchors: Tensor, positives: Tensor, *negatives: Tensor) -> Tensor:
        """The loss of the given embeddings, [rows, d] each."""
        return nested_contrastive(
            anchors,
            positives,
            self.nesting,
            temperature=1 / self.scale,
            symmetric=self.symmetric,
            negatives=torch.cat(negatives) if negatives else None,
            gather=self.gather,
            self_distil=self.self_distil,
            engine=self.engine,
        )

    def _embed(self, texts: Texts) -> Tensor:
        embeddings: Tensor = self.model(texts)["sentence_embedding"]
        return embeddings

    def _embed_copy(self, texts: Texts) -> Tensor:
        # Modules modify their input dict: activations would stay in memory, and masks are needed for the second pass.
        return self._embed({key: value.clone() if torch.is_tensor(value) else value for key, value in texts.items()})

    @classmethod
    def like(cls, loss: Any, *, engine: str = "auto") -> NestedRankingLoss:
        """Convert a ``MatryoshkaLoss`` over a (cached) ``MultipleNegativesRankingLoss``, with its settings."""
        ranking: Any = getattr(loss, "loss", None)
        names = {kind.__name__ for kind in type(ranking).__mro__}
        if not hasattr(loss, "matryoshka_dims") or not names & _RANKING:
            rule = "loss must be a MatryoshkaLoss over a MultipleNegativesRankingLoss, cached or not"
            got = type(loss).__name__ + (f" over {type(ranking).__name__}" if ranking is not None else "")
            raise InputError(rule, got=got, cure="keep it, or wrap a loss of embeddings with matryo.losses.nested")
        _check_settings(loss, ranking)
        return cls(
            loss.model,
            loss.matryoshka_dims,
            loss.matryoshka_weights,
            scale=ranking.scale,
            symmetric="doc_to_query" in getattr(ranking, "directions", ()),
            mini_batch_size=getattr(ranking, "mini_batch_size", None),
            gather=getattr(ranking, "gather_across_devices", False),
            engine=engine,
        )

    def get_config_dict(self) -> dict[str, Any]:
        """The settings, for the model card that the trainer writes."""
        return {
            "dims": self.nesting.dims,
            "weights": self.nesting.weights,
            "scale": self.scale,
            "symmetric": self.symmetric,
            "mini_batch_size": self.mini_batch_size,
            "gather": self.gather,
        }

    @property
    def citation(self) -> str:
        """The papers, for the model card."""
        *papers, gradcache = Path(__file__).with_name("citations.bib").read_text(encoding="utf-8").strip().split("\n\n")
        return "\n" + "\n\n".join([*papers, gradcache] if self.mini_batch_size is not None else papers) + "\n"


_RANKING = {"MultipleNegativesRankingLoss", "CachedMultipleNegativesRankingLoss"}


def _nesting(dims: Nesting | Sequence[int], weights: Sequence[float] | None) -> Nesting:
    if isinstance(dims, Nesting):
        if weights is not None:
            raise NestingError("a Nesting already has weights", got=weights, cure="use Nesting(dims, weights)")
        return dims
    if isinstance(dims, int):
        raise NestingError("dims must be a list", got=dims, cure=f"pass [{dims}]")
    dims = list(dims)
    if weights is None:
        return Nesting(sorted(dims))
    if len(weights) != len(dims):
        got = f"{len(weights)} weights for {dims}"
        raise NestingError("weights must have one value per dim", got=got, cure=f"pass {len(dims)} weights")
    ordered = sorted(zip(dims, weights, strict=True))
    return Nesting([dim for dim, _ in ordered], [weight for _, weight in ordered])


def _check_settings(loss: Any, ranking: Any) -> None:
    """Raise for settings of sentence-transformers that NestedRankingLoss does not support."""
    directions = getattr(ranking, "directions", ("query_to_doc",))
    both = set(directions) == {"query_to_doc", "doc_to_query"} and ranking.partition_mode == "per_direction"
    similarity = getattr(ranking.similarity_fct, "__name__", repr(ranking.similarity_fct))
    hardness = getattr(ranking, "hardness_mode", None)
    tokens = getattr(ranking, "mini_batch_num_tokens", None)
    name, overridden = type(ranking).__name__, ", ".join(_overridden_methods(type(ranking)))
    rule = 'directions must be "query_to_doc", or it and "doc_to_query" with partition_mode="per_direction"'
    given = f"{directions}, {getattr(ranking, 'partition_mode', None)}"
    cosine = similarity in ("cos_sim", "pytorch_cos_sim", "dot_score")   # equal for unit vectors
    per_step, weighted = loss.n_dims_per_step, hardness is not None and ranking.hardness_strength > 0
    checks = (
        (not overridden, "a subclass must not override methods", f"{name} with its own {overridden}", "keep it"),
        (per_step <= 0, "every step computes all dims", f"n_dims_per_step={per_step}", "set n_dims_per_step=-1"),
        (both or set(directions) == {"query_to_doc"}, rule, given, "use one of these"),
        (cosine, "the similarity must be the cosine", similarity, "use cos_sim"),
        (not weighted, "negatives cannot be weighted", f"hardness_mode={hardness!r}", "use hardness_mode=None"),
        (tokens is None, "mini_batch_size must be in texts", f"mini_batch_num_tokens={tokens}", "use mini_batch_size"),
    )
    for supported, rule, got, cure in checks:
        if not supported:
            raise InputError(rule, got=got, cure=cure)


def _overridden_methods(kind: type) -> list[str]:
    """The methods that a subclass of sentence-transformers' ranking losses defines."""
    subclasses = takewhile(lambda base: base.__name__ not in _RANKING, kind.__mro__)
    return [name for base in subclasses for name, value in vars(base).items() if name[:2] != "__" and callable(value)]
