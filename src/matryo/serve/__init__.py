"""An HTTP server for models and indexes: OpenAI's embeddings API, search with plans, and operations.

``matryo serve`` runs it. :func:`app` returns the ASGI app for other servers, or to be mounted in another app.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matryo.serve.explorer.show import Show
    from matryo.serve.limits import Limits
    from matryo.serve.service import app
    from matryo.serve.shards.replicas import Routing

__all__ = ["Limits", "Routing", "Show", "app"]

_HOMES = {"Limits": "limits", "Routing": "shards.replicas", "Show": "explorer.show",
          "app": "service"}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'matryo.serve' has no attribute {name!r}")
    return getattr(import_module(f"matryo.serve.{_HOMES[name]}"), name)
