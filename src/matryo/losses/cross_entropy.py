"""Nested cross-entropy (the paper's Eq. 1): Σ_m c_m · cross_entropy(logits at dim m, target).

The dims are one more batch axis of the logits, so the number of kernel launches does not grow with the number of dims.
If the logits are too many to store, an engine of :mod:`matryo.losses.engines` reduces them as they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from matryo.arguments import as_number, checked
from matryo.errors import InputError
from matryo.losses.engines import choose, wide
from matryo.losses.engines.autograd import reduce
from matryo.losses.engines.contract import Scores
from matryo.losses.self_distil import SelfDistil
from matryo.losses.vectors import as_autocast, check_dims, check_vectors
from matryo.nesting import Nesting


@checked
def nested_cross_entropy(
    z: Tensor,
    weight: Tensor,
    target: Tensor,
    nesting: Nesting | Iterable[int],
    bias: Tensor | None = None,
    *,
    label_smoothing: float | Sequence[float] = 0.0,
    ignore_index: int = -100,
    class_weight: Tensor | None = None,
    self_distil: float | SelfDistil = 0.0,
    engine: str = "auto",
) -> Tensor:
    """The loss of a tied head: Σ c_m · cross_entropy(z[:, :m] @ weight[:, :m].T + bias, target).

    Args:
        z: embeddings, [batch, d].
        weight: one classifier for all dims, [classes, d]; dim m uses its first m columns (MRL-E).
        target: class indices, [batch].
        nesting: the dims and their weights c_m, or a list of dims.
        bias: [classes], the same at every dim.
        label_smoothing: as in ``torch.nn.functional.cross_entropy``; one number, or one per dim.
        ignore_index: targets of this value do not count.
        class_weight: [classes], as ``weight`` in torch.
        self_distil: a share of the loss of each smaller dim imitates the probabilities at the full dim instead of the
            label; a number, or a :class:`~matryo.losses.SelfDistil`.
        engine: ``plain`` stores all logits; ``triton`` (GPU) and ``chunked`` (any device) recompute them in the
            backward pass instead. ``auto`` uses ``plain`` while the logits are few.

    >>> from matryo import Nesting
    >>> z, weight, target = torch.randn(4, 16), torch.randn(10, 16), torch.tensor([1, 2, 3, 4])
    >>> loss = nested_cross_entropy(z, weight, target, Nesting([16]))
    >>> torch.allclose(loss, F.cross_entropy(z @ weight.T, target))
    True
    """
    nesting = _check_widths(z, weight, nesting)
    losses = cross_entropy_of(
        Scores(z, weight, nesting, bias=bias),
        target,
        lambda: prefix_logits(z, weight, nesting, bias),
        label_smoothing=label_smoothing,
        ignore_index=ignore_index,
        class_weight=class_weight,
        self_distil=self_distil,
        engine=engine,
    )
    return weighed(losses, nesting)


def weighed(losses: Tensor, nesting: Nesting) -> Tensor:
    """Σ c_m · losses[m]."""
    return (losses * _weights_of(nesting.weights, losses)).sum()   # autocast would change a matmul


def _weights_of(weights: tuple[float, ...], like: Tensor) -> Tensor:
    """Numbers as a tensor, with the dtype and device of ``like``."""
    real = type(like) is torch.Tensor and not torch.compiler.is_compiling()   # a traced tensor must not be cached
    make = _weights if real else _weights.__wrapped__
    return make(weights, like.dtype, like.device)


@lru_cache(maxsize=256)   # cached, because a copy from host to GPU cannot be recorded in a CUDA graph
def _weights(weights: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):   # inference tensors cannot be used in a backward pass
        return torch.tensor(weights, dtype=dtype, device=device)


@checked
def prefix_logits(
    z: Tensor, weight: Tensor, nesting: Nesting | Iterable[int], bias: Tensor | None = None
) -> Tensor:
    """The logits of a tied head at every dim, [dims, batch, classes], for the cost of the largest dim alone.

    Dim m_i differs from dim m_{i-1} by one block of columns, so the logits are cumulative sums over blocks.
    """
    nesting = _check_widths(z, weight, nesting)
    check_vectors(z.reshape(-1, z.shape[-1]), weight, "z and weight", "[…, d] and [classes, d]")
    if bias is not None and bias.shape not in ((), (1,), weight.shape[:1]):
        got = f"shape {tuple(bias.shape)}"
        raise InputError("bias must have one value per class", got=got, cure=f"pass shape {tuple(weight.shape[:1])}")
    blocks = [F.linear(z[..., low:high], weight[..., low:high]) for low, high in nesting.blocks]
    # In float32: a cumulative sum in half precision would round away what the large dims add.
    if z.is_cuda:   # one cumsum: fewer kernel launches
        stacked = torch.stack(blocks)
        logits = stacked.to(wide(stacked.dtype)).cumsum(0)
    else:
        logits = torch.stack(list(accumulate(block.to(wide(block.dtype)) for block in blocks)))
    return logits if bias is None else logits + bias


@checked
def cross_entropy_by_dim(
    logits: Tensor,
    target: Tensor,
    *,
    label_smoothing: float | Sequence[float] = 0.0,
    ignore_index: int = -100,
    class_weight: Tensor | None = None,
    self_distil: float | SelfDistil = 0.0,
) -> Tensor:
    """The mean cross-entropy at each dim, [dims], of logits [dims, batch, classes] against one target [batch]."""
    if logits.dim() != 3:
        got = f"shape {tuple(logits.shape)}"
        raise InputError("logits must be [dims, batch, classes]", got=got, cure="use prefix_logits(z, weight, nesting)")
    dims, batch, classes = logits.shape
    smoothing, distil = _by_dim(label_smoothing, dims), SelfDistil.of(self_distil)
    _check_target(target, batch, classes, logits.device, smoothing, ignore_index, class_weight)
    logits, target = logits.to(wide(logits.dtype)), target.long()
    if class_weight is not None:
        class_weight = class_weight.detach().to(logits.dtype)
    weights = _example_weights(target, logits.dtype, ignore_index, class_weight)
    if distil is None and len(set(smoothing)) == 1:
        losses = F.cross_entropy(
            logits.reshape(dims * batch, classes),
            target.repeat(dims),
            weight=class_weight,
            ignore_index=ignore_index,
            label_smoothing=smoothing[0],
            reduction="none",
        ).view(dims, batch)
    else:
        shares, counted = logits.log_softmax(-1), target != ignore_index
        at_target = shares.gather(-1, target.where(counted, 0).expand(dims, batch)[..., None])[..., 0]
        share = shares.new_ones(classes) if class_weight is None else class_weight
        losses = _smoothed(-at_target * weights, -(shares @ share), smoothing, classes)
        if distil is not None:
            losses = distil.mixed(losses, lambda: weights * distil.soft(logits, shares))
        losses = losses.where(counted, 0)
    # If all targets are ignored the result is NaN, as in torch.
    return losses.sum(1) / weights.sum()


def _by_dim(label_smoothing: float | Sequence[float], dims: int) -> tuple[float, ...]:
    """The label smoothing at each dim."""
    many = isinstance(label_smoothing, list | tuple)
    given: tuple[Any, ...] = tuple(label_smoothing) if many else (label_smoothing,) * dims   # type: ignore[arg-type]
    if len(given) != dims:
        rule, got = f"label_smoothing must be one number, or one per dim ({dims})", f"{len(given)} numbers"
        raise InputError(rule, got=got, cure="use label_smoothing=0.1")
    cure = "use 0.1, a common value"
    return tuple(v if type(v) is float else as_number(v, "label_smoothing", 0, 1, cure=cure) for v in given)


def _smoothed(losses: Tensor, uniform: Tensor, smoothing: tuple[float, ...], classes: int) -> Tensor:
    """The losses of the labels and the sums over all classes, both [dims, batch], as one loss at each dim."""
    if len(set(smoothing)) == 1:
        return (1 - smoothing[0]) * losses + smoothing[0] / classes * uniform
    by_dim = _weights_of(smoothing, losses)[:, None]
    return (1 - by_dim) * losses + by_dim / classes * uniform


@checked
def cross_entropy_of(
    scores: Scores,
    target: Tensor,
    logits: Callable[[], Tensor],
    *,
    label_smoothing: float | Sequence[float] = 0.0,
    ignore_index: int = -100,
    class_weight: Tensor | None = None,
    self_distil: float | SelfDistil = 0.0,
    engine: str = "auto",
) -> Tensor:
    """The mean cross-entropy at each dim, [dims], of scores that may be too many to store.

    ``logits`` returns the stored scores [dims, batch, classes]; only the plain engine calls it.
    """
    smoothing, distil = _by_dim(label_smoothing, len(scores.nesting)), SelfDistil.of(self_distil)
    _check(scores, target, smoothing, ignore_index, class_weight)
    if len(scores.nesting) == 1:
        distil = None
    engine = choose(scores, engine, teaching=distil is not None)
    if engine == "plain":
        return cross_entropy_by_dim(
            logits(), target, label_smoothing=label_smoothing, ignore_index=ignore_index, class_weight=class_weight,
            self_distil=distil or 0.0,
        )  # fmt: skip
    target = target.long()
    if class_weight is not None:
        class_weight = class_weight.detach().to(wide(scores.x.dtype))
    x, y = as_autocast(scores.x, scores.y)
    scores, counted, share = replace(scores, x=x, y=y), target != ignore_index, None
    if any(smoothing):
        share = x.new_ones(len(y), dtype=wide(x.dtype)) if class_weight is None else class_weight
    targets = target.where(target >= 0, len(y)).where(counted, -1)   # the lookup reports one out of range
    teachers = None if distil is None or distil.temperature != 1 else distil.teachers(len(scores.nesting))
    parts = reduce(scores, targets, share=share, teachers=teachers, engine=engine)
    losses, weights = parts.row_lse - parts.at_target, counted
    if class_weight is not None:
        weights = _example_weights(target, parts.row_lse.dtype, ignore_index, class_weight)
        losses = weights * losses
    if share is not None:
        losses = _smoothed(losses, share.sum() * parts.row_lse - parts.shared, smoothing, len(y))
    if distil is not None:
        if teachers is None:   # at another temperature, all scores differ
            cooler = replace(scores, x=x / distil.temperature, bias=_divided(scores.bias, distil.temperature))
            parts = reduce(cooler, targets, teachers=distil.teachers(len(scores.nesting)), engine=engine)
        losses = distil.mixed(losses, lambda: weights * (parts.row_lse[:-1] - parts.at_teacher))
    return losses.where(counted, 0).sum(1) / weights.sum()


def _divided(bias: Tensor | None, temperature: float) -> Tensor | None:
    return None if bias is None else bias / temperature


def _example_weights(target: Tensor, dtype: torch.dtype, ignore_index: int, class_weight: Tensor | None) -> Tensor:
    """The weight of each example, [batch]: 1 or the weight of its class; 0 if it is ignored."""
    counted = target != ignore_index
    if class_weight is None:
        return counted.to(dtype)
    return class_weight[target.where(counted, 0)] * counted.to(dtype)


def _check_widths(z: Tensor, weight: Tensor, dims: Nesting | Iterable[int]) -> Nesting:
    nesting = check_dims(dims, z)
    if weight.dim() == 0 or weight.shape[-1] < nesting.dim:
        rule = f"weight must have at least {nesting.dim} columns, the largest dim"
        raise InputError(rule, got=f"shape {tuple(weight.shape)}", cure="pass weight as [classes, d]")
    return nesting


def _check(
    scores: Scores, target: Tensor, smoothing: tuple[float, ...], ignore_index: int, class_weight: Tensor | None
) -> None:
    check_vectors(scores.x, scores.y, "z and weight", "[batch, d] and [classes, d]")
    device, classes = scores.x.device, scores.columns
    _check_target(target, scores.rows, classes, device, smoothing, ignore_index, class_weight)
    _check_per_class("bias", scores.bias, (classes,) if scores.tied else (len(scores.nesting), classes), device)


def _check_per_class(name: str, tensor: Tensor | None, shape: tuple[int, ...], device: torch.device) -> None:
    if tensor is not None and tensor.device != device:
        got = f"{tensor.device} and {device}"
        raise InputError(f"{name} must be on the device of the embeddings", got=got, cure="move it with .to()")
    if tensor is not None and tensor.shape != shape:
        rule = f"{name} must have one value per class ({shape[-1]} classes)"
        raise InputError(rule, got=f"shape {tuple(tensor.shape)}", cure=f"pass shape {shape}")


def _check_target(
    target: Tensor, rows: int, classes: int, device: torch.device, smoothing: tuple[float, ...], ignore_index: int,
    class_weight: Tensor | None,
) -> None:  # fmt: skip
    kind = target.dtype
    if target.shape != (rows,) or kind.is_floating_point or kind.is_complex or kind == torch.bool:
        rule = f"target must be {rows} class indices, one per embedding"
        got = f"{kind} of shape {tuple(target.shape)}"
        raise InputError(rule, got=got, cure="pass integers of shape [batch]")
    if target.device != device:
        got = f"{target.device} and {device}"
        raise InputError("target must be on the device of the embeddings", got=got, cure="move it with .to()")
    _check_per_class("class_weight", class_weight, (classes,), device)
    for value in smoothing:
        if not 0 <= value <= 1:
            raise InputError("label_smoothing must be between 0 and 1", got=value, cure="use 0.1, a common value")
    if target.device.type == "cpu" and not torch.compiler.is_compiling():   # on a GPU the checks would synchronise
        if class_weight is not None and bool((class_weight < 0).any()):
            raise InputError("class weights must not be negative", got=float(class_weight.min()), cure="use 0 or more")
        wrong = target[((target < 0) | (target >= classes)) & (target != ignore_index)]
        if len(wrong):
            rule = f"targets must be between 0 and {classes - 1}"
            raise InputError(rule, got=int(wrong[0]), cure="number the classes from 0, or pass ignore_index")
