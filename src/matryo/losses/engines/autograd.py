"""What a nested loss reads of its scores, as differentiable tensors of [dims, rows]: the loss itself is plain torch.

The gradient of anything made of a :class:`Reduced` is the pull of its parts, so an engine's two functions are all
that it takes. They are operators of torch, which a compiled model calls without looking inside.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from matryo.losses.engines import wide
from matryo.losses.engines.contract import Pull, Scores
from matryo.losses.engines.targets import scores_shared
from matryo.nesting import Nesting

__all__ = ["Reduced", "reduce"]

_MODULES = {"chunked": "matryo.losses.engines.chunked", "triton": "matryo.losses.engines.triton.engine"}
_OPERANDS = (
    "Tensor x, Tensor y, Tensor? bias, Tensor? left, Tensor? right, Tensor target, Tensor? share, "
    "int[] dims, bool tied, bool over_rows, str engine"
)


@dataclass(frozen=True, eq=False)
class Reduced:
    """In float32 (float64 for vectors in float64)."""

    by_row: Tensor
    """The log-sum-exp of each row's scores, [dims, rows]."""
    at_target: Tensor
    """The score of each row's target, [dims, rows]; 0 for the target −1."""
    by_column: Tensor
    """The log-sum-exp of each column's scores, [dims, columns], or nothing unless it was asked for."""
    shared: Tensor
    """Σ_v share[v] · score, [dims, rows], or nothing without a share."""


def reduce(
    scores: Scores, target: Tensor, *, share: Tensor | None = None, over_rows: bool = False, engine: str
) -> Reduced:
    """The parts of ``scores`` that a loss reads, computed by ``engine``; gradients reach all that scores are made of.

    A loss must grow with all log-sum-exps of a dim, or shrink with all: engines rely on the one sign.

    Args:
        scores: of any kind.
        target: the column each row belongs to, [rows] of int64; −1 for none.
        share: [columns]; only of scores without ``left`` and ``right``, and without gradient.
        over_rows: reduce the scores of each column, too.
        engine: ``chunked`` or ``triton``.
    """
    dims = list(scores.nesting.dims)
    if not (scores.rows and scores.columns):   # nothing to hand to a GPU
        engine = "chunked"
    operands = (scores.x, scores.y, scores.bias, scores.left, scores.right, target, share)
    call: Any = torch.ops.matryo.reduce if torch.compiler.is_compiling() else _Reduce.apply
    return Reduced(*call(*operands, dims, scores.tied, over_rows, engine))


