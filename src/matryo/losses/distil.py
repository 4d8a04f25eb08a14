"""Similarity distillation: every prefix of the student learns the similarities of the teacher's full vectors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from matryo.arguments import checked
from matryo.errors import InputError
from matryo.losses.contrastive import inverse_norms
from matryo.losses.cross_entropy import prefix_logits, weighed
from matryo.losses.engines import wide
from matryo.losses.vectors import check_dims, check_vectors
from matryo.nesting import Nesting, as_nesting


@checked
def nested_distil(
    z: Tensor,
    teacher: Tensor,
    nesting: Nesting | Iterable[int],
    temperature: float = 0.05,
    *,
    candidates: Tensor | None = None,
    teacher_candidates: Tensor | None = None,
) -> Tensor:
    """Σ c_m · KL(softmax of the teacher's cosines / temperature ‖ softmax of the cosines of z[:, :m] / temperature).

    The loss is zero if and only if the prefixes have the teacher's cosines, up to a constant per row (which a softmax
    ignores). The teacher's similarities are computed once for all dims, and the teacher gets no gradient.

    Args:
        z: the student's vectors, [batch, d]. Every prefix is normalised.
        teacher: the teacher's vectors of the same items, [batch, any].
        nesting: the dims and their weights c_m, or a list of dims.
        temperature: divides the cosines. The lower it is, the more the nearest neighbours dominate.
        candidates: the student's vectors to compare with, [n, d]. By default the items are compared with each other,
            and no item with itself.
        teacher_candidates: the teacher's vectors of the candidates, [n, any].

    >>> from matryo import Nesting
    >>> teacher = torch.randn(6, 8)
    >>> perfect = torch.cat([teacher, teacher], 1)   # both prefixes have the teacher's cosines
    >>> abs(nested_distil(perfect, teacher, Nesting([8, 16])).item()) < 1e-6
    True
    """
    nesting = as_nesting(nesting)
    losses = distil_by_dim(
        z, teacher, nesting, temperature, candidates=candidates, teacher_candidates=teacher_candidates
    )
    return weighed(losses, nesting)


@checked
def distil_by_dim(
    z: Tensor,
    teacher: Tensor,
    nesting: Nesting | Iterable[int],
    temperature: float = 0.05,
    *,
    candidates: Tensor | None = None,
    teacher_candidates: Tensor | None = None,
) -> Tensor:
    """The unweighted divergence at each dim, [dims]. The arguments are those of :func:`nested_distil`."""
    _check(z, teacher, candidates, teacher_candidates, temperature)
    nesting = check_dims(nesting, z, *([] if candidates is None else [candidates]))
    # In full precision: for a good student the loss is a difference of nearly equal numbers.
    with torch.autocast(z.device.type, enabled=False):
        z, teacher = z.to(wide(z.dtype)), teacher.detach().to(wide(teacher.dtype))
        others = z if candidates is None else candidates.to(z.dtype)
        teacher_others = teacher if teacher_candidates is None else teacher_candidates.detach().to(teacher.dtype)
        cosines = F.normalize(teacher, dim=1) @ F.normalize(teacher_others, dim=1).mT
        teacher_logits = (cosines / temperature).to(z.dtype)
        left, right = inverse_norms(z, nesting) / temperature, inverse_norms(others, nesting)
        logits = prefix_logits(z, others, nesting) * left[:, :, None] * right[:, None]
        if candidates is None:
            teacher_logits, logits = _without_diagonal(teacher_logits), _without_diagonal(logits)
        target = teacher_logits.log_softmax(-1)
        divergence = target.exp() * (target - logits.log_softmax(-1))
        losses: Tensor = divergence.sum(-1).mean(-1)
    return losses


def _without_diagonal(scores: Tensor) -> Tensor:
    """Drop the diagonal, […, n, n] → […, n, n − 1]: the similarity of an item to itself is always 1."""
    n = scores.shape[-1]
    rows = scores.flatten(-2)[..., 1:].reshape(*scores.shape[:-2], n - 1, n + 1)
    return rows[..., :-1].reshape(*scores.shape[:-1], n - 1)


def _check(
    z: Tensor, teacher: Tensor, candidates: Tensor | None, teacher_candidates: Tensor | None, temperature: float
) -> None:
    check_vectors(z, teacher.to(z.dtype), "z and teacher", "[batch, d] each")
    if (candidates is None) != (teacher_candidates is None):
        got = "teacher_candidates only" if candidates is None else "candidates only"
        raise InputError("candidates and teacher_candidates go together", got=got, cure="pass both or neither")
    _check_paired(z, teacher)
    if candidates is not None and teacher_candidates is not None:
        for name, vectors in (("candidates", candidates), ("teacher_candidates", teacher_candidates)):
            check_vectors(z, vectors.to(z.dtype), f"z and {name}", "[batch, d] and [n, d]")
        _check_paired(candidates, teacher_candidates)
        if teacher.shape[1] != teacher_candidates.shape[1]:
            got = f"{teacher.shape[1]} and {teacher_candidates.shape[1]} columns"
            cure = "encode both with one teacher"
            raise InputError("teacher and teacher_candidates must have the same width", got=got, cure=cure)
    elif len(z) < 2:
        cure = "pass two or more items, or candidates"
        raise InputError("a single item has nothing to be compared with", got=f"{len(z)} items", cure=cure)
    if not temperature > 0:
        cure = "use temperature=0.05, a common value"
        raise InputError("temperature must be a positive number", got=temperature, cure=cure)


def _check_paired(student: Tensor, teacher: Tensor) -> None:
    if len(student) != len(teacher):
        got = f"{len(student)} vectors of the student and {len(teacher)} of the teacher"
        cure = "pass one row per item in both"
        raise InputError("student and teacher must have encoded the same items", got=got, cure=cure)
