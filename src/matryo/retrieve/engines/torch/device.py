"""Copies of blocks on a torch device, and CUDA graphs for searches of few queries.

Copies are made on first use, and stay while their blocks are in use.
"""

from __future__ import annotations

import weakref
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from matryo.retrieve.plan.plan import Precision
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.metric import Metric

    Codes = np.ndarray[Any, np.dtype[np.int32]]

FLOOR = float(np.finfo(np.float32).tiny)
SMALL = 2.0**-90   # float32 holds no cosine with a vector below this norm
_NEAR = 4   # a prefix of at most 1 / this of the columns gets a contiguous copy of its own
_TILE = 1 << 26   # numbers rounded at a time
_AGAIN = 2   # a search is recorded after this many repetitions: recording takes as long as hundreds of searches
_RECORDS = 32   # records kept per blocks


class Rough(NamedTuple):
    """Vectors for a matrix product that only selects: the score of a row is near ``product · times + plus``."""

    matrix: torch.Tensor
    """[count, dim]; float16 on a GPU, for its tensor cores."""
    times: torch.Tensor
    """[count], the factor of each row; the query has its own."""
    plus: torch.Tensor
    """[count], the term added for each row."""
    loss: float
    """The largest relative rounding error of a row: the norm of the error divided by the norm of the row."""
    longest: float
    """The largest norm of a row; 1 if the metric is cosine."""
    largest: float = 1.0
    """The largest of ``times`` of a row that is not zero."""


def factors(metric: Metric, norms: torch.Tensor) -> torch.Tensor:
    """Return what a score needs of each norm: the square for L2, else the reciprocal."""
    return norms.square() if metric == "l2" else norms.clamp(min=FLOOR).reciprocal()


def to_unit(norms: torch.Tensor) -> torch.Tensor:
    """Return the powers of two that scale ``norms`` to ½ … 1 without rounding; 1 for a norm of 0."""
    # The quotient of the mantissa and the number is exactly a power of two.
    return torch.where(norms > 0, torch.frexp(norms).mantissa / norms, 1.0)


