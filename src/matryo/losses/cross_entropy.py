"""Nested cross-entropy (the paper's Eq. 1): Σ_m c_m · cross_entropy(logits at dim m, target).

The dims are never looped over in Python once there are logits: they are one more batch dimension, so the
number of kernel launches does not grow with the number of dims. Where the logits would be too many to keep,
an engine of :mod:`matryo.losses.engines` reduces them as they are computed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from matryo.errors import InputError
from matryo.losses.engines import choose, wide
from matryo.losses.engines.autograd import reduce
from matryo.losses.engines.contract import Scores
from matryo.losses.vectors import as_autocast, check_dims, check_vectors

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from matryo.nesting import Nesting

__all__ = ["cross_entropy_by_dim", "cross_entropy_of", "nested_cross_entropy", "prefix_logits", "weighed"]


def nested_cross_entropy(
    z: Tensor,
    weight: Tensor,
    target: Tensor,
    nesting: Nesting,
    bias: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    class_weight: Tensor | None = None,
    engine: str = "auto",
) -> Tensor:
    """The tied head's loss: Σ c_m · cross_entropy(z[:, :m] @ weight[:, :m].T + bias, target).

    Args:
        z: embeddings, [batch, d].
        weight: one classifier for all dims, [classes, d]; dim m uses its first m columns (MRL-E).
        target: class indices, [batch].
        nesting: the dims and their weights c_m.
        bias: [classes], the same at every dim.
        label_smoothing: as in torch, at each dim; so are ``ignore_index`` and ``class_weight``.
        engine: ``plain`` keeps all logits; ``triton`` (a GPU) and ``chunked`` (any device) compute them twice and
            keep none. ``auto`` is plain while the logits are few.

    >>> from matryo import Nesting
    >>> z, weight, target = torch.randn(4, 16), torch.randn(10, 16), torch.tensor([1, 2, 3, 4])
    >>> loss = nested_cross_entropy(z, weight, target, Nesting([16]))
    >>> torch.allclose(loss, F.cross_entropy(z @ weight.T, target))
    True
    """
    _check_widths(z, weight, nesting)
    losses = cross_entropy_of(
        Scores(z, weight, nesting, bias=bias),
        target,
        lambda: prefix_logits(z, weight, nesting, bias),
        label_smoothing=label_smoothing,
        ignore_index=ignore_index,
        class_weight=class_weight,
        engine=engine,
    )
    return weighed(losses, nesting)


def weighed(losses: Tensor, nesting: Nesting) -> Tensor:
    """Σ c_m · losses[m]."""
    own = type(losses) is torch.Tensor and not torch.compiler.is_compiling()   # nobody may keep what is only traced
    make = _weights if own else _weights.__wrapped__
    return (losses * make(nesting.weights, losses.dtype, losses.device)).sum()   # a matmul would be in bfloat16


@lru_cache(maxsize=256)   # made once, as a copy to a GPU can be no part of a recorded CUDA graph
def _weights(weights: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):   # what is made in it no backward pass may use
        return torch.tensor(weights, dtype=dtype, device=device)


def prefix_logits(z: Tensor, weight: Tensor, nesting: Nesting, bias: Tensor | None = None) -> Tensor:
    """The tied head's logits at every dim, [dims, batch, classes], for the cost of the full dim alone.

    Dim m_i differs from dim m_{i-1} by one block of columns, so the logits are running sums over blocks.
    """
    _check_widths(z, weight, nesting)
    blocks = [F.linear(z[..., low:high], weight[..., low:high]) for low, high in nesting.blocks]
    # A running sum in half precision would lose what the large dims add.
    if z.is_cuda:   # which waits for launches, so there are few
        stacked = torch.stack(blocks)
        logits = stacked.to(wide(stacked.dtype)).cumsum(0)
    else:
        logits = torch.stack(list(accumulate(block.to(wide(block.dtype)) for block in blocks)))
    return logits if bias is None else logits + bias


def cross_entropy_by_dim(
    logits: Tensor,
    target: Tensor,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    class_weight: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of [dims, batch, classes] logits against one target, as [dims] mean losses."""
    if logits.dim() != 3:
        got = f"shape {tuple(logits.shape)}"
        raise InputError("logits must be [dims, batch, classes]", got=got, cure="make them of embeddings [batch, d]")
    dims, batch, classes = logits.shape
    logits = logits.to(wide(logits.dtype))
    each = F.cross_entropy(
        logits.reshape(dims * batch, classes),
        target.repeat(dims),
        weight=class_weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
    )
    # No target left to count gives NaN, as it does in torch.
    return each.view(dims, batch).sum(1) / _count(target, each.dtype, ignore_index, class_weight).sum()


