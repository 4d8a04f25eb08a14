"""How published nested models are truncated: most are just sliced, some need a layer norm first."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Truncation:
    """The preparation of vectors before slicing. A slice is always normalised afterwards."""

    layer_norm: bool = False
    """Apply a layer norm without learned weights over all dimensions."""

    def prepare(self, z: Tensor) -> Tensor:
        """Prepare vectors [..., d] for slicing."""
        return F.layer_norm(z, z.shape[-1:]) if self.layer_norm else z


# Keyed by the last part of the model name, in lower case. Models with a plain slice are listed as verified.
KNOWN = {
    "nomic-embed-text-v1.5": Truncation(layer_norm=True),
    "embeddinggemma-300m": Truncation(),
    "modernbert-embed-base": Truncation(),
    "mxbai-embed-large-v1": Truncation(),
    "snowflake-arctic-embed-m-v1.5": Truncation(),
    "text-embedding-3-large": Truncation(),
    "text-embedding-3-small": Truncation(),
}


def truncation_of(name: str) -> Truncation:
    """The truncation of the model (or folder) ``name``; a plain slice if the name is unknown.

    >>> truncation_of("nomic-ai/nomic-embed-text-v1.5")
    Truncation(layer_norm=True)
    >>> truncation_of("sentence-transformers/all-MiniLM-L6-v2")
    Truncation(layer_norm=False)
    """
    return KNOWN.get(name.rstrip("/").rpartition("/")[2].lower(), Truncation())
