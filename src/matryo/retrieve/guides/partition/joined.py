"""The places of a segment's rows in the partitions of an earlier segment, stored so that opening the index is fast.

Rows that are added after ``index.build()`` join the partitions that exist: they are assigned to the nearest means and
encoded with the codes of the columns. Searches then visit them with the other rows, see
:mod:`matryo.retrieve.guides.partition.tail`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.compiled import core
from matryo.errors import EmbeddingsError
from matryo.mapped import map_again
from matryo.retrieve.engines.compiled import view_of
from matryo.retrieve.guides.guide import VERIFIED_BYTES, Guide
from matryo.retrieve.guides.partition.codes import (
    EIGHT,
    aligned,
    byte_errors,
    encode_bytes,
    encode_nibbles,
    packed,
)
from matryo.retrieve.guides.partition.placing import adjustments, squared_distance
from matryo.retrieve.guides.partition.space import Space
from matryo.retrieve.vectors.array_folder import open_arrays, write_arrays
from matryo.retrieve.vectors.blocks import tiles

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.retrieve.engines.execute import Engine
    from matryo.retrieve.guides.guide import Search
    from matryo.retrieve.guides.partition.codes import Bytes
    from matryo.retrieve.guides.partition.partition import Partition
    from matryo.retrieve.plan.plan import Plan
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.types import Array, Codes, Floats

HEADER = "joined.json"
FORMAT = 1
_FEW = 32   # rows that are placed in one call
_ARRAYS = ("nibbles", "adjust", "lists", "codes", "errors")


@dataclass(frozen=True, eq=False)
class Joined(Guide):
    """Rows of some blocks, placed in the partitions of others."""

    kind = "joined"

    nibbles: Bytes
    """4-bit codes, four bytes per eight columns, [rows, bytes]."""
    adjust: Floats
    """Turns a product into a score, as in :class:`Partition`."""
    lists: Array
    """The partitions of each row, uint32 [rows, copies], the home first."""
    codes: Codes
    """8-bit codes, padded as in :class:`Partition`."""
    errors: Floats
    """The largest distance of a row from its 8-bit codes."""
    partition: str
    """The folder of the partitions."""
    distance: float
    """The mean squared distance of the rows from the means of their homes; 0 for a few rows that are not stored."""

    @classmethod
    def of(cls, blocks: Blocks, partition: Partition, folder: str = "", start: int = 0) -> Joined:   # type: ignore[override]
        """Place the rows of ``blocks`` from ``start`` on."""
        space = Space(blocks, partition.metric, partition.axes, partition.dim)
        count, long = blocks.count - start, partition.long
        made = cls(
            np.empty((count, 4 * -(-partition.dim // EIGHT)), np.uint8), np.empty(count, np.float32),
            np.empty((count, partition.copies), np.uint32), aligned((count, partition.codes.shape[1]), np.int8, 0),
            np.empty(count, np.float32), folder, 0.0,
        )  # fmt: skip
        if not folder and count <= _FEW and core() is not None:
            made._fill_few(blocks, partition, start)
            return made
        total = 0.0
        for part in tiles(count, max(len(partition.lists), blocks.nesting.dim)):
            rows = slice(part.start + start, part.stop + start)
            whole, lengths = space.whole(rows), space.lengths(rows)
            coordinates = space.tile(whole)
            divided = space.divided(coordinates, lengths)
            made.lists[part] = partition.homes_of.nearest(divided, partition.copies)
            nibbles = encode_nibbles(coordinates, partition.tile_columns)
            made.nibbles[part] = packed(nibbles)
            norms = lengths * np.linalg.norm(coordinates, axis=1)
            made.adjust[part] = adjustments(nibbles, partition.tile_columns, partition.metric, norms)
            made.codes[part, :long] = coded = encode_bytes(whole[:, :long], partition.columns)
            made.errors[part] = byte_errors(whole[:, :long], coded, partition.columns)
            total += squared_distance(divided, partition.centers, made.lists[part])
        return replace(made, distance=total / max(1, count))

    def _fill_few(self, blocks: Blocks, partition: Partition, start: int) -> None:
        """Place rows as :meth:`of` does, in one call: numpy takes tens of microseconds per row. Not the distance."""
        divided = np.empty((len(self.adjust), partition.dim), np.float32)
        partition.compiled.encode(
            view_of(blocks, partition.metric), start, divided, self.nibbles, self.adjust, self.codes, self.errors
        )
        self.lists[:] = partition.homes_of.nearest(divided, partition.copies)

    def write(self, folder: str | Path) -> None:
        """Write a new ``folder``, which appears complete or not at all."""
        arrays: dict[str, Array] = {name: getattr(self, name) for name in _ARRAYS}
        about = {"partition": self.partition, "distance": self.distance}
        write_arrays(folder, HEADER, FORMAT, about, arrays)

    @classmethod
    def open(cls, folder: str | Path) -> Joined:
        """Map the files of a folder. Ranges are checked when the rows join a tail."""
        about, arrays = open_arrays(folder, HEADER, FORMAT, verify_bytes=VERIFIED_BYTES)
        parts: dict[str, Any] = {**about, **arrays, "codes": map_again(arrays["codes"])}
        return cls(**parts)

    @classmethod
    def serves(cls, plan: Plan | None, engine: Engine | None) -> bool:  # noqa: ARG003
        """The partitions that were joined serve plans, with these rows."""
        return False

    def searcher(self, blocks: Blocks, plan: Plan | None, engine: Engine | None) -> Search | None:  # noqa: ARG002
        """No search of its own."""
        return None

    def check_fits(self, partition: Partition, count: int) -> None:
        """Raise unless these are the places of ``count`` rows in ``partition``."""
        width = 4 * -(-partition.dim // EIGHT), partition.copies, partition.codes.shape[1]
        right = [getattr(self, name).shape for name in _ARRAYS] == [
            (count, width[0]), (count,), (count, width[1]), (count, width[2]), (count,)
        ]  # fmt: skip
        if not right or self.lists.max(initial=0) >= len(partition.lists) or not np.isfinite(self.adjust).all():
            rule = "stored places must be those of the rows in the partitions"
            raise EmbeddingsError(rule, got="others", cure="build them again")
