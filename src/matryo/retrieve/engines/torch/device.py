"""What a search on a device of torch needs there: copies of the blocks, and for few queries a record of its steps.

Copies are made when they are first asked for, and stay while their blocks are in use.
"""

from __future__ import annotations

import weakref
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from matryo.retrieve.plan.plan import Precision
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.metric import Metric

    Codes = np.ndarray[Any, np.dtype[np.int32]]

__all__ = ["FLOOR", "Copies", "Rough", "factors", "to_unit"]

FLOOR = float(np.finfo(np.float32).tiny)
_NEAR = 4   # a prefix that is at most this part of the vectors has a copy of its own, whose rows lie close
_TILE = 1 << 26   # numbers that are rounded at a time
_AGAIN = 2   # searches of a kind after which it is recorded: recording takes as long as hundreds of them
_RECORDS = 32   # kept for some blocks


class Rough(NamedTuple):
    """Vectors to be read through by a product that only chooses: a row's score is near ``product · times + plus``."""

    matrix: torch.Tensor
    """[count, dim], on a GPU in float16, for its tensor cores."""
    times: torch.Tensor
    """[count], what the product of a row is multiplied with, but for the query's part."""
    plus: torch.Tensor
    """[count], what is added."""
    loss: float
    """The norm of what rounding took from a row, as a part of the row's: the largest there is."""
    longest: float
    """The largest norm of a row, as the metric takes it: where it is the cosine, 1."""


def factors(metric: Metric, norms: torch.Tensor) -> torch.Tensor:
    """What a score takes of a norm: its square where distances are asked for, else its reciprocal."""
    return norms.square() if metric == "l2" else norms.clamp(min=FLOOR).reciprocal()


def to_unit(norms: torch.Tensor) -> torch.Tensor:
    """The powers of two that bring ``norms`` to between ½ and 1, so that nothing is rounded; 1 where one is 0."""
    import torch

    # The quotient of a mantissa and its number is a power of two, exactly.
    return torch.where(norms > 0, torch.frexp(norms).mantissa / norms, 1.0)


class Copies:
    """Blocks on a device, in one piece; ``half`` is whether its products are in float16."""

    def __init__(self, device: torch.device, *, half: bool) -> None:
        import torch

        self.device = device
        self.half = half
        self.wide = torch.float32 if device.type == "mps" else torch.float64   # which not every device has
        self._lock = Lock()
        self._numbers: dict[tuple[int, ...], torch.Tensor] = {}
        self._held: weakref.WeakKeyDictionary[Blocks, dict[Any, Any]] = weakref.WeakKeyDictionary()
        self._records: weakref.WeakKeyDictionary[Blocks, dict[Any, int | _Record]] = weakref.WeakKeyDictionary()

    def whole(self, blocks: Blocks, dim: int, precision: Precision) -> torch.Tensor:
        """The vectors, at least their first ``dim`` columns."""
        held = self._held.setdefault(blocks, {})
        if precision not in held or held[precision].shape[1] < dim:
            held[precision] = self._loaded(blocks, dim, precision)
            self._records.pop(blocks, None)   # they read what was there before
        whole: torch.Tensor = held[precision]
        return whole

    def norms(self, blocks: Blocks, dim: int, metric: Metric) -> torch.Tensor:
        """The :func:`factors` of the norms of the first ``dim`` columns."""
        held = self._held.setdefault(blocks, {})
        if (metric, dim) not in held:
            held[metric, dim] = factors(metric, self._moved(blocks.norms[:, blocks.level(dim)]))
        norms: torch.Tensor = held[metric, dim]
        return norms

    def rough(self, blocks: Blocks, dim: int, precision: Precision, metric: Metric) -> Rough:
        """The first ``dim`` columns of every vector, to be read through."""
        matrix, units, loss = self._rounded(blocks, dim, precision)
        held, key = self._held[blocks], (precision, dim, metric)
        if key not in held:
            norms = self._moved(blocks.norms[:, blocks.level(dim)])
            times = factors(metric, norms) if metric == "cosine" else norms.new_ones(len(norms))
            plus = -norms.square() if metric == "l2" else norms.new_zeros(len(norms))
            longest = 1.0 if metric == "cosine" else float(norms.max())
            held[key] = times if units is None else times * units, plus, loss, longest
        return Rough(matrix, *held[key])

    def numbers(self, some: tuple[int, ...]) -> torch.Tensor:
        """Some integers on the device, where they are from the second time on."""
        import torch

        if some not in self._numbers:
            self._numbers[some] = torch.tensor(some, dtype=torch.int32, device=self.device)
        return self._numbers[some]

    def replayed(
        self, blocks: Blocks, kind: Any, asked: torch.Tensor, search: Callable[[torch.Tensor], torch.Tensor]
    ) -> Codes | None:
        """What a ``kind`` of search finds, from a record of it; None where there is none yet, or cannot be."""
        if self.device.type != "cuda":
            return None
        # A record of twice as many is good for fewer: there are few sizes.
        size = 1 << (len(asked) - 1).bit_length()
        kind = kind, size, asked.dtype
        with self._lock:
            records = self._records.setdefault(blocks, {})
            record = records.pop(kind, 0)   # and put in again: the first is the one not used for longest
            if isinstance(record, int):
                record = record + 1 if record < _AGAIN else _Record(self.device, asked, size, search)
            records[kind] = record
            if len(records) > _RECORDS:
                del records[next(iter(records))]
            return None if isinstance(record, int) else record(asked)

    def _rounded(
        self, blocks: Blocks, dim: int, precision: Precision
    ) -> tuple[torch.Tensor, torch.Tensor | None, float]:
        """The matrix of a product, what its rows were divided by if anything, and its :attr:`Rough.loss`."""
        import torch

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
        """Rows in float16, each brought to a norm of about 1 first."""
        import torch

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
        import torch

        # Of float16, a GPU reads half the bytes; a processor multiplies float32 alone well.
        half = precision == "full" and blocks.dtype == "float16" and self.half
        made = torch.empty(blocks.count, dim, dtype=torch.float16 if half else torch.float32, device=self.device)
        for number, (low, high) in enumerate(blocks.nesting.blocks[: blocks.level(dim) + 1]):
            if precision == "full":
                made[:, low:high] = self._moved(blocks.full[number])
            else:
                made[:, low:high] = self._moved(blocks.int8[number].codes).float() * float(blocks.int8[number].scale)
        return made

    def _moved(self, array: Any) -> torch.Tensor:
        import torch

        return torch.from_numpy(np.array(array)).to(self.device)   # a copy: torch wants arrays it may write to


class _Record:
    """A search as a CUDA graph: the device goes through its many small steps by itself, without being told each."""

    def __init__(
        self,
        device: torch.device,
        asked: torch.Tensor,
        size: int,
        search: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        import torch

        self._asked = torch.ones(size, asked.shape[1], dtype=asked.dtype, device=device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            search(self._asked)   # what is compiled or copied at first is so before the recording
            # Other threads may use the device meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._found = search(self._asked)

    def __call__(self, asked: torch.Tensor) -> Codes:
        """What the search finds for other queries, at most as many."""
        import torch

        with torch.cuda.device(self._asked.device):
            self._asked[: len(asked)].copy_(asked)
            self._graph.replay()
            found: Codes = self._found[: len(asked)].cpu().numpy()
        return found