def cross_entropy_of(
    scores: Scores,
    target: Tensor,
    logits: Callable[[], Tensor],
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    class_weight: Tensor | None = None,
    engine: str = "auto",
) -> Tensor:
    """The same of scores that need not all exist at once; ``logits`` makes them, if the engine is plain."""
    _check(scores, target, label_smoothing, ignore_index, class_weight)
    engine, target = choose(scores, engine), target.long()
    if class_weight is not None:
        class_weight = class_weight.detach().to(wide(scores.x.dtype))
    if engine == "plain":
        return cross_entropy_by_dim(
            logits(), target,
            label_smoothing=label_smoothing, ignore_index=ignore_index, class_weight=class_weight,
        )  # fmt: skip
    x, y = as_autocast(scores.x, scores.y)
    scores, counted, share = replace(scores, x=x, y=y), target != ignore_index, None
    if label_smoothing:
        share = x.new_ones(len(y), dtype=wide(x.dtype)) if class_weight is None else class_weight
    wanted = target.where(target >= 0, len(y)).where(counted, -1)   # a wrong one is found where it is looked up
    parts = reduce(scores, wanted, share=share, engine=engine)
    each, count = parts.by_row - parts.at_target, counted
    if class_weight is not None:
        count = _count(target, parts.by_row.dtype, ignore_index, class_weight)
        each = count * each
    if share is not None:
        others = share.sum() * parts.by_row - parts.shared
        each = (1 - label_smoothing) * each + label_smoothing / len(y) * others
    return each.where(counted, 0).sum(1) / count.sum()


def _count(target: Tensor, dtype: torch.dtype, ignore_index: int, class_weight: Tensor | None) -> Tensor:
    """How much each example counts: 1 or the weight of its class, nothing if it is ignored."""
    counted = target != ignore_index
    if class_weight is None:
        return counted.to(dtype)
    return class_weight[target.where(counted, 0)] * counted.to(dtype)


def _check_widths(z: Tensor, weight: Tensor, nesting: Nesting) -> None:
    check_dims(nesting, z)
    if weight.shape[-1] < nesting.dim:
        raise InputError(
            f"weight must have a column for each of {nesting.dim} dimensions",
            got=f"shape {tuple(weight.shape)}",
            cure="pass [classes, d]",
        )


def _check(
    scores: Scores, target: Tensor, label_smoothing: float, ignore_index: int, class_weight: Tensor | None
) -> None:
    check_vectors(scores.x, scores.y, "z and weight", "[batch, d] and [classes, d]")
    wanted, kind = (scores.rows,), target.dtype
    if target.shape != wanted or kind.is_floating_point or kind.is_complex or kind == torch.bool:
        raise InputError(
            f"target must be {scores.rows} class indices, one for each embedding",
            got=f"{kind} of shape {tuple(target.shape)}",
            cure="pass integers of shape [batch]",
        )
    for name, one in (("target", target), ("bias", scores.bias), ("class_weight", class_weight)):
        if one is not None and one.device != scores.x.device:
            got = f"{one.device} and {scores.x.device}"
            raise InputError(f"{name} must be on the device of the embeddings", got=got, cure="move one of them")
    biases = (scores.columns,) if scores.tied else (len(scores.nesting), scores.columns)
    for name, one, shape in (("bias", scores.bias, biases), ("class_weight", class_weight, (scores.columns,))):
        if one is not None and one.shape != shape:
            raise InputError(
                f"{name} must have one number for each of the {scores.columns} classes",
                got=f"shape {tuple(one.shape)}",
                cure="pass as many as weight has rows",
            )
    if not 0 <= label_smoothing <= 1:
        raise InputError("label_smoothing must lie in 0 … 1", got=label_smoothing, cure="0.1 is usual")
    if target.device.type == "cpu" and not torch.compiler.is_compiling():   # a GPU would have to be waited for
        if class_weight is not None and bool((class_weight < 0).any()):
            raise InputError("class weights must not be negative", got=float(class_weight.min()), cure="use 0 or more")
        wrong = target[((target < 0) | (target >= scores.columns)) & (target != ignore_index)]
        if len(wrong):
            raise InputError(
                f"targets must lie in 0 … {scores.columns - 1}",
                got=int(wrong[0]),
                cure="number the classes from 0, or pass ignore_index",
            )
