"""matryo: train one embedding, deploy it at every size (Matryoshka Representation Learning).

The names below load on first use, so ``import matryo`` stays light and never imports torch by itself.
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
    from matryo.training import train

__version__ = "0.1.0"
__all__ = [
    "Cascade",
    "EmbeddingSet",
    "Index",
    "MatryoError",
    "Nesting",
    "Plan",
    "evaluate",
    "load",
    "train",
    "truncate",
]

_HOMES = {
    "Cascade": "matryo.classify",
    "EmbeddingSet": "matryo.embeddings",
    "Index": "matryo.retrieve",
    "MatryoError": "matryo.errors",
    "Nesting": "matryo.nesting",
    "Plan": "matryo.retrieve",
    "evaluate": "matryo.evaluation",
    "load": "matryo.inference",
    "train": "matryo.training",
    "truncate": "matryo.nesting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'matryo' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