class Copies:
    """Copies of blocks on a device, each in one piece; ``half`` selects products in float16."""

    def __init__(self, device: torch.device, *, half: bool) -> None:
        self.device = device
        self.half = half
        self.wide = torch.float32 if device.type == "mps" else torch.float64   # MPS has no float64
        self._lock = Lock()
        self._numbers: dict[tuple[int, ...], torch.Tensor] = {}
        self._held: weakref.WeakKeyDictionary[Blocks, dict[Any, Any]] = weakref.WeakKeyDictionary()
        self._records: weakref.WeakKeyDictionary[Blocks, dict[Any, int | _Record]] = weakref.WeakKeyDictionary()

    def whole(self, blocks: Blocks, dim: int, precision: Precision) -> torch.Tensor:
        """Return the vectors, at least their first ``dim`` columns."""
        held = self._held.setdefault(blocks, {})
        if precision not in held or held[precision].shape[1] < dim:
            held[precision] = self._loaded(blocks, dim, precision)
            self._records.pop(blocks, None)   # they read the old copy
        whole: torch.Tensor = held[precision]
        return whole

    def norms(self, blocks: Blocks, dim: int, metric: Metric) -> torch.Tensor:
        """Return the :func:`factors` of the norms of the first ``dim`` columns."""
        held = self._held.setdefault(blocks, {})
        if (metric, dim) not in held:
            held[metric, dim] = factors(metric, self._moved(blocks.norms[:, blocks.level(dim)]))
        norms: torch.Tensor = held[metric, dim]
        return norms

    def rough(self, blocks: Blocks, dim: int, precision: Precision, metric: Metric) -> Rough:
        """Return the first ``dim`` columns of every vector for a matrix product."""
        matrix, units, loss = self._rounded(blocks, dim, precision)
        held, key = self._held[blocks], (precision, dim, metric)
        if key not in held:
            norms = self._moved(blocks.norms[:, blocks.level(dim)])
            times = factors(metric, norms) if metric == "cosine" else norms.new_ones(len(norms))
            plus = -norms.square() if metric == "l2" else norms.new_zeros(len(norms))
            longest = 1.0 if metric == "cosine" else float(norms.max())
            if metric == "cosine" and ((norms > 0) & (norms < SMALL)).any():
                loss = 3.0   # the reciprocals of such norms, and products with them, may be wrong
            times = times if units is None else times * units
            largest = float(times[norms > 0].amax()) if (norms > 0).any() else 0.0
            held[key] = times, plus, loss, longest, largest
        return Rough(matrix, *held[key])

    def numbers(self, some: tuple[int, ...]) -> torch.Tensor:
        """Return integers as a tensor on the device, cached."""
        if some not in self._numbers:
            self._numbers[some] = torch.tensor(some, dtype=torch.int32, device=self.device)
        return self._numbers[some]

    def replayed(
        self, blocks: Blocks, kind: Any, asked: torch.Tensor, search: Callable[[torch.Tensor], torch.Tensor]
    ) -> Codes | None:
        """Return the result of a ``kind`` of search by replaying its record; None if there is no record."""
        if self.device.type != "cuda":
            return None
        # Sizes are powers of two: a record for more queries also serves fewer.
        size = 1 << (len(asked) - 1).bit_length()
        kind = kind, size, asked.dtype
        with self._lock:
            records = self._records.setdefault(blocks, {})
            record = records.pop(kind, 0)   # re-inserted below: the first record is the least recently used
            if isinstance(record, int):
                record = record + 1 if record < _AGAIN else _Record(self.device, asked, size, search)
            records[kind] = record
            if len(records) > _RECORDS:
                del records[next(iter(records))]
            return None if isinstance(record, int) else record(asked)

    def _rounded(
        self, blocks: Blocks, dim: int, precision: Precision
    ) -> tuple[torch.Tensor, torch.Tensor | None, float]:
        """Return the matrix of a product, the divisors of its rows if any, and its :attr:`Rough.loss`."""
        whole, held = self.whole(blocks, dim, precision), self._held[blocks]
        kept = not self.half or whole.dtype == torch.float16
        if kept and _NEAR * dim > whole.shape[1]:
            return whole[:, :dim], None, 0.0
        if (precision, dim) not in held:
            some = whole[:, :dim]
            held[precision, dim] = (some.contiguous(), None, 0.0) if kept else self._halved(some)
        made: tuple[torch.Tensor, torch.Tensor | None, float] = held[precision, dim]
        return made

    def _halved(self, whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Return the rows in float16, each first scaled to a norm of about 1, with the scales and the loss."""
        matrix = torch.empty(whole.shape, dtype=torch.float16, device=self.device)
        units, loss = torch.empty(len(whole), device=self.device), 0.0
        step = max(1, _TILE // whole.shape[1])
        for some, half, unit in zip(*(each.split(step) for each in (whole, matrix, units)), strict=True):
            exact = some.to(self.wide)
            norms = torch.linalg.vector_norm(exact, dim=1, keepdim=True)
            by = to_unit(norms)
            exact = exact.mul_(by)
            half.copy_(exact)
            unit.copy_(by.reciprocal().squeeze(1))
            lost = torch.linalg.vector_norm(exact.sub_(half), dim=1, keepdim=True) / (norms * by).clamp(min=FLOOR)
            loss = max(loss, float(lost.max()))
        return matrix, units, loss

    def _loaded(self, blocks: Blocks, dim: int, precision: Precision) -> torch.Tensor:
        # With float16 a GPU reads half the bytes; CPUs are only fast with float32.
        half = precision == "full" and blocks.dtype == "float16" and self.half
        made = torch.empty(blocks.count, dim, dtype=torch.float16 if half else torch.float32, device=self.device)
        for number, (low, high) in enumerate(blocks.nesting.blocks[: blocks.level(dim) + 1]):
            if precision == "full":
                made[:, low:high] = self._moved(blocks.full[number])
            else:
                made[:, low:high] = self._moved(blocks.int8[number].codes).float() * float(blocks.int8[number].scale)
        return made

    def _moved(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(array)).to(self.device)   # a copy: torch requires writable arrays


class _Record:
    """A search recorded as a CUDA graph: the device runs its many small steps without separate launches."""

    def __init__(
        self, device: torch.device, asked: torch.Tensor, size: int, search: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._asked = torch.ones(size, asked.shape[1], dtype=asked.dtype, device=device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            search(self._asked)   # compiles and copies before the recording
            # Other threads may use the device meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._found = search(self._asked)

    def __call__(self, asked: torch.Tensor) -> Codes:
        """Return the result of the search for other queries, at most as many as recorded."""
        with torch.cuda.device(self._asked.device):
            self._asked[: len(asked)].copy_(asked)
            self._graph.replay()
            packed: Codes = self._found[: len(asked)].cpu().numpy()
        return packed
