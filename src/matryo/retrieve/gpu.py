"""The stages of a plan in torch: every row as a product of matrices, a shortlist as a gather, on a GPU or anywhere.

Blocks are copied to the device once, and stay there while they are in use. A product of matrices rounds by where a
row lies, so it only chooses, some rows more than are asked for; these are scored anew, each block summed by itself.

>>> import numpy as np
>>> from matryo.nesting import Nesting
>>> from matryo.retrieve import Blocks, Plan, execute
>>> blocks = Blocks.of(np.eye(4, dtype="f4"), Nesting([2, 4]))
>>> execute(blocks, [[0, 2, 1, 0]], Plan.single(4), k=2, engine=torch_engine("cpu"))[0].tolist()
[[1, 2]]
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError, MissingExtra
from matryo.retrieve.execute import Engine
from matryo.retrieve.shortlist import Shortlist, query_norms

if TYPE_CHECKING:
    import torch

    from matryo.retrieve.blocks import Blocks
    from matryo.retrieve.metric import Metric
    from matryo.retrieve.plan import Precision

    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["torch_engine"]

_SCORES = 1 << 28   # scores at a time: 1 GB
_GATHER = 1 << 28   # numbers of gathered rows at a time
_MORE = 16   # rows chosen beyond those asked for, as others may be the best once scored anew
_NOTHING = np.iinfo(np.int64).min
_ROWS = 0xFFFFFFFF


@cache
def torch_engine(device: str = "cuda") -> Engine:
    """An engine for :func:`matryo.retrieve.execute` that keeps what it searches on ``device``."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "train") from error
    try:
        place = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise InputError("device must be one that torch can use", got=device, cure="'cpu' is always there") from error
    held = _Held(place)
    return Engine(held.first_stage, held.rerank)