# Defined by hand: torch.library.custom_op looks in every call for outputs that are inputs, and there are none.
torch.library.define("matryo::reduce", f"({_OPERANDS}) -> (Tensor, Tensor, Tensor, Tensor)")
torch.library.define(
    "matryo::reduce_backward",
    f"({_OPERANDS}, Tensor by_row, Tensor at_target, Tensor by_column, Tensor soft, Tensor hard, Tensor soft_right, "
    "Tensor even, bool[] needed) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def _reduce(*operands: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores, target, share, over_rows, engine = _unpack(*operands)
    with _as_it_is(scores.x):
        by_row, at_target, by_column = engine.reductions(scores, target, over_rows)
        shared = None if share is None else scores_shared(scores, share)
        return by_row, at_target, _or_nothing(by_column, by_row), _or_nothing(shared, by_row)


def _reduce_backward(*operands: Any) -> tuple[Tensor, ...]:
    *first, by_row, at_target, by_column, soft, hard, soft_right, even, needed = operands
    scores, target, share, over_rows, engine = _unpack(*first)
    pull = Pull(
        by_row, soft.contiguous(), -hard.contiguous(), target, at_target,
        by_column if over_rows else None, soft_right.contiguous() if over_rows else None,
        None if share is None else -even.contiguous(), share,
    )  # fmt: skip
    with _as_it_is(scores.x):
        found = engine.gradients(scores, pull, x=needed[0], y=needed[1], bias=needed[2])
    left, right = (_by_value(*pair) for pair in ((found.left, scores.left), (found.right, scores.right)))
    return tuple(_or_nothing(one, by_row) for one in (found.x, found.y, found.bias, left, right))


def _unpack(
    x: Tensor, y: Tensor, bias: Tensor | None, left: Tensor | None, right: Tensor | None,
    target: Tensor, share: Tensor | None, dims: list[int], tied: bool, over_rows: bool, engine: str,
) -> tuple[Scores, Tensor, Tensor | None, bool, Any]:  # fmt: skip
    """What the operators were called with, all but the vectors made contiguous: engines may rely on it."""
    bias, left, right, share = (
        None if one is None else one.to(wide(x.dtype)).contiguous() for one in (bias, left, right, share)
    )
    scores = Scores(x, y, _nesting(tuple(dims)), tied, bias, left, right)
    return scores, target.contiguous(), share, over_rows, _module(engine)


_nesting = lru_cache(maxsize=256)(Nesting)   # a GPU waits for whoever checks the same dims at every step


@lru_cache
def _module(engine: str) -> Any:
    return importlib.import_module(_MODULES[engine])


def _by_value(by_logarithm: Tensor | None, scale: Tensor | None) -> Tensor | None:
    """The gradient by a scale from the one by its logarithm; 0 where the scale is 0, as no score can move there."""
    if by_logarithm is None or scale is None:
        return None
    return (by_logarithm / scale).where(scale != 0, 0)


def _or_nothing(one: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0) if one is None else one.contiguous()   # an operator returns tensors, always alike


def _as_it_is(x: Tensor) -> torch.autocast:
    """Autocast, which reaches into operators, has been answered before."""
    return torch.autocast(x.device.type, enabled=False)


def _shapes(*operands: Any) -> tuple[Tensor, ...]:
    x, y, *_, share, dims, _, over_rows, _ = operands
    new, dtype = x.new_empty, wide(x.dtype)
    of_rows = [new(len(dims), x.shape[0], dtype=dtype) for _ in range(3)]
    by_column = new(len(dims), y.shape[0], dtype=dtype) if over_rows else new(0, dtype=dtype)
    return of_rows[0], of_rows[1], by_column, new(0, dtype=dtype) if share is None else of_rows[2]


def _backward_shapes(*operands: Any) -> tuple[Tensor, ...]:
    x, y, bias, left, right, *_, needed = operands
    dtype = wide(x.dtype)
    wanted = [x if needed[0] else None, y if needed[1] else None, bias if needed[2] else None, left, right]
    dtypes = (x.dtype, y.dtype, dtype, dtype, dtype)
    return tuple(
        x.new_empty(0 if one is None else one.shape, dtype=dtype if one is None else own)
        for one, own in zip(wanted, dtypes, strict=True)
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:7], *output[:3])
    ctx.options = inputs[7:]


def _differentiate(
    ctx: Any, by_row: Tensor, at_target: Tensor, by_column: Tensor, shared: Tensor, *, call: Any = None
) -> tuple[Any, ...]:
    *operands, row_sums, scored, column_sums = ctx.saved_tensors
    needed = list(ctx.needs_input_grad[:5])
    pulls = (row_sums, scored, column_sums, by_row, at_target, by_column, shared)
    found = (call or torch.ops.matryo.reduce_backward)(*operands, *ctx.options, *pulls, needed[:3])
    given = [one if need else None for one, need in zip(found, needed, strict=True)]
    if given[2] is not None:
        given[2] = given[2].to(operands[2].dtype)
    return *given, *(None,) * 6


class _Reduce(torch.autograd.Function):
    """The same without an operator around it, which costs a slow host as much as a launch or two."""

    @staticmethod
    def forward(ctx: Any, *operands: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        found = _reduce(*operands)
        _save(ctx, operands, found)
        return found

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Any, ...]:
        # Who asks for a graph of it is refused, by the operator.
        return _differentiate(ctx, *given, call=None if torch.is_grad_enabled() else _reduce_backward)


def _refuse(*_: Any) -> None:
    raise RuntimeError("a nested loss has no second derivative (matryo::reduce_backward); engine='plain' has")


torch.library.impl("matryo::reduce", "default", _reduce)
torch.library.impl("matryo::reduce_backward", "default", _reduce_backward)
torch.library.register_fake("matryo::reduce", _shapes)
torch.library.register_fake("matryo::reduce_backward", _backward_shapes)
torch.library.register_autograd("matryo::reduce", _differentiate, setup_context=_save)
torch.library.register_autograd("matryo::reduce_backward", _refuse)
