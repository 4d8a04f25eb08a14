"""Connect the engines to autograd: reductions of the scores as differentiable [dims, rows] tensors.

A loss is written in plain torch on top of :class:`Reduced`. Backward turns the upstream gradients of its fields into a
:class:`ScoreGradient`, which the engine's ``gradients`` function propagates to the vectors. Both directions are torch
operators, so ``torch.compile`` treats them as opaque nodes of one graph.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from matryo.losses.engines import wide
from matryo.losses.engines.contract import ScoreGradient, Scores
from matryo.losses.engines.targets import scores_shared
from matryo.nesting import Nesting

_MODULES = {"chunked": "matryo.losses.engines.chunked", "triton": "matryo.losses.engines.triton.engine"}
_OPERANDS = (
    "Tensor x, Tensor y, Tensor? bias, Tensor? left, Tensor? right, Tensor target, Tensor? share, "
    "int[] dims, bool tied, bool over_rows, int[] teachers, str engine"
)


@dataclass(frozen=True, eq=False)
class Reduced:
    """Reductions of the scores, in float32 (float64 for float64 vectors)."""

    row_lse: Tensor
    """Log-sum-exp of each row's scores, [dims, rows]."""
    at_target: Tensor
    """Score of each row's target, [dims, rows]; 0 where the target is −1."""
    column_lse: Tensor
    """Log-sum-exp of each column's scores, [dims, columns]; empty unless ``over_rows``."""
    shared: Tensor
    """Σ_v share[v] · s[i, b, v], [dims, rows]; empty without ``share``."""
    at_teacher: Tensor
    """Mean of the scores of each dim but the largest under the softmax of its teacher, which is a constant,
    [dims − 1, rows]; empty without ``teachers``."""


def reduce(
    scores: Scores, target: Tensor, *, share: Tensor | None = None, over_rows: bool = False,
    teachers: Sequence[int] | None = None, engine: str,
) -> Reduced:  # fmt: skip
    """Reduce ``scores`` with ``engine``; gradients flow to every tensor of ``scores``.

    Within one dim, the upstream gradients of all log-sum-exps must have the same sign: engines rely on it.

    Args:
        scores: tied or separate, with or without bias and scales.
        target: the target column of each row, [rows], int64; −1 for none.
        share: the column weights of label smoothing, [columns]. Not differentiable, and only for scores without
            ``left`` and ``right``.
        over_rows: also compute the log-sum-exp per column.
        teachers: the number of the teacher of each dim but the largest; only for the engine ``chunked``.
        engine: ``chunked`` or ``triton``.
    """
    dims = list(scores.nesting.dims)
    if not (scores.rows and scores.columns):   # an empty grid cannot be launched
        engine = "chunked"
    operands = (scores.x, scores.y, scores.bias, scores.left, scores.right, target, share)
    call: Any = torch.ops.matryo.reduce if torch.compiler.is_compiling() else _Reduce.apply
    teachers = list(teachers or ())
    return Reduced(*call(*operands, dims, scores.tied, over_rows, teachers, engine))


