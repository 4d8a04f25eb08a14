"""Nested contrastive loss: Σ_m c_m · InfoNCE of the re-normalised prefixes, at every dim from one product.

The similarity of two prefixes is a running sum over blocks, like any product, divided by the norms of the prefixes;
the norms, the temperature and their gradients are numbers by row and by column that surround the product.
"""

from __future__ import annotations

import importlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed

from matryo.errors import InputError
from matryo.losses.cross_entropy import cross_entropy_by_dim, prefix_logits, weighed
from matryo.losses.engines import HAS_TRITON, choose, wide
from matryo.losses.engines.autograd import reduce
from matryo.losses.engines.contract import Scores
from matryo.losses.gather import check_even, gather_rows
from matryo.losses.vectors import as_autocast, check_dims, check_vectors

if TYPE_CHECKING:
    from matryo.nesting import Nesting

__all__ = ["contrastive_by_dim", "inverse_norms", "nested_contrastive"]


def nested_contrastive(
    a: Tensor,
    b: Tensor,
    nesting: Nesting,
    temperature: float | Tensor = 0.05,
    *,
    symmetric: bool = False,
    negatives: Tensor | None = None,
    gather: bool = False,
    engine: str = "auto",
) -> Tensor:
    """Σ c_m · cross_entropy(cosine of a[:, :m] and the candidates' first m columns / temperature, the own positive).

    Args:
        a: queries, [batch, d], of any length: every prefix is normalised. A prefix of zeros is like nothing.
        b: positives, [batch, d]: row i belongs to row i of ``a`` and is a negative for the others.
        nesting: the dims and their weights c_m.
        temperature: a positive number, or a tensor of one that may be learned.
        symmetric: the mean of both directions. In the other one, each positive looks for its query among all queries.
        negatives: [n, d], further candidates for every query: hard negatives. The other direction has none.
        gather: candidates of all processes under ``torchrun`` (and their queries, if symmetric), for the queries of
            this one; every process must hold as many. Gradients flow back to the process that owns a candidate, and
            with the averaging of ``DistributedDataParallel`` they are those of the whole batch in one process. One
            process is a group of its own, so that the same script runs with and without ``torchrun``.
        engine: as in :func:`nested_cross_entropy`.

    >>> from torch.nn import functional as F
    >>> from matryo import Nesting, truncate
    >>> a, b = torch.randn(2, 4, 16).unbind()
    >>> loss = nested_contrastive(a, b, Nesting([16]), temperature=0.1)
    >>> torch.allclose(loss, F.cross_entropy(truncate(a, 16) @ truncate(b, 16).T / 0.1, torch.arange(4)), atol=1e-5)
    True
    """
    losses = contrastive_by_dim(
        a, b, nesting, temperature, symmetric=symmetric, negatives=negatives, gather=gather, engine=engine
    )
    return weighed(losses, nesting)


def contrastive_by_dim(
    a: Tensor,
    b: Tensor,
    nesting: Nesting,
    temperature: float | Tensor = 0.05,
    *,
    symmetric: bool = False,
    negatives: Tensor | None = None,
    gather: bool = False,
    engine: str = "auto",
) -> Tensor:
    """The unweighted loss at each dim, [dims]; the arguments are those of :func:`nested_contrastive`."""
    _check(a, b, negatives, nesting, temperature)
    candidates = [b] if negatives is None else [b, negatives]
    if gather and distributed.is_initialized():
        check_even(b, negatives)
        first = distributed.get_rank() * len(b)
        losses = _to_own(a, [gather_rows(one) for one in candidates], nesting, temperature, engine, first=first)
        if symmetric:
            losses = (losses + _to_own(b, [gather_rows(a)], nesting, temperature, engine, first=first)) / 2
    else:
        losses = _to_own(a, candidates, nesting, temperature, engine, back=symmetric)
    return losses


