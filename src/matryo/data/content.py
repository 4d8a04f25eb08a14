"""A fingerprint of the contents of a split, independent of where it is stored and how items are named."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from matryo.data.dataset import TextSplit

if TYPE_CHECKING:
    from matryo.data.dataset import ImageSplit


def content_digest(items: ImageSplit | TextSplit, sample: int | None = None) -> str:
    """Return the SHA-256 of all labels and of all items, or of at most ``sample`` items spread over the split."""
    digest = hashlib.sha256(np.asarray(items.labels, np.int64).tobytes())
    count = len(items) if sample is None else min(len(items), sample)
    for row in np.linspace(0, len(items) - 1, count).astype(int).tolist():
        part = _item(items, row)
        digest.update(len(part).to_bytes(8, "little"))   # so that item boundaries change the digest
        digest.update(part)
    return digest.hexdigest()


def _item(items: ImageSplit | TextSplit, row: int) -> bytes:
    if isinstance(items, TextSplit):
        return items.text(row).encode(errors="surrogateescape")
    encoded: bytes = items.encoded(row) if hasattr(items, "encoded") else items.image(row).tobytes()
    return encoded
