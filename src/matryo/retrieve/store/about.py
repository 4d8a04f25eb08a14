"""What is fixed when a store is created: the nesting, how vectors are kept, and how they are compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from matryo.errors import InputError
from matryo.nesting import Nesting
from matryo.retrieve.vectors.metric import Metric, check_metric

__all__ = ["DTYPES", "FORMAT", "About"]

FORMAT = 1
"""The version of the folder's layout; it grows when an older matryo could no longer read it."""
DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class About:
    """The nesting, the precision and the metric of every vector in a store."""

    nesting: Nesting
    dtype: str = "float32"
    int8_up_to: int = 0
    """The dim up to which blocks have int8 copies too; 0 for none."""
    metric: Metric = "cosine"

    def __post_init__(self) -> None:
        check_metric(self.metric)
        if self.dtype not in DTYPES:
            raise InputError("dtype must be float32 or float16", got=repr(self.dtype), cure="float32 is safe")
        if self.int8_up_to not in (0, *self.nesting.dims):
            raise InputError(
                f"int8_up_to must be 0 or one of the dims {self.nesting.dims}",
                got=repr(self.int8_up_to),
                cure="name the largest dim that is to have int8 blocks, or 0 for none",
            )

    @property
    def row_bytes(self) -> int:
        """How many bytes one vector takes at full precision."""
        return self.nesting.dim * (4 if self.dtype == "float32" else 2)

    def to_json(self) -> dict[str, Any]:
        """As JSON values, the layout's version first."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> About:
        """What :meth:`to_json` gave."""
        nesting = Nesting(data["nesting"]["dims"], data["nesting"]["weights"])
        return cls(nesting, data["dtype"], data["int8_up_to"], data["metric"])
