"""Sentence-transformers' ranking loss at every dim at once, in place of its MatryoshkaLoss.

A module that its trainer, or any loop, takes as a loss. It calls the model and knows no more of it, so nothing here
imports sentence-transformers.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from matryo.errors import InputError, NestingError
from matryo.losses.contrastive import nested_contrastive
from matryo.losses.gradcache import cached
from matryo.losses.sentence_transformers.batches import Texts, join, split
from matryo.nesting import Nesting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

__all__ = ["NestedRankingLoss"]


class NestedRankingLoss(nn.Module):
    """Σ_m c_m · MultipleNegativesRankingLoss of the first m columns: every text is embedded once, for all dims.

    In value and gradients it is ``MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), dims, weights)`` of
    sentence-transformers; with a mini batch size, the one over ``CachedMultipleNegativesRankingLoss``. The dims share
    their products, so there is no ``n_dims_per_step``: on a GPU, docs/results/sentence-loss.md says what they cost
    beside one; on a CPU, a step takes about as long as with ``MatryoshkaLoss``.

    A batch has the columns anchor, positive and any number of negatives. The candidates of an anchor are the positives
    and the negatives of the whole batch; its own positive is the right one. Labels are not read.

    Args:
        model: a ``SentenceTransformer``, or what else maps a dict of inputs to one with a "sentence_embedding".
        nesting: the dims with their weights, or dims alone, in any order.
        weights: c_m of each dim where ``nesting`` is a list of dims; 1 unless given.
        scale: what cosines are multiplied by; one over the temperature.
        symmetric: the mean of anchor to candidates and positive to anchors.
        mini_batch_size: embed so many texts at a time, twice (GradCache): the batch may be as large as its
            embeddings fit into memory.
        gather: also take the candidates of the other processes under ``torchrun``.
        engine: what computes the loss; see ``nested_contrastive``.

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
        engine: str = "auto",
    ) -> None:
        super().__init__()
        self.model = model   # the trainer replaces it, by this name, with what it wraps around it
        self.nesting = _nesting(nesting, weights)
        if not scale > 0:
            raise InputError("scale must be positive", got=scale, cure="20 is usual: a temperature of 0.05")
        if mini_batch_size is not None and mini_batch_size < 1:
            raise InputError("mini_batch_size must be positive", got=mini_batch_size, cure="None embeds all at once")
        self.scale = scale
        self.symmetric = symmetric
        self.mini_batch_size = mini_batch_size
        self.gather = gather
        self.engine = engine
        width = getattr(model, "get_embedding_dimension", lambda: None)()
        if width is not None:
            self.nesting.check_fits(width)

    def forward(self, sentence_features: Iterable[Texts], labels: Tensor | None = None) -> Tensor:   # noqa: ARG002
        """The loss of a batch: the tokenised texts of each column."""
        columns = list(sentence_features)
        if len(columns) < 2:
            raise InputError(
                "a batch must have the columns anchor and positive, then negatives if any",
                got=f"{len(columns)} columns",
                cure="give the dataset both columns, and none but these",
            )
        if self.mini_batch_size is not None:
            batches = [split(texts, self.mini_batch_size) for texts in columns]
            return cached(self.of_embeddings, batches, self._embed_copy, self.model)
        # Candidates are alike, so one forward pass takes them all; anchors are often shorter, and padding costs.
        anchors, candidates = columns[0], columns[1:]
        joined = join(candidates) if len(candidates) > 1 else None
        if joined is None:
            return self.of_embeddings(*map(self._embed, columns))
        return self.of_embeddings(self._embed(anchors), *self._embed(joined).chunk(len(candidates)))

    def of_embeddings(self, anchors: Tensor, positives: Tensor, *negatives: Tensor) -> Tensor:
        """The loss of embeddings, [rows, d] each."""
        return nested_contrastive(
            anchors,
            positives,
            self.nesting,
            temperature=1 / self.scale,
            symmetric=self.symmetric,
            negatives=torch.cat(negatives) if negatives else None,
            gather=self.gather,
            engine=self.engine,
        )

    def _embed(self, texts: Texts) -> Tensor:
        embeddings: Tensor = self.model(texts)["sentence_embedding"]
        return embeddings

    def _embed_copy(self, texts: Texts) -> Tensor:
        # Modules write into what they are given: activations, which would stay, and masks, which are needed again.
        return self._embed({key: value.clone() if torch.is_tensor(value) else value for key, value in texts.items()})

    @classmethod
    def like(cls, loss: Any, *, engine: str = "auto") -> NestedRankingLoss:
        """What a ``MatryoshkaLoss`` over a (cached) ``MultipleNegativesRankingLoss`` computes, with its settings."""
        ranking: Any = getattr(loss, "loss", None)
        names = {kind.__name__ for kind in type(ranking).__mro__}
        if not hasattr(loss, "matryoshka_dims") or not names & _RANKING:
            raise InputError(
                "only a MatryoshkaLoss over a MultipleNegativesRankingLoss, cached or not, can be replaced",
                got=type(loss).__name__ + (f" over {type(ranking).__name__}" if ranking is not None else ""),
                cure="keep it, or lift another loss of embeddings over the dims with matryo.losses.nested",
            )
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
        return _MATRYOSHKA + _CONTRASTIVE + (_GRADCACHE if self.mini_batch_size is not None else "")


