"""The report's figures: one module per protocol, named like the protocol's module, with ``sections(material)``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from matryo.evaluation.protocols import MODULES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.report.material import Material
    from matryo.report.section import Section

__all__ = ["every_section"]

def every_section(material: Material) -> Iterator[Section]:
    """The sections that the rows allow, in the order of the protocols; a protocol without a module has none."""
    for name in (*MODULES, "gradcam", "training"):
        if find_spec(f"{__name__}.{name}"):
            yield from import_module(f"{__name__}.{name}").sections(material)
