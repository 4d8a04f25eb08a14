"""Nested contrastive loss: Σ_m c_m · InfoNCE of the re-normalised prefixes, at every dim from one product.

The cosine similarity of two prefixes is their inner product, a cumulative sum over blocks, times the inverse norms of
both. The norms and the temperature are factors per row and per column, so one matrix product serves all dims.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, distributed

from matryo.arguments import checked
from matryo.errors import InputError
from matryo.losses.cross_entropy import cross_entropy_by_dim, prefix_logits, weighed
from matryo.losses.engines import HAS_TRITON, choose, wide
from matryo.losses.engines.autograd import reduce
from matryo.losses.engines.contract import Scores
from matryo.losses.gather import check_even, gather_rows
from matryo.losses.self_distil import SelfDistil
from matryo.losses.vectors import as_autocast, check_dims, check_vectors
from matryo.nesting import Nesting, as_nesting


@checked
def nested_contrastive(
    a: Tensor,
    b: Tensor,
    nesting: Nesting | Iterable[int],
    temperature: float | Tensor = 0.05,
    *,
    symmetric: bool = False,
    negatives: Tensor | None = None,
    gather: bool = False,
    self_distil: float | SelfDistil = 0.0,
    engine: str = "auto",
) -> Tensor:
    """Σ c_m · cross_entropy(cos(a[:, :m], candidates[:, :m]) / temperature, index of the positive).

    Args:
        a: queries, [batch, d]. Every prefix is normalised; an all-zero prefix has similarity 0 with every vector.
        b: positives, [batch, d]: row i is the positive of row i of ``a`` and a negative for the other rows.
        nesting: the dims and their weights c_m, or a list of dims.
        temperature: a positive number, or a one-element tensor, which may be learned.
        symmetric: average with the reverse direction, in which each positive is classified among all queries.
        negatives: [n, d], hard negatives: further candidates for every query. The reverse direction does not use them.
        gather: under ``torchrun``, use the candidates of all processes (and their queries, if symmetric). Every
            process must hold the same number of rows. Gradients flow back to the process that owns a candidate;
            averaged by ``DistributedDataParallel``, they equal those of the whole batch in one process. Without
            ``torchrun`` the argument has no effect.
        self_distil: a share of the loss of each smaller dim imitates the similarities at the full dim (their softmax
            over the candidates) instead of the positive; a number, or a :class:`~matryo.losses.SelfDistil`. Without
            stored scores, each direction of a symmetric loss is then computed by itself.
        engine: as in :func:`nested_cross_entropy`.

    >>> from torch.nn import functional as F
    >>> from matryo import Nesting, truncate
    >>> a, b = torch.randn(2, 4, 16).unbind()
    >>> loss = nested_contrastive(a, b, Nesting([16]), temperature=0.1)
    >>> torch.allclose(loss, F.cross_entropy(truncate(a, 16) @ truncate(b, 16).T / 0.1, torch.arange(4)), atol=1e-5)
    True
    """
    nesting = as_nesting(nesting)
    losses = contrastive_by_dim(
        a, b, nesting, temperature, symmetric=symmetric, negatives=negatives, gather=gather, self_distil=self_distil,
        engine=engine,
    )  # fmt: skip
    return weighed(losses, nesting)


@checked
def contrastive_by_dim(
    a: Tensor,
    b: Tensor,
    nesting: Nesting | Iterable[int],
    temperature: float | Tensor = 0.05,
    *,
    symmetric: bool = False,
    negatives: Tensor | None = None,
    gather: bool = False,
    self_distil: float | SelfDistil = 0.0,
    engine: str = "auto",
) -> Tensor:
    """The unweighted loss at each dim, [dims]. The arguments are those of :func:`nested_contrastive`."""
    _check(a, b, negatives, temperature)
    candidates = [b] if negatives is None else [b, negatives]
    nesting = check_dims(nesting, a, *candidates)
    distil = SelfDistil.of(self_distil) if len(nesting) > 1 else None
    direction = partial(_info_nce, nesting=nesting, temperature=temperature, engine=engine, distil=distil)
    if not (gather and distributed.is_initialized()):
        return direction(a, candidates, symmetric=symmetric)
    check_even(b, negatives)
    first = distributed.get_rank() * len(b)
    losses = direction(a, [gather_rows(rows) for rows in candidates], first=first)
    return (losses + direction(b, [gather_rows(a)], first=first)) / 2 if symmetric else losses


def _info_nce(
    a: Tensor,
    candidates: list[Tensor],
    nesting: Nesting,
    temperature: float | Tensor,
    engine: str,
    distil: SelfDistil | None,
    *,
    first: int = 0,
    symmetric: bool = False,
) -> Tensor:
    """The loss at each dim, [dims], where the positive of query i is candidate ``first + i``.

    ``symmetric`` averages with the direction from the positives to their queries; ``first`` must be 0 then.
    """
    vectors = a, candidates[0] if len(candidates) == 1 else torch.cat(candidates)
    if as_autocast(*vectors)[0].dtype == torch.float16:
        vectors = _unit_rows(vectors[0]), _unit_rows(vectors[1])
    x, y = as_autocast(*vectors)
    temperature = temperature.reshape(()) if isinstance(temperature, Tensor) else float(temperature)
    left, right = inverse_norms(x, nesting) / temperature, inverse_norms(y, nesting)
    scores = Scores(x, y, nesting, left=left, right=right)
    target = torch.arange(first, first + len(x), device=x.device)
    engine = choose(scores, engine, teaching=distil is not None)
    if engine == "plain":
        logits, taught = prefix_logits(x, y, nesting) * left[:, :, None] * right[:, None], distil or 0.0
        losses = cross_entropy_by_dim(logits, target, self_distil=taught)
        if not symmetric:
            return losses
        return (losses + cross_entropy_by_dim(logits[:, :, : len(x)].mT, target, self_distil=taught)) / 2
    if distil is not None:
        losses = _distilled(scores, target, distil, engine)
        if symmetric:
            back = Scores(y[: len(x)], x, nesting, left=right[:, : len(x)], right=left)
            losses = (losses + _distilled(back, target, distil, engine)) / 2
        return losses
    parts = reduce(scores, target, over_rows=symmetric, engine=engine)
    lse = (parts.row_lse + parts.column_lse[:, : len(x)]) / 2 if symmetric else parts.row_lse
    return (lse - parts.at_target).mean(1)


def _distilled(scores: Scores, target: Tensor, distil: SelfDistil, engine: str) -> Tensor:
    """The loss at each dim, [dims], of which smaller dims learn a share from a larger one."""
    teachers, warm = distil.teachers(len(scores.nesting)), distil.temperature == 1
    parts = reduce(scores, target, teachers=teachers if warm else None, engine=engine)
    losses = parts.row_lse - parts.at_target
    if not warm and scores.left is not None:   # at another temperature, all scores differ
        parts = reduce(replace(scores, left=scores.left / distil.temperature), target, teachers=teachers, engine=engine)
    return distil.mixed(losses, lambda: parts.row_lse[:-1] - parts.at_teacher).mean(1)


def _unit_rows(z: Tensor) -> Tensor:
    """Scale rows to unit norm, so that float16 products do not overflow. Cosines and gradients are unaffected."""
    norms = torch.linalg.vector_norm(z.detach(), dim=1, keepdim=True, dtype=wide(z.dtype))
    unit: Tensor = z / norms.where(norms > 0, 1)
    return unit.to(z.dtype)


def inverse_norms(z: Tensor, nesting: Nesting) -> Tensor:
    """One over the norm of each prefix, [dims, rows]; 0, without gradient, for an all-zero prefix."""
    inverse: Tensor = _InverseNorms.apply(z, nesting.dims)   # type: ignore[no-untyped-call]
    return inverse


class _InverseNorms(torch.autograd.Function):
    """A custom function, because plain torch would read z once per dim in both directions."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, dims: tuple[int, ...]) -> Tensor:
        fused = _fused_rows(z)
        inverse = _inverse_norms(z, dims) if fused is None else fused.inverse_norms(z, dims)
        ctx.save_for_backward(z, inverse)
        ctx.dims, ctx.fused = dims, fused
        return inverse

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor, None]:
        """In each column, −z · Σ upstream / norm³ over the dims that contain the column."""
        z, inverse = ctx.saved_tensors
        if ctx.fused is not None and not torch.is_grad_enabled():   # the kernel is not differentiable again
            return ctx.fused.inverse_norms_backward(z, inverse, upstream[0], ctx.dims), None
        factors = (upstream[0] * inverse**3).flip(0).cumsum(0).flip(0)   # suffix sums over the dims
        widths = [high - low for low, high in pairwise((0, *ctx.dims))]
        by_column = torch.cat([row[:, None].expand(-1, width) for row, width in zip(factors, widths, strict=True)], 1)
        gradient = torch.zeros_like(z) if z.shape[1] > ctx.dims[-1] else torch.empty_like(z)
        gradient[:, : ctx.dims[-1]] = -z[:, : ctx.dims[-1]] * by_column
        return gradient, None