# Not torch.library.custom_op: it checks on every call whether an output aliases an input, and none does.
torch.library.define("matryo::reduce", f"({_OPERANDS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
torch.library.define(
    "matryo::reduce_backward",
    f"({_OPERANDS}, Tensor row_lse, Tensor at_target, Tensor column_lse, Tensor row_grad, Tensor target_grad, "
    "Tensor column_grad, Tensor shared_grad, Tensor teacher_grad, bool[] needed) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def _reduce(*operands: Any) -> tuple[Tensor, ...]:
    scores, target, share, over_rows, teachers, engine = _unpack(*operands)
    with _no_autocast(scores.x):
        row_lse, at_target, column_lse = engine.reductions(scores, target, over_rows)
        shared = None if share is None else scores_shared(scores, share)
        taught = engine.teaching(scores, row_lse, teachers) if teachers else None
        return row_lse, at_target, *(_or_empty(part, row_lse) for part in (column_lse, shared, taught))


def _reduce_backward(*operands: Any) -> tuple[Tensor, ...]:
    *first, row_lse, at_target, column_lse, row_grad, target_grad, column_grad = operands[:-3]
    shared_grad, teacher_grad, needed = operands[-3:]
    scores, target, share, over_rows, teachers, engine = _unpack(*first)
    grad = ScoreGradient(
        row_lse, row_grad.contiguous(), -target_grad.contiguous(), target, at_target,
        column_lse if over_rows else None, column_grad.contiguous() if over_rows else None,
        None if share is None else -shared_grad.contiguous(), share,
        -teacher_grad.contiguous() if teachers else None, teachers,
    )  # fmt: skip
    with _no_autocast(scores.x):
        results = engine.gradients(scores, grad, x=needed[0], y=needed[1], bias=needed[2])
    left, right = (_from_log_scale(*pair) for pair in ((results.left, scores.left), (results.right, scores.right)))
    return tuple(_or_empty(tensor, row_lse) for tensor in (results.x, results.y, results.bias, left, right))


def _unpack(
    x: Tensor, y: Tensor, bias: Tensor | None, left: Tensor | None, right: Tensor | None,
    target: Tensor, share: Tensor | None, dims: list[int], tied: bool, over_rows: bool, teachers: list[int],
    engine: str,
) -> tuple[Scores, Tensor, Tensor | None, bool, tuple[int, ...], Any]:  # fmt: skip
    """The operators' arguments as objects. All tensors but x and y are contiguous, and engines rely on it."""
    bias, left, right, share = (
        None if tensor is None else tensor.to(wide(x.dtype)).contiguous() for tensor in (bias, left, right, share)
    )
    scores = Scores(x, y, _nesting(tuple(dims)), tied, bias, left, right)
    return scores, target.contiguous(), share, over_rows, tuple(teachers), _module(engine)


_nesting = lru_cache(maxsize=256)(Nesting)   # validating the same dims at every step would delay launches


@lru_cache
def _module(engine: str) -> Any:
    return importlib.import_module(_MODULES[engine])


def _from_log_scale(log_scale_grad: Tensor | None, scale: Tensor | None) -> Tensor | None:
    """Convert the gradient with respect to log(scale) to one with respect to scale; 0 where scale is 0."""
    if log_scale_grad is None or scale is None:
        return None
    return (log_scale_grad / scale).where(scale != 0, 0)


def _or_empty(tensor: Tensor | None, like: Tensor) -> Tensor:
    # An operator must return tensors, with the layout that its fake implementation declares.
    return like.new_empty(0) if tensor is None else tensor.contiguous()


def _no_autocast(x: Tensor) -> torch.autocast:
    """Disable autocast inside the operators: the vectors were converted before (``as_autocast``)."""
    return torch.autocast(x.device.type, enabled=False)


def _fake_reduce(*operands: Any) -> tuple[Tensor, ...]:
    x, y, *_, share, dims, _, over_rows, teachers, _ = operands
    new, dtype = x.new_empty, wide(x.dtype)
    row_shapes = [new(len(dims), x.shape[0], dtype=dtype) for _ in range(3)]
    taught = new(len(teachers), x.shape[0], dtype=dtype) if teachers else new(0, dtype=dtype)
    column_lse = new(len(dims), y.shape[0], dtype=dtype) if over_rows else new(0, dtype=dtype)
    shared = new(0, dtype=dtype) if share is None else row_shapes[2]
    return row_shapes[0], row_shapes[1], column_lse, shared, taught


def _fake_backward(*operands: Any) -> tuple[Tensor, ...]:
    x, y, bias, left, right, *_, needed = operands
    dtype = wide(x.dtype)
    wanted = [x if needed[0] else None, y if needed[1] else None, bias if needed[2] else None, left, right]
    dtypes = (x.dtype, y.dtype, dtype, dtype, dtype)
    return tuple(
        x.new_empty(0 if tensor is None else tensor.shape, dtype=dtype if tensor is None else own_dtype)
        for tensor, own_dtype in zip(wanted, dtypes, strict=True)
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:7], *output[:3])
    ctx.options = inputs[7:]


def _backward(
    ctx: Any, row_lse: Tensor, at_target: Tensor, column_lse: Tensor, shared: Tensor, at_teacher: Tensor, *,
    call: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the gradients of the inputs, given those of the five outputs."""
    operands, outputs = ctx.saved_tensors[:7], ctx.saved_tensors[7:]
    needed = list(ctx.needs_input_grad[:5])
    upstream = (row_lse, at_target, column_lse, shared, at_teacher)
    results = (call or torch.ops.matryo.reduce_backward)(*operands, *ctx.options, *outputs, *upstream, needed[:3])
    grads = [result if need else None for result, need in zip(results, needed, strict=True)]
    if grads[2] is not None:
        grads[2] = grads[2].to(operands[2].dtype)
    return *grads, *(None,) * 7


class _Reduce(torch.autograd.Function):
    """``matryo::reduce`` without the operator's dispatch, whose host time is that of one or two kernel launches."""

    @staticmethod
    def forward(ctx: Any, *operands: Any) -> tuple[Tensor, ...]:
        results = _reduce(*operands)
        _setup_context(ctx, operands, results)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        # With create_graph=True, call the operator: its backward raises the error on second derivatives.
        return _backward(ctx, *grads, call=None if torch.is_grad_enabled() else _reduce_backward)


def _no_second_derivative(*_: Any) -> None:
    raise RuntimeError("nested losses have no second derivative (got matryo::reduce_backward): use engine='plain'")


torch.library.impl("matryo::reduce", "default", _reduce)
torch.library.impl("matryo::reduce_backward", "default", _reduce_backward)
torch.library.register_fake("matryo::reduce", _fake_reduce)
torch.library.register_fake("matryo::reduce_backward", _fake_backward)
torch.library.register_autograd("matryo::reduce", _backward, setup_context=_setup_context)
torch.library.register_autograd("matryo::reduce_backward", _no_second_derivative)
