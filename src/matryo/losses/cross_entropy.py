"""Nested cross-entropy (the paper's Eq. 1): Σ_m c_m · cross_entropy(logits at dim m, target).

The dims are never looped over in Python once there are logits: they are one more batch dimension, so the
number of kernel launches does not grow with the number of dims.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor

    from matryo.nesting import Nesting

__all__ = ["cross_entropy_by_dim", "nested_cross_entropy", "prefix_logits"]


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
) -> Tensor:
    """The tied head's loss: Σ c_m · cross_entropy(z[:, :m] @ weight[:, :m].T + bias, target).

    Args:
        z: embeddings, [batch, d].
        weight: one classifier for all dims, [classes, d]; dim m uses its first m columns (MRL-E).
        target: class indices, [batch].
        nesting: the dims and their weights c_m.
        bias: [classes], the same at every dim.

    >>> from matryo import Nesting
    >>> z, weight, target = torch.randn(4, 16), torch.randn(10, 16), torch.tensor([1, 2, 3, 4])
    >>> loss = nested_cross_entropy(z, weight, target, Nesting([16]))
    >>> torch.allclose(loss, F.cross_entropy(z @ weight.T, target))
    True
    """
    losses = cross_entropy_by_dim(
        prefix_logits(z, weight, nesting, bias),
        target,
        label_smoothing=label_smoothing,
        ignore_index=ignore_index,
        class_weight=class_weight,
    )
    weights = torch.tensor(nesting.weights, dtype=losses.dtype, device=losses.device)
    return (losses * weights).sum()   # not a matmul: autocast would round it to bfloat16


def prefix_logits(z: Tensor, weight: Tensor, nesting: Nesting, bias: Tensor | None = None) -> Tensor:
    """The tied head's logits at every dim, [dims, batch, classes], for the cost of the full dim alone.

    Dim m_i differs from dim m_{i-1} by one block of columns, so the logits are running sums over blocks.
    """
    nesting.check_fits(min(z.shape[-1], weight.shape[-1]))
    blocks = [F.linear(z[..., low:high], weight[..., low:high]) for low, high in nesting.blocks]
    stacked = torch.stack(blocks)
    if stacked.dtype in (torch.bfloat16, torch.float16):
        stacked = stacked.float()   # a running sum in half precision would lose what the large dims add
    logits = stacked.cumsum(0)
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
    dims, batch, classes = logits.shape
    each = F.cross_entropy(
        logits.reshape(dims * batch, classes),
        target.repeat(dims),
        weight=class_weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
    )
    counted = target != ignore_index
    share = counted.to(each.dtype)
    if class_weight is not None:
        share = share * class_weight[target.where(counted, 0)]
    # No target left to count gives NaN, as it does in torch.
    return each.view(dims, batch).sum(1) / share.sum()
