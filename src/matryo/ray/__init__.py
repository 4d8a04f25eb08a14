"""The verbs that outgrow one machine, on a Ray cluster: encode, fit, evaluate, and build an index in shards.

Workers read and write files that all machines see: a shared folder, or an object store through fsspec. Every result is
that of one process; a worker, a machine or the driver may be killed, and the same call resumes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matryo.ray.building import build_index
    from matryo.ray.cluster import Cluster
    from matryo.ray.encoding import Data, encode
    from matryo.ray.evaluating import evaluate, neighbours
    from matryo.ray.fitting import fit, fit_means
    from matryo.ray.parts import Parts, gather

__all__ = ["Cluster", "Data", "Parts", "build_index", "encode", "evaluate", "fit", "fit_means", "gather", "neighbours"]

_HOMES = {"Cluster": "cluster", "Data": "encoding", "Parts": "parts", "build_index": "building", "encode": "encoding",
          "evaluate": "evaluating", "fit": "fitting", "fit_means": "fitting", "gather": "parts",
          "neighbours": "evaluating"}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'matryo.ray' has no attribute {name!r}")
    return getattr(import_module(f"matryo.ray.{_HOMES[name]}"), name)