def _inverse_norms(z: Tensor, dims: tuple[int, ...]) -> Tensor:
    sums = z[:, : dims[-1]].to(wide(z.dtype)).square().cumsum(1)
    squares = torch.stack([sums[:, dim - 1] for dim in dims])
    nonzero = squares > 0
    return squares.where(nonzero, 1).rsqrt() * nonzero


def _fused_rows(z: Tensor) -> Any:
    """The module with fused norm kernels, or None if they cannot run. ``torch.compile`` fuses the plain version."""
    if not z.is_cuda or z.dtype == torch.float64 or not HAS_TRITON or torch.compiler.is_compiling():
        return None
    return importlib.import_module("matryo.losses.engines.triton.rows")


def _check(a: Tensor, b: Tensor, negatives: Tensor | None, temperature: float | Tensor) -> None:
    check_vectors(a, b, "a and b", "[batch, d] each")
    if negatives is not None:
        check_vectors(a, negatives, "a and negatives", "[batch, d] and [n, d]")
    if len(a) != len(b):
        got = f"{len(a)} queries and {len(b)} positives"
        raise InputError("a and b must have the same number of rows", got=got, cure="pass one positive per query")
    if isinstance(temperature, Tensor):   # its value is not checked: reading it would synchronise with the GPU
        wrong = f"a tensor of shape {tuple(temperature.shape)}" if temperature.numel() != 1 else None
    else:
        wrong = str(temperature) if not temperature > 0 else None
    if wrong:
        cure = "use temperature=0.05, a common value"
        raise InputError("temperature must be a positive number or a one-element tensor", got=wrong, cure=cure)
