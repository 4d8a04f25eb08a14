"""Run a plan with torch, on a GPU or a CPU: queries are uploaded once and hits are downloaded once.

Vectors are copied to the device once, and stay there while they are in use. A matrix product in float16 only selects
candidates: its error has a bound, and more rows are selected than needed. The candidates are then scored one by one, in
the last stage in float64, so a score has the same bits wherever its row lies and however many stages came before. If
the worst row kept scores above the bound of every row that was not selected, nothing was missed. The other queries
(many rows about equal, for example) run again with more candidates, in the end with all rows.

Apple GPUs (MPS) have no float64, so their scores are exact to float32 only.

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
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from matryo.errors import InputError
from matryo.nesting import Nesting
from matryo.retrieve.engines.execute import Engine
from matryo.retrieve.engines.numpy.scan import unscored
from matryo.retrieve.engines.numpy.shortlist import Shortlist
from matryo.retrieve.engines.torch import steps
from matryo.retrieve.engines.torch.device import Copies
from matryo.retrieve.engines.torch.steps import Asked
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.vectors.blocks import Blocks, checked_norms
from matryo.retrieve.vectors.metric import NOTHING, Metric, key_rows, key_scores
from matryo.retrieve.vectors.queries import check_not_zero

if TYPE_CHECKING:
    from matryo.retrieve.engines.request import Request
    from matryo.retrieve.vectors.types import Array, Doubles, Floats, Indices

_SCORES = 1 << 28   # scores computed at a time: 1 GB
_FEW = 32   # a search of at most this many queries is recorded as a CUDA graph
_MORE = 16, 8   # candidates beyond keep: the first number, plus keep divided by the second
_GROWTH = 8   # factor by which they grow if they were too few
_ALL = 4   # if this times the number of candidates reaches the number of rows, every row is a candidate
_LONG = 2.0**61   # numpy checks a query with a larger norm again, exactly


@cache
def torch_engine(device: str = "cuda") -> Engine:
    """Return an engine for :func:`matryo.retrieve.execute` that keeps the vectors it searches on ``device``."""
    try:
        place = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise InputError("device must be one that torch can use", got=device, cure="'cpu' always works") from error
    gpu = place.type == "cuda"
    return _Search(place, half=gpu, fused=gpu and importlib.util.find_spec("triton") is not None).engine()


@dataclass(frozen=True, eq=False)
class _Task:
    """A search of some blocks, without its queries."""

    blocks: Blocks
    plan: Plan
    metric: Metric
    count: int
    """The number of rows that may be found."""
    mask: torch.Tensor | None = None
    growth: int = 1

    @property
    def wanted(self) -> int:
        """The number of candidates of the first stage."""
        wanted = self.spare(self.plan.stages[0])
        return wanted if _ALL * wanted < self.blocks.count else self.blocks.count

    def spare(self, stage: Stage) -> int:
        """The number of rows that a stage keeps, and some more."""
        keep = min(stage.keep, self.count)
        return keep + self.growth * (_MORE[0] + keep // _MORE[1])


class _Search:
    """The stages of plans on a device: products in float16 if ``half``, Triton kernels if ``fused``."""

    def __init__(self, device: torch.device, *, half: bool, fused: bool) -> None:
        self.device = device
        self.copies = Copies(device, half=half)
        self.wide = self.copies.wide
        self.fused = fused

    def engine(self) -> Engine:
        """Return these stages as an engine for :func:`matryo.retrieve.execute`."""
        return Engine(self.first_stage, self.rerank, run=self.run)

    def run(self, request: Request, plan: Plan) -> tuple[Indices, Doubles]:
        """Run every stage of a plan, as :class:`matryo.retrieve.Engine` describes."""
        blocks, queries, metric, count = request.blocks, request.queries, request.metric, request.count
        self.copies.whole(blocks, plan.dim, plan.stages[-1].precision)   # all columns at once, not stage by stage
        given = _movable(queries)
        mask = None if request.allowed is None else torch.from_numpy(request.allowed).to(self.device)
        task = _Task(blocks, plan, metric, count, mask)
        packed = None
        if len(given) <= _FEW and mask is None:
            packed = self.copies.replayed(blocks, (plan, metric, count), given, partial(self._found, task))
        if packed is None:
            packed = self._found(task, given.to(self.device)).cpu().numpy()
        _check(queries, packed[:, -1].view(np.float32), metric)
        while len(again := _doubtful(packed)):
            task = replace(task, growth=_GROWTH * task.growth)
            some = given[torch.from_numpy(again)].to(self.device)
            packed[again] = self._found(task, some).cpu().numpy()
        k = (packed.shape[1] - 3) // (4 if self.wide == torch.float64 else 3)
        rows, scores = packed[:, : 2 * k].copy().view(np.int64), packed[:, 2 * k : -3].copy()
        return rows, scores.view(np.float64 if self.wide == torch.float64 else np.float32).astype(np.float64)

    def first_stage(self, request: Request, stage: Stage) -> Shortlist:
        """Run one first stage, as :func:`matryo.retrieve.engines.numpy.scan.first_stage` does."""
        rows, _ = self.run(request, Plan((replace(stage, margin=None),)))
        return self.rerank(request, unscored(rows), stage)

    def rerank(self, request: Request, shortlist: Shortlist, stage: Stage, done: int = 0) -> Shortlist:
        """Re-rank a shortlist, as :func:`matryo.retrieve.engines.numpy.shortlist.rerank` does."""
        task = _Task(request.blocks, Plan((stage,)), request.metric, stage.keep)
        asked = self._asked(task, _movable(request.queries).to(self.device), rough=False)
        rows, sums = (torch.from_numpy(np.array(one)).to(self.device) for one in (shortlist.rows, shortlist.sums))
        sums, keys = self._keys_at(task, asked, rows, 0, done, sums.to(self.wide) if done else None)
        keys, at = keys.topk(min(stage.keep, rows.shape[1]), dim=1)
        return _shortlist(_packed(keys, sums.gather(1, at).float()).cpu().numpy())

    def _found(self, task: _Task, given: torch.Tensor) -> torch.Tensor:
        """Return the rows and scores of the plan in the form of :func:`_packed`, then three columns of checks.

        The columns are the worst score that the first stage kept and the bound of the other rows for :func:`_doubtful`,
        and the query's norm for :func:`_check`.
        """
        parts = []
        most = max(1, _SCORES // max(task.blocks.count, 8 * task.wanted))
        for some in given.tensor_split(-(-len(given) // most) or 1):
            asked = self._asked(task, some, rough=task.wanted < task.blocks.count)
            rows, ceiling = self._choice(task, asked)
            rows, scores, worst = self._stages(task, asked, rows)
            parts.append(_packed(rows, scores, worst, ceiling, asked.norms))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _asked(self, task: _Task, given: torch.Tensor, *, rough: bool) -> Asked:
        first, dims = task.plan.stages[0], [stage.dim for stage in task.plan.stages]
        chosen = self.copies.rough(task.blocks, first.dim, first.precision, task.metric) if rough else None
        if self.fused:
            from matryo.retrieve.engines.torch import kernels

            return kernels.asked(given, dims, self.copies.numbers((*dims, given.shape[1])), task.metric, chosen)
        return steps.asked(given, dims, task.metric, chosen, self.wide)

    def _choice(self, task: _Task, asked: Asked) -> tuple[torch.Tensor, torch.Tensor]:
        """Return candidates of the first stage (−1: none), and a bound on the score of every other row."""
        first, wanted, count = task.plan.stages[0], task.wanted, task.blocks.count
        if asked.rough is None:
            rows = torch.arange(count, device=self.device)
            rows = rows if task.mask is None else rows.masked_fill(~task.mask, -1)
            return rows.expand(len(asked.vectors), -1), torch.full_like(asked.norms, -math.inf)
        rough = self.copies.rough(task.blocks, first.dim, first.precision, task.metric)
        if task.mask is not None:
            rough = rough._replace(plus=rough.plus.masked_fill(~task.mask, -math.inf))
        values, rows = steps.likely(asked.rough, asked.by, rough, wanted, fused=self.fused)
        return rows.masked_fill(values.isneginf(), -1), values.amin(1, keepdim=True) + asked.error

    def _stages(
        self, task: _Task, asked: Asked, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the rows that the stages keep, best first, their scores, and the worst score that the first keeps."""
        *stages, last = task.plan.stages
        if last.precision == "int8":   # its scores are those of the codes
            stages.append(last)
        worst = before = None
        done = 0
        for number, stage in enumerate(stages):
            if number and stage.precision != stages[number - 1].precision:
                done = 0   # sums in int8 cannot be continued in full precision
            sums, keys = self._keys_at(task, asked, rows, number, done, before if done else None)
            keys, at = keys.topk(min(stage.keep, task.count, rows.shape[1]), dim=1, sorted=False)
            before, done, scores = sums.gather(1, at), stage.dim, steps.key_scores(keys)
            worst = scores.amin(1, keepdim=True) if worst is None else worst
            if stage.margin is not None and stage is not last and keys.shape[1] > last.keep:
                far = scores < scores.topk(last.keep, dim=1).values[:, -1:] - stage.margin
                keys = keys.masked_fill(far, NOTHING)
            rows = steps.key_rows(keys)
        if last.precision == "full":
            if stages and rows.shape[1] > _ALL * task.spare(last):   # float32 scores select the few to compute
                done = done if last.precision == stages[-1].precision else 0
                _, keys = self._keys_at(task, asked, rows, len(stages), done, before if done else None)
                rows = steps.key_rows(keys.topk(task.spare(last), dim=1, sorted=False).values)
            columns = self.copies.whole(task.blocks, last.dim, "full")[:, : last.dim]
            scores = steps.scores_at(columns, rows, asked.vectors[:, : last.dim], task.metric, self.wide)
        elif task.metric == "l2":
            scores = scores.clamp(max=0)   # rounding can produce negative squared distances
        rows, scores = steps.ranked(rows, scores.to(self.wide), min(last.keep, task.count))
        if worst is None:
            worst = scores[:, -1:].float()
            worst = worst.nextafter(torch.full_like(worst, -math.inf))   # rounded down
        return rows, scores, worst

    def _keys_at(
        self, task: _Task, asked: Asked, rows: torch.Tensor, number: int, done: int, before: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inner products of each query with its own rows up to a stage's dim, and the keys of the rows."""
        stage = task.plan.stages[number]
        columns = self.copies.whole(task.blocks, stage.dim, stage.precision)[:, done : stage.dim]
        norms = self.copies.norms(task.blocks, stage.dim, task.metric)
        given = columns, rows, asked.vectors[:, done : stage.dim], norms, asked.lengths[:, number], task.metric, before
        if self.fused:
            from matryo.retrieve.engines.torch.kernels import keys_at

            sums, keys = keys_at(*given)
            return sums, keys
        return steps.keys_at(*given, self.wide)


def _movable(queries: Array) -> torch.Tensor:
    """Return the queries as a tensor to upload: float16 stays float16, other dtypes become float32."""
    with np.errstate(over="ignore"):   # _check reports overflows, with the row
        array = queries if queries.dtype == np.float16 else queries.astype(np.float32, copy=False)
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))   # torch requires writable arrays


def _check(queries: Array, norms: Floats, metric: Metric) -> None:
    """Raise if a query has no valid score; the device computes the norms together with the hits."""
    if not np.isfinite(norms).all() or norms.max(initial=0) >= _LONG:
        with np.errstate(over="ignore"):
            checked_norms(queries.astype(np.float32), Nesting([queries.shape[1]]), "queries")
    if metric == "cosine":
        check_not_zero(norms)


def _packed(*parts: torch.Tensor) -> torch.Tensor:
    """Return the bits of all arguments side by side as one int32 tensor, for a single download."""
    return torch.cat([part.contiguous().view(torch.int32) for part in parts], 1)


def _doubtful(down: Array) -> Array:
    """Return the queries for which an unselected row may beat the worst that the first stage kept."""
    return np.flatnonzero(~(down[:, -3].view(np.float32) > down[:, -2].view(np.float32)))


def _shortlist(down: Array) -> Shortlist:
    """Return the shortlist that :func:`_packed` packed."""
    k = down.shape[1] // 3
    keys = down[:, : 2 * k].copy().view(np.int64)
    rows = key_rows(keys)
    return Shortlist(rows, np.where(rows < 0, np.float32(0), down[:, 2 * k :].view(np.float32)), key_scores(keys))
