"""What a search on a device of torch needs there: copies of the blocks, and for one query a record of its steps.

Copies are made when they are first asked for, and stay while their blocks are in use.
"""

from __future__ import annotations

import weakref
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from matryo.retrieve.blocks import Blocks
    from matryo.retrieve.metric import Metric
    from matryo.retrieve.plan import Precision

    Floats = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["FLOOR", "Copies", "factors"]

FLOOR = float(np.finfo(np.float32).tiny)
_NEAR = 4   # a prefix that is at most this part of the vectors has a copy of its own, whose rows lie close
_AGAIN = 2   # searches of a kind after which it is recorded: recording takes as long as hundreds of them
_RECORDS = 32   # kept for some blocks


def factors(metric: Metric, norms: Floats) -> Floats:
    """What a score takes of a norm: its square where distances are asked for, else its reciprocal."""
    return np.square(norms) if metric == "l2" else np.reciprocal(np.maximum(norms, np.float32(FLOOR)))


class Copies:
    """Blocks on a device, in one piece."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = Lock()
        self._held: weakref.WeakKeyDictionary[Blocks, dict[Any, torch.Tensor]] = weakref.WeakKeyDictionary()
        self._records: weakref.WeakKeyDictionary[Blocks, dict[Any, int | _Record]] = weakref.WeakKeyDictionary()

    def whole(self, blocks: Blocks, dim: int, precision: Precision) -> torch.Tensor:
        """The vectors, at least their first ``dim`` columns."""
        held = self._held.setdefault(blocks, {})
        if precision not in held or held[precision].shape[1] < dim:
            held[precision] = self._loaded(blocks, dim, precision)
            self._records.pop(blocks, None)   # they read what was there before
        return held[precision]

    def prefix(self, blocks: Blocks, dim: int, precision: Precision) -> torch.Tensor:
        """The first ``dim`` columns of every vector, to be read through."""
        whole = self.whole(blocks, dim, precision)
        if _NEAR * dim > whole.shape[1]:
            return whole[:, :dim]
        held = self._held[blocks]
        if (precision, dim) not in held:
            held[precision, dim] = whole[:, :dim].contiguous()
        return held[precision, dim]

    def norms(self, blocks: Blocks, dim: int, metric: Metric) -> torch.Tensor:
        """The :func:`factors` of the norms of the first ``dim`` columns."""
        held = self._held.setdefault(blocks, {})
        if (metric, dim) not in held:
            held[metric, dim] = self._moved(factors(metric, blocks.norms[:, blocks.level(dim)]))
        return held[metric, dim]

    def replayed(
        self, blocks: Blocks, kind: Any, asked: torch.Tensor, search: Callable[[torch.Tensor], torch.Tensor]
    ) -> Floats | None:
        """What a ``kind`` of search finds, from a record of it; None where there is none yet, or cannot be."""
        if self.device.type != "cuda":
            return None
        with self._lock:
            records = self._records.setdefault(blocks, {})
            record = records.pop(kind, 0)   # and put in again: the first is the one not used for longest
            if isinstance(record, int):
                record = record + 1 if record < _AGAIN else _Record(self.device, asked, search)
            records[kind] = record
            if len(records) > _RECORDS:
                del records[next(iter(records))]
            return None if isinstance(record, int) else record(asked)

    def _loaded(self, blocks: Blocks, dim: int, precision: Precision) -> torch.Tensor:
        import torch

        # Of float16, a GPU reads half the bytes; a processor multiplies float32 alone well.
        half = precision == "full" and blocks.dtype == "float16" and self.device.type == "cuda"
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
        self, device: torch.device, asked: torch.Tensor, search: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        import torch

        self._asked = asked.to(device)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile.
        with torch.cuda.device(device), torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._found = search(self._asked)

    def __call__(self, asked: torch.Tensor) -> Floats:
        """What the search finds for other queries of the same shape."""
        import torch

        with torch.cuda.device(self._asked.device):
            self._asked.copy_(asked)
            self._graph.replay()
            found: Floats = self._found.cpu().numpy()
        return found