_RANKING = {"MultipleNegativesRankingLoss", "CachedMultipleNegativesRankingLoss"}


def _nesting(dims: Nesting | Sequence[int], weights: Sequence[float] | None) -> Nesting:
    if isinstance(dims, Nesting):
        if weights is not None:
            raise NestingError("a nesting has its weights", got=weights, cure="use Nesting(dims, weights)")
        return dims
    if isinstance(dims, int):
        raise NestingError("dims are a list", got=dims, cure=f"say [{dims}]")
    given = list(dims)
    if weights is None:
        return Nesting(sorted(given))
    if len(weights) != len(given):
        got = f"{len(weights)} weights for {given}"
        raise NestingError("there must be one weight for each dim", got=got, cure="add or drop")
    ordered = sorted(zip(given, weights, strict=True))
    return Nesting([dim for dim, _ in ordered], [weight for _, weight in ordered])


def _check_settings(loss: Any, ranking: Any) -> None:
    """Raise for settings of sentence-transformers that have no equal here."""
    directions = getattr(ranking, "directions", ("query_to_doc",))
    both = set(directions) == {"query_to_doc", "doc_to_query"} and ranking.partition_mode == "per_direction"
    similarity = getattr(ranking.similarity_fct, "__name__", repr(ranking.similarity_fct))
    hardness = getattr(ranking, "hardness_mode", None)
    tokens = getattr(ranking, "mini_batch_num_tokens", None)
    own = _own_methods(type(ranking))
    broken = []
    if own:
        got = f"{type(ranking).__name__} with its own {', '.join(own)}"
        broken.append(("what a subclass computes anew is not known here", got, "keep it, or pass its base class"))
    if loss.n_dims_per_step > 0:
        got = f"n_dims_per_step={loss.n_dims_per_step}"
        broken.append(("every step has all dims", got, "the dims share their products"))
    if set(directions) != {"query_to_doc"} and not both:
        rule = 'directions must be "query_to_doc", or it and "doc_to_query" with partition_mode="per_direction"'
        broken.append((rule, f"{directions}, {ranking.partition_mode}", "choose one of these"))
    if similarity not in ("cos_sim", "pytorch_cos_sim", "dot_score"):   # of unit vectors, all the same
        broken.append(("the similarity must be the cosine", similarity, "use cos_sim"))
    if hardness is not None and ranking.hardness_strength > 0:
        broken.append(("negatives have no weights", f"hardness_mode={hardness!r}", "leave it out"))
    if tokens is not None:
        got = f"mini_batch_num_tokens={tokens}"
        broken.append(("mini batches are counted in texts", got, "use mini_batch_size"))
    for rule, got, cure in broken:
        raise InputError(rule, got=got, cure=cure)


def _own_methods(kind: type) -> list[str]:
    """What a subclass of sentence-transformers' ranking losses has written again, settings aside."""
    kinds = list(takewhile(lambda one: one.__name__ not in _RANKING, kind.__mro__))
    return [name for one in kinds for name, value in vars(one).items() if name[:2] != "__" and callable(value)]


_MATRYOSHKA = """
@inproceedings{kusupati2022matryoshka,
    title={Matryoshka Representation Learning},
    author={Aditya Kusupati and Gantavya Bhatt and Aniket Rege and Matthew Wallingford and Aditya Sinha and
            Vivek Ramanujan and William Howard-Snyder and Kaifeng Chen and Sham Kakade and Prateek Jain and
            Ali Farhadi},
    booktitle={Advances in Neural Information Processing Systems},
    year={2022}
}
"""
_CONTRASTIVE = """
@misc{oord2019representationlearningcontrastivepredictive,
    title={Representation Learning with Contrastive Predictive Coding},
    author={Aaron van den Oord and Yazhe Li and Oriol Vinyals},
    year={2019},
    eprint={1807.03748},
    archivePrefix={arXiv}
}
"""
_GRADCACHE = """
@misc{gao2021scaling,
    title={Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup},
    author={Luyu Gao and Yunyi Zhang and Jiawei Han and Jamie Callan},
    year={2021},
    eprint={2101.06983},
    archivePrefix={arXiv}
}
"""
