"""What a split holds, as a digest: the same data gives the same one, wherever it lies and whatever it is called."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from matryo.data.dataset import TextSplit

if TYPE_CHECKING:
    from matryo.data.dataset import ImageSplit

__all__ = ["content_of"]


def content_of(items: ImageSplit | TextSplit, most: int | None = None) -> str:
    """The SHA-256 of the labels and of all items, or of ``most`` of them, which are spread over the split."""
    digest = hashlib.sha256(np.asarray(items.labels, np.int64).tobytes())
    count = len(items) if most is None else min(len(items), most)
    for row in np.linspace(0, len(items) - 1, count).astype(int).tolist():
        part = _item(items, row)
        digest.update(len(part).to_bytes(8, "little"))   # where one ends and the next begins is part of it
        digest.update(part)
    return digest.hexdigest()


def _item(items: ImageSplit | TextSplit, row: int) -> bytes:
    if isinstance(items, TextSplit):
        return items.text(row).encode(errors="surrogateescape")
    encoded: bytes = items.encoded(row) if hasattr(items, "encoded") else items.image(row).tobytes()
    return encoded
