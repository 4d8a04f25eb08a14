"""The settings that are fixed when a store is created: nesting, precision and metric."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from matryo.errors import InputError
from matryo.nesting import Nesting
from matryo.retrieve.vectors.blocks import CODES
from matryo.retrieve.vectors.metric import Metric, check_metric

UNROTATED, ROTATED, CODED = 1, 2, 3
"""The versions of the folder layout: older versions of matryo would search rotated vectors with unrotated queries."""
FORMAT = CODED
"""The latest version that can be read."""
DTYPES = ("float32", "float16")
MOST_DIMS = 1 << 16
"""The most dims of a vector: kernels sum products of int8 in 32 bits."""


@dataclass(frozen=True)
class About:
    """The nesting, the precision and the metric of every vector in a store."""

    nesting: Nesting
    dtype: str = "float32"
    int8_up_to: int = 0
    """The dim up to which blocks also have int8 copies; 0 for none."""
    metric: Metric = "cosine"
    code_bytes: int = 0
    """The bytes of each vector if only codes of the vectors are stored; 0 if the vectors are."""

    def __post_init__(self) -> None:
        check_metric(self.metric)
        if self.nesting.dim > MOST_DIMS:
            rule = f"vectors must have at most {MOST_DIMS:,} dims"
            raise InputError(rule, got=self.nesting.dim, cure="truncate them")
        if self.dtype not in DTYPES and not (self.code_bytes and self.dtype == CODES):
            raise InputError("dtype must be float32 or float16", got=repr(self.dtype), cure="float32 loses nothing")
        if self.int8_up_to not in (0, *self.nesting.dims):
            raise InputError(
                f"int8_up_to must be 0 or one of the dims {self.nesting.dims}",
                got=repr(self.int8_up_to),
                cure="pass one of these dims, or 0 for no int8 copies",
            )

    @property
    def row_bytes(self) -> int:
        """Bytes per vector at full precision, or per code."""
        return self.code_bytes or self.nesting.dim * (4 if self.dtype == "float32" else 2)

    @property
    def stored(self) -> Nesting:
        """The nesting of the stored rows: that of the vectors, or one block of bytes."""
        return Nesting([self.code_bytes]) if self.code_bytes else self.nesting

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values, with the version of the layout."""
        settings = asdict(self)
        if not self.code_bytes:
            del settings["code_bytes"]   # older versions of matryo can read the index
        return {"format": CODED if self.code_bytes else UNROTATED, **settings}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> About:
        """Rebuild the settings from :meth:`to_json`."""
        nesting = Nesting(data["nesting"]["dims"], data["nesting"]["weights"])
        return cls(nesting, data["dtype"], data["int8_up_to"], data["metric"], data.get("code_bytes", 0))
