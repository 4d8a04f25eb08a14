"""A plan in torch, on a GPU or anywhere: queries go up once, hits come down once, and nothing waits in between.

Vectors are copied to the device once, and stay there while they are in use. A product of matrices rounds by where a
row lies, so it only chooses, some rows more than are asked for; these are scored anew, each summed by itself in
float64. So a score has the same bits wherever its row lies and however many stages came before.

>>> import numpy as np
>>> from matryo.nesting import Nesting
>>> from matryo.retrieve import Blocks, Plan, execute
>>> blocks = Blocks.of(np.eye(4, dtype="f4"), Nesting([2, 4]))
>>> execute(blocks, [[0, 2, 1, 0]], Plan.single(4), k=2, engine=torch_engine("cpu"))[0].tolist()
[[1, 2]]
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError, MissingExtra
from matryo.nesting import prefix_norms
from matryo.retrieve.device import FLOOR, Copies, factors
from matryo.retrieve.execute import Engine
from matryo.retrieve.plan import Plan, Stage
from matryo.retrieve.shortlist import Shortlist

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from matryo.retrieve.blocks import Blocks
    from matryo.retrieve.metric import Metric
    from matryo.retrieve.plan import Precision

    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Choose = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]

__all__ = ["torch_engine"]

_SCORES = 1 << 27   # scores at a time: 512 MB
_GATHER = 1 << 28   # numbers of gathered rows at a time
_MORE = 16   # rows chosen beyond those asked for, as others may be the best once scored anew
_DEEP = 4   # rows in a group, from which on groups make choosing faster


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
    search = _Search(place)
    return Engine(search.first_stage, search.rerank, search.run)


@dataclass(frozen=True, eq=False)
class _Task:
    """What is asked of some blocks, but for the queries."""

    blocks: Blocks
    plan: Plan
    metric: Metric
    count: int
    """Rows that may be found."""
    mask: torch.Tensor | None = None
    gaps: bool = False
    """Whether some of the first rows may be −1, for none."""

    @property
    def keep(self) -> int:
        """Of the first stage."""
        return min(self.plan.stages[0].keep, self.count)


class _Search:
    """The stages of plans on a device."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self.device = device
        self.copies = Copies(device)
        self.wide = torch.float32 if device.type == "mps" else torch.float64   # which not every device has
        self.fused = device.type == "cuda" and importlib.util.find_spec("triton") is not None

    def run(
        self, blocks: Blocks, queries: Floats, plan: Plan, count: int, metric: Metric, allowed: Bools | None
    ) -> Shortlist:
        """Every stage of a plan, as :class:`matryo.retrieve.Engine` says."""
        import torch

        self.copies.whole(blocks, plan.dim, plan.stages[-1].precision)   # all at once, not stage by stage
        asked = _packed(queries, plan, metric)
        mask = None if allowed is None else torch.from_numpy(allowed).to(self.device)
        task = _Task(blocks, plan, metric, count, mask, gaps=mask is not None)
        found = None
        if len(asked) == 1 and mask is None:
            found = self.copies.replayed(blocks, (plan, metric, count), asked, partial(self._found, task))
        if found is None:
            found = self._found(task, asked.to(self.device)).cpu().numpy()
        # Where a tie reaches beyond what was chosen, any of it was: those queries again, with the smaller rows.
        torn = np.flatnonzero(found[:, -1] == 0)
        if len(torn) and task.keep + _MORE < blocks.count:
            found[torn] = self._found(task, asked[torch.from_numpy(torn)].to(self.device), _in_order).cpu().numpy()
        return _shortlist(found)

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
        return self.run(blocks, queries, Plan((Stage(dim, keep, precision),)), keep, metric, allowed)

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

        task = _Task(blocks, Plan((Stage(dim, keep, precision),)), metric, keep, gaps=True)
        asked = _packed(queries, task.plan, metric).to(self.device)
        rows, order = torch.from_numpy(np.ascontiguousarray(shortlist.rows)).to(self.device).sort(dim=1)
        sums = torch.from_numpy(np.ascontiguousarray(shortlist.sums)).to(self.device, self.wide).gather(1, order)
        return _shortlist(self._stages(task, asked, rows, sums, done).cpu().numpy())

    def _found(self, task: _Task, asked: torch.Tensor, choose: Choose | None = None) -> torch.Tensor:
        import torch

        parts = []
        for some in asked.split(max(1, _SCORES // task.blocks.count)):
            rows = self._choice(task, some, choose or _likely)
            parts.append(self._stages(task, some, rows))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _choice(self, task: _Task, asked: torch.Tensor, choose: Choose) -> torch.Tensor:
        """Rows that have the best of the first stage among them, in order; −1 for none."""
        first, blocks = task.plan.stages[0], task.blocks
        sums = _product(asked[:, : first.dim], self.copies.prefix(blocks, first.dim, first.precision))
        norms, lengths = self.copies.norms(blocks, first.dim, task.metric), asked[:, task.plan.dim, None]
        scores = _score(task.metric, sums, norms, lengths)
        wanted = min(task.keep + _MORE, blocks.count)
        if task.mask is None:
            rows = choose(scores, wanted)[1]
        else:
            values, rows = choose(scores.masked_fill_(~task.mask, -math.inf), wanted)
            rows = rows.masked_fill(values.isneginf(), -1)
        return rows.sort(dim=1).values

    def _stages(
        self, task: _Task, asked: torch.Tensor, rows: torch.Tensor, before: torch.Tensor | None = None, done: int = 0
    ) -> torch.Tensor:
        """What the stages leave of the ``rows``, which are in order, as :func:`_shortlist` reads it.

        The sums ``before`` hold the first ``done`` columns already. The last column is by how much the first stage's
        last row that is kept is better than its last of all.
        """
        import torch

        blocks, stages, gaps = task.blocks, task.plan.stages, task.gaps
        last, k = len(stages) - 1, stages[-1].keep
        for number, stage in enumerate(stages):
            if number and stage.precision != stages[number - 1].precision:
                done = 0   # sums in int8 are no part of sums in full precision
            there = rows.clamp(min=0) if gaps else rows   # a row that is none is read as the first
            added = self._sums(blocks, asked, there, done, stage)
            sums = added if before is None or not done else before + added
            norms, lengths = self.copies.norms(blocks, stage.dim, task.metric), asked[:, task.plan.dim + number, None]
            scores = _score(task.metric, sums.to(torch.float32, copy=True), norms.take(there), lengths)
            if gaps:
                scores.masked_fill_(rows < 0, -math.inf)
            # Rows are in order and the sort is stable: of equal scores the smaller row comes first.
            values, order = scores.sort(dim=1, descending=True, stable=True)
            keep = min(stage.keep, task.count, rows.shape[1])
            if number == 0:
                edge = values[:, keep - 1 : keep] - values[:, -1:]
            at = order[:, :keep] if number == last else order[:, :keep].sort(dim=1).values
            rows, sums = rows.gather(1, at), sums.gather(1, at)
            before, done = sums, stage.dim
            if stage.margin is not None and number < last and keep > k:
                gaps, rows = True, rows.masked_fill(scores.gather(1, at) < values[:, k - 1 : k] - stage.margin, -1)
        sums = sums.float().masked_fill(rows < 0, 0) if gaps else sums.float()
        # The bits of a row are those of two float32, so that all goes down at once.
        return torch.cat([rows.view(torch.float32), sums, values[:, :keep], edge], 1)

    def _sums(self, blocks: Blocks, asked: torch.Tensor, rows: torch.Tensor, done: int, stage: Stage) -> torch.Tensor:
        """The inner products of the queries with their own rows, over the columns that a stage adds."""
        import torch

        columns = self.copies.whole(blocks, stage.dim, stage.precision)[:, done : stage.dim]
        if self.fused:
            from matryo.retrieve.device_kernels import products_at

            return products_at(columns, rows, asked[:, done : stage.dim])
        step = max(1, _GATHER // max(1, rows.shape[1] * columns.shape[1]))
        parts = []
        for some, vectors in zip(rows.split(step), asked[:, None, done : stage.dim].split(step), strict=True):
            read = columns.index_select(0, some.flatten()).unflatten(0, some.shape)
            # Not a product of matrices: each row is summed alike, so equal rows score equally.
            parts.append((read * vectors).sum(-1, dtype=self.wide))
        return torch.cat(parts) if len(parts) > 1 else parts[0]


def _packed(queries: Floats, plan: Plan, metric: Metric) -> torch.Tensor:
    """The queries as far as the plan reads them, and beside them the factor of their norm at each stage."""
    import torch

    dims = sorted({stage.dim for stage in plan.stages})
    norms = factors(metric, prefix_norms(queries[:, : plan.dim].astype(np.float64), dims).astype(np.float32))
    both = queries[:, : plan.dim], norms[:, [dims.index(stage.dim) for stage in plan.stages]]
    return torch.from_numpy(np.concatenate(both, axis=1))


def _score(metric: Metric, sums: torch.Tensor, norms: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    # As matryo.retrieve.metric.score, of factors, in place.
    if metric == "ip":
        return sums
    return sums.mul_(norms).mul_(lengths) if metric == "cosine" else sums.mul_(2).sub_(norms).sub_(lengths)


def _product(asked: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """The inner products of queries with every row, as float32."""
    import torch

    if matrix.dtype == torch.float32:
        return asked @ matrix.T
    # A float32 as the sum of two float16, for tensor cores, which multiply these exactly and add in float32.
    largest = asked.abs().amax(1, keepdim=True).clamp(min=FLOOR)
    unit = asked / largest
    high = unit.half()
    both = torch.mm(torch.cat([high, (unit - high).half()]), matrix.T, out_dtype=torch.float32)
    return both[: len(asked)].add_(both[len(asked) :]).mul_(largest)


def _likely(scores: torch.Tensor, wanted: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The best ``wanted`` scores of each query and their rows, in no order; of equal scores at the edge, any.

    They lie in groups whose own best are the best: two searches among few are faster than one among all.
    """
    import torch

    count = scores.shape[1]
    depth = math.isqrt(count // wanted)
    if depth < _DEEP:
        return scores.topk(wanted, dim=1, sorted=False)
    width = count // depth
    numbers = torch.arange(count, device=scores.device)
    tops = scores[:, : depth * width].unflatten(1, (depth, width)).amax(1).topk(wanted, dim=1, sorted=False).indices
    rows = (tops[:, None] + numbers[: depth * width : width, None]).flatten(1)
    rows = torch.cat([rows, numbers[depth * width :].expand(len(rows), -1)], 1)
    values, at = scores.gather(1, rows).topk(wanted, dim=1, sorted=False)
    return values, rows.gather(1, at)


def _in_order(scores: torch.Tensor, wanted: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same; of equal scores at the edge, the smaller rows."""
    values, rows = scores.sort(dim=1, descending=True, stable=True)
    return values[:, :wanted], rows[:, :wanted]


def _shortlist(down: Floats) -> Shortlist:
    """What :meth:`_Search._stages` sent: [rows of 8 bytes, sums, scores, edge]."""
    k = (down.shape[1] - 1) // 4
    return Shortlist(down[:, : 2 * k].copy().view(np.int64), down[:, 2 * k : 3 * k], down[:, 3 * k : 4 * k])
