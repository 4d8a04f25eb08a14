"""The protocols, one module each: its result, the function that computes it, and its registration."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matryo.evaluation.protocol import Protocol

__all__ = ["BASELINED", "MODULES", "PROTOCOLS", "register"]

MODULES = (
    "evaluate", "probe", "few_shot", "stream", "robustness", "superclass", "trends", "disagreement", "similarity",
    "cascade", "zero_shot", "pairs", "sts",
)  # fmt: skip
"""The modules of this folder, in the order in which "all" measures them."""

PROTOCOLS: dict[str, Protocol] = {}


def register(module: str) -> None:
    """Add the ``PROTOCOL`` of a module of this folder to :data:`PROTOCOLS`."""
    protocol = import_module(f"{__name__}.{module}").PROTOCOL
    PROTOCOLS[protocol.name] = protocol


for _module in MODULES:
    register(_module)

BASELINED = tuple(name for name, protocol in PROTOCOLS.items() if protocol.baselined)
"""The protocols with which baselines are measured."""