class _Held:
    """Blocks on a device, copied when they are first asked for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copies: weakref.WeakKeyDictionary[Blocks, dict[Any, torch.Tensor]] = weakref.WeakKeyDictionary()

    def first_stage(
        self,
        blocks: Blocks,
        queries: Floats,
        dim: int,
        keep: int,
        metric: Metric,
        precision: Precision = "full",
        allowed: Bools | None = None,
    ) -> Shortlist:
        """As :func:`matryo.retrieve.scan.first_stage`."""
        import torch

        asked, level = torch.from_numpy(queries).to(self.device), blocks.level(dim)
        mask = None if allowed is None else torch.from_numpy(allowed).to(self.device)
        lengths = torch.from_numpy(query_norms(queries, dim)).to(self.device)
        norms = self._norms(blocks)[:, level]
        wanted = min(keep + _MORE, blocks.count)
        chosen = []
        for some in torch.arange(len(asked), device=self.device).split(max(1, _SCORES // blocks.count)):
            sums = torch.zeros(len(some), blocks.count, device=self.device)
            for number, (low, high) in enumerate(blocks.nesting.blocks[: level + 1]):
                sums.addmm_(asked[some, low:high], self._block(blocks, number, precision).T)
            scores = _score(metric, sums, norms, lengths[some])
            if mask is not None:
                scores.masked_fill_(~mask, -torch.inf)
            chosen.append(_best(scores, keep, wanted))
        rows = torch.cat(chosen)
        return self._rescored(blocks, asked, rows, None, 0, dim, keep, metric, precision)

    def rerank(
        self,
        blocks: Blocks,
        queries: Floats,
        shortlist: Shortlist,
        done: int,
        dim: int,
        keep: int,
        metric: Metric,
        precision: Precision = "full",
    ) -> Shortlist:
        """As :func:`matryo.retrieve.shortlist.rerank`."""
        import torch

        asked, rows, sums = (torch.from_numpy(np.ascontiguousarray(given)).to(self.device)
                             for given in (queries, shortlist.rows, shortlist.sums))
        return self._rescored(blocks, asked, rows, sums if done else None, done, dim, keep, metric, precision)

    def _rescored(
        self,
        blocks: Blocks,
        queries: torch.Tensor,
        rows: torch.Tensor,
        before: torch.Tensor | None,
        done: int,
        dim: int,
        keep: int,
        metric: Metric,
        precision: Precision,
    ) -> Shortlist:
        import torch

        sums = torch.zeros(rows.shape, device=self.device) if before is None else before.clone()
        there = rows.clamp(min=0)
        for number, (low, high) in enumerate(blocks.nesting.blocks):
            if done <= low < dim:
                block = self._block(blocks, number, precision)
                step = max(1, _GATHER // (rows.shape[1] * (high - low)))
                for start in range(0, len(rows), step):
                    part = slice(start, start + step)
                    # Not a product of matrices: each row is summed alike, so equal rows score equally.
                    sums[part] += (block[there[part]] * queries[part, None, low:high]).sum(-1)
        lengths = torch.from_numpy(query_norms(queries.cpu().numpy(), dim)).to(self.device)
        scores = _score(metric, sums, self._norms(blocks)[:, blocks.level(dim)][there], lengths)
        found, order = _keys(scores, rows).sort(dim=1, descending=True)
        found, order = found[:, :keep], order[:, :keep]
        nothing = found == _NOTHING
        kept = torch.where(nothing, -1, _ROWS - (found & _ROWS))
        kept_sums = sums.gather(1, order).masked_fill_(nothing, 0)
        kept_scores = scores.gather(1, order).masked_fill_(nothing, -torch.inf)
        return Shortlist(kept.cpu().numpy(), kept_sums.cpu().numpy(), kept_scores.cpu().numpy())

    def _block(self, blocks: Blocks, number: int, precision: Precision) -> torch.Tensor:
        copies = self._copies.setdefault(blocks, {})
        if (number, precision) not in copies:
            copies[number, precision] = self._copy(blocks, number, precision)
        return copies[number, precision]

    def _copy(self, blocks: Blocks, number: int, precision: Precision) -> torch.Tensor:
        # As float32 whatever it was, since that is what is multiplied: widened once, not in every search.
        if precision == "full":
            return self._moved(blocks.full[number]).float()
        codes = blocks.int8[number]
        return self._moved(codes.codes).float() * float(codes.scale)

    def _norms(self, blocks: Blocks) -> torch.Tensor:
        copies = self._copies.setdefault(blocks, {})
        if "norms" not in copies:
            copies["norms"] = self._moved(blocks.norms)
        return copies["norms"]

    def _moved(self, array: Any) -> torch.Tensor:
        import torch

        return torch.from_numpy(np.array(array)).to(self.device)   # a copy: torch wants arrays it may write to


def _score(metric: Metric, sums: torch.Tensor, norms: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    # As matryo.retrieve.metric.score.
    if metric == "ip":
        return sums
    if metric == "cosine":
        floor = float(np.finfo(np.float32).tiny)
        return sums * norms.clamp(min=floor).reciprocal() * lengths.clamp(min=floor).reciprocal()
    return 2 * sums - norms.square() - lengths.square()


def _best(scores: torch.Tensor, keep: int, wanted: int) -> torch.Tensor:
    """Rows that have the best ``keep`` among them, −1 for none. Of equal scores at the edge, the smaller rows."""
    import torch

    values, rows = scores.topk(wanted, dim=1)
    rows = rows.masked_fill(values.isneginf(), -1)
    # Where a tie reaches beyond what was chosen, topk took any of it.
    torn = (values[:, keep - 1] == values[:, -1]) & ~values[:, -1].isneginf()
    if wanted < scores.shape[1] and bool(torn.any()):
        some = scores[torn]
        keys = _keys(some, torch.arange(scores.shape[1], device=scores.device).expand_as(some))
        rows[torn] = keys.topk(wanted, dim=1).indices
    return rows


def _keys(scores: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    # As matryo.retrieve.metric.keys: one integer that sorts by score, then by smaller row.
    import torch

    bits = (scores + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    made = (ordered.to(torch.int64) << 32) | (_ROWS - rows)
    return torch.where(rows < 0, _NOTHING, made)
