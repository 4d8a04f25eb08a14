"""How published nested models want to be truncated: most are just sliced, some are normalised as a whole before."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

__all__ = ["KNOWN", "Truncation", "truncation_of"]


@dataclass(frozen=True)
class Truncation:
    """What comes before the slice; whatever it is, a slice is brought to unit length afterwards."""

    layer_norm: bool = False
    """Subtract the mean of all dimensions and divide by their spread, without learned weights."""

    def prepare(self, z: Tensor) -> Tensor:
        """Vectors [..., d] as they may be sliced."""
        return F.layer_norm(z, z.shape[-1:]) if self.layer_norm else z


# By the last part of a name, in lower case. Those that are just sliced are here to say that they are known.
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
    """The recipe of the model called ``name``, or lying in a folder of that name; a plain slice if it is not known.

    >>> truncation_of("nomic-ai/nomic-embed-text-v1.5")
    Truncation(layer_norm=True)
    >>> truncation_of("sentence-transformers/all-MiniLM-L6-v2")
    Truncation(layer_norm=False)
    """
    return KNOWN.get(name.rstrip("/").rpartition("/")[2].lower(), Truncation())
