"""matryo: train one embedding, deploy it at every size (Matryoshka Representation Learning).

The names below are imported on first use, so ``import matryo`` is fast and does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matryo.classify import Cascade
    from matryo.embeddings import EmbeddingSet
    from matryo.errors import MatryoError
    from matryo.evaluation import evaluate
    from matryo.inference import load
    from matryo.nesting import Nesting, truncate
    from matryo.retrieve import Index, Plan
    from matryo.retrieve.compress import Compression
    from matryo.retrofit import Retrofit
    from matryo.training import train

__version__ = "0.1.0"
__all__ = ["Cascade", "Compression", "EmbeddingSet", "Index", "MatryoError", "Nesting", "Plan", "Retrofit",
           "evaluate", "load", "train", "truncate"]  # fmt: skip

_HOMES = {
    "Cascade": "classify", "Compression": "retrieve.compress", "EmbeddingSet": "embeddings", "Index": "retrieve",
    "MatryoError": "errors", "Nesting": "nesting", "Plan": "retrieve", "Retrofit": "retrofit",
    "evaluate": "evaluation", "load": "inference", "train": "training", "truncate": "nesting",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'matryo' has no attribute {name!r}")
    return getattr(import_module(f"matryo.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
