"""The table of a choice as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.tables import Column, as_text

if TYPE_CHECKING:
    from matryo.compress.compression import Compression


def described(compression: Compression) -> str:
    """Return the code in one line, the table of the candidates, and why one of them was taken."""
    return compression.__repr__()
