"""The numbers of the paper's tables, read from the text file beside this module."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from matryo.reproduce.table import grid

if TYPE_CHECKING:
    from matryo.reproduce.table import Label


@cache
def _parts() -> dict[str, str]:
    text = (resources.files("matryo.reproduce.paper") / "numbers.txt").read_text(encoding="utf-8")
    parts = (part.partition("\n") for part in text.split("\n## ")[1:])
    return {name.strip(): body for name, _, body in parts}


def numbers(name: str) -> dict[str, dict[Label, float]]:
    """Return the columns of the table called ``name``.

    >>> numbers("accuracy")["MRL"][8]
    66.63
    """
    return grid(_parts()[name])