def _to_own(
    a: Tensor,
    candidates: list[Tensor],
    nesting: Nesting,
    temperature: float | Tensor,
    engine: str,
    *,
    first: int = 0,
    back: bool = False,
) -> Tensor:
    """From each query to its own candidate, counted from the ``first``: the loss at each dim, [dims].

    With ``back``, the mean of this direction and the one from those candidates to their queries.
    """
    vectors = a, candidates[0] if len(candidates) == 1 else torch.cat(candidates)
    if as_autocast(*vectors)[0].dtype == torch.float16:
        vectors = _of_unit_length(vectors[0]), _of_unit_length(vectors[1])
    x, y = as_autocast(*vectors)
    if isinstance(temperature, Tensor):
        temperature = temperature.reshape(())
    left, right = inverse_norms(x, nesting) / temperature, inverse_norms(y, nesting)
    scores = Scores(x, y, nesting, left=left, right=right)
    target = torch.arange(first, first + len(x), device=x.device)
    engine = choose(scores, engine)
    if engine == "plain":
        logits = prefix_logits(x, y, nesting) * left[:, :, None] * right[:, None]
        losses = cross_entropy_by_dim(logits, target)
        return (losses + cross_entropy_by_dim(logits[:, :, : len(x)].mT, target)) / 2 if back else losses
    parts = reduce(scores, target, over_rows=back, engine=engine)
    sums = (parts.by_row + parts.by_column[:, : len(x)]) / 2 if back else parts.by_row
    return (sums - parts.at_target).mean(1)


def _of_unit_length(z: Tensor) -> Tensor:
    """Rows scaled for float16, whose products would overflow; no cosine and no gradient depends on a row's length."""
    norms = torch.linalg.vector_norm(z.detach(), dim=1, keepdim=True, dtype=wide(z.dtype))
    unit: Tensor = z / norms.where(norms > 0, 1)
    return unit.to(z.dtype)


def inverse_norms(z: Tensor, nesting: Nesting) -> Tensor:
    """One over the norm of each prefix, [dims, rows]; 0 for a prefix of zeros, and no gradient then."""
    found: Tensor = _InverseNorms.apply(z, nesting.dims)   # type: ignore[no-untyped-call]
    return found


class _InverseNorms(torch.autograd.Function):
    """Written out, as torch would go through z once for every dim, forward and backward."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, dims: tuple[int, ...]) -> Tensor:
        fused = _fused_rows(z)
        inverse = _inverse_norms(z, dims) if fused is None else fused.inverse_norms(z, dims)
        ctx.save_for_backward(z, inverse)
        ctx.dims, ctx.fused = dims, fused
        return inverse

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor, None]:
        """−x · Σ over the dims that reach x of gradient / norm³."""
        z, inverse = ctx.saved_tensors
        if ctx.fused is not None and not torch.is_grad_enabled():   # a kernel has no derivative
            return ctx.fused.inverse_norms_backward(z, inverse, given[0], ctx.dims), None
        pulls = (given[0] * inverse**3).flip(0).cumsum(0).flip(0)
        widths = [high - low for low, high in pairwise((0, *ctx.dims))]
        by_column = torch.cat([one[:, None].expand(-1, width) for one, width in zip(pulls, widths, strict=True)], 1)
        gradient = torch.zeros_like(z) if z.shape[1] > ctx.dims[-1] else torch.empty_like(z)
        gradient[:, : ctx.dims[-1]] = -z[:, : ctx.dims[-1]] * by_column
        return gradient, None


def _inverse_norms(z: Tensor, dims: tuple[int, ...]) -> Tensor:
    sums = z[:, : dims[-1]].to(wide(z.dtype)).square().cumsum(1)
    squares = torch.stack([sums[:, dim - 1] for dim in dims])
    some = squares > 0
    return squares.where(some, 1).rsqrt() * some


def _fused_rows(z: Tensor) -> Any:
    """The module with kernels for them, if they can run; a compiler of torch makes its own."""
    if not z.is_cuda or z.dtype == torch.float64 or not HAS_TRITON or torch.compiler.is_compiling():
        return None
    return importlib.import_module("matryo.losses.engines.triton.rows")


def _check(a: Tensor, b: Tensor, negatives: Tensor | None, nesting: Nesting, temperature: float | Tensor) -> None:
    check_vectors(a, b, "a and b", "[batch, d] each")
    if negatives is not None:
        check_vectors(a, negatives, "a and negatives", "[batch, d] and [n, d]")
    if len(a) != len(b):
        raise InputError(
            "every query needs its positive", got=f"{len(a)} queries and {len(b)} positives", cure="pair the rows"
        )
    check_dims(nesting, a, b, *([] if negatives is None else [negatives]))
    if isinstance(temperature, Tensor):   # its value may be on a GPU, and is not waited for
        wrong = f"a tensor of shape {tuple(temperature.shape)}" if temperature.numel() != 1 else None
    else:
        wrong = str(temperature) if not temperature > 0 else None
    if wrong:
        raise InputError("temperature must be a number above 0, or a tensor of one", got=wrong, cure="0.05 is usual")
