"""Distillation of similarities: every prefix of the student must find the neighbours that the whole teacher finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from matryo.errors import InputError
from matryo.losses.contrastive import inverse_norms
from matryo.losses.cross_entropy import prefix_logits, weighed
from matryo.losses.engines import wide
from matryo.losses.vectors import check_dims, check_vectors

if TYPE_CHECKING:
    from torch import Tensor

    from matryo.nesting import Nesting

__all__ = ["distil_by_dim", "nested_distil"]


def nested_distil(
    z: Tensor,
    teacher: Tensor,
    nesting: Nesting,
    temperature: float = 0.05,
    *,
    candidates: Tensor | None = None,
    teacher_candidates: Tensor | None = None,
) -> Tensor:
    """Σ c_m · KL(softmax of the teacher's cosines / temperature ‖ softmax of the cosines of z[:, :m] / temperature).

    It is zero where the prefix has the teacher's cosines, and only there (up to a constant a row, which a softmax does
    not see). The teacher is read once, whatever the number of dims, and gets no gradient.

    Args:
        z: the student's vectors, [batch, d], of any length.
        teacher: the teacher's vectors of the same items, [batch, any].
        nesting: the dims and their weights c_m.
        temperature: how much the nearest neighbours count before the others.
        candidates: what the items are compared with, [n, d], and ``teacher_candidates`` [n, any]. Without them the
            items are compared with each other, and none with itself.

    >>> from matryo import Nesting
    >>> teacher = torch.randn(6, 8)
    >>> perfect = torch.cat([teacher, teacher], 1)   # both prefixes have the teacher's cosines
    >>> abs(nested_distil(perfect, teacher, Nesting([8, 16])).item()) < 1e-6
    True
    """
    losses = distil_by_dim(
        z, teacher, nesting, temperature, candidates=candidates, teacher_candidates=teacher_candidates
    )
    return weighed(losses, nesting)


def distil_by_dim(
    z: Tensor,
    teacher: Tensor,
    nesting: Nesting,
    temperature: float = 0.05,
    *,
    candidates: Tensor | None = None,
    teacher_candidates: Tensor | None = None,
) -> Tensor:
    """The unweighted divergence at each dim, [dims]; the arguments are those of :func:`nested_distil`."""
    _check(z, teacher, candidates, teacher_candidates, nesting, temperature)
    # In full precision: the loss is a difference of nearly equal numbers where the student is good.
    with torch.autocast(z.device.type, enabled=False):
        z, teacher = z.to(wide(z.dtype)), teacher.detach().to(wide(teacher.dtype))
        others = z if candidates is None else candidates.to(z.dtype)
        known = teacher if teacher_candidates is None else teacher_candidates.detach().to(teacher.dtype)
        wanted = (F.normalize(teacher, dim=1) @ F.normalize(known, dim=1).mT / temperature).to(z.dtype)
        left, right = inverse_norms(z, nesting) / temperature, inverse_norms(others, nesting)
        got = prefix_logits(z, others, nesting) * left[:, :, None] * right[:, None]
        if candidates is None:
            wanted, got = _without_diagonal(wanted), _without_diagonal(got)
        target = wanted.log_softmax(-1)
        divergence = target.exp() * (target - got.log_softmax(-1))
        losses: Tensor = divergence.sum(-1).mean(-1)
    return losses


def _without_diagonal(scores: Tensor) -> Tensor:
    """[…, n, n] → […, n, n − 1]: each item is most like itself, which teaches nothing."""
    n = scores.shape[-1]
    rows = scores.flatten(-2)[..., 1:].reshape(*scores.shape[:-2], n - 1, n + 1)
    return rows[..., :-1].reshape(*scores.shape[:-1], n - 1)


def _check(
    z: Tensor,
    teacher: Tensor,
    candidates: Tensor | None,
    teacher_candidates: Tensor | None,
    nesting: Nesting,
    temperature: float,
) -> None:
    check_vectors(z, teacher.to(z.dtype), "z and teacher", "[batch, d] each")
    check_dims(nesting, z)
    if (candidates is None) != (teacher_candidates is None):
        got = "those of the teacher alone" if candidates is None else "those of the student alone"
        raise InputError("candidates must be known to student and teacher", got=got, cure="pass both, or none")
    _check_paired(z, teacher)
    if candidates is not None and teacher_candidates is not None:
        for name, one in (("candidates", candidates), ("teacher_candidates", teacher_candidates)):
            check_vectors(z, one.to(z.dtype), f"z and {name}", "[batch, d] and [n, d]")
        check_dims(nesting, candidates)
        _check_paired(candidates, teacher_candidates)
        if teacher.shape[1] != teacher_candidates.shape[1]:
            got = f"{teacher.shape[1]} and {teacher_candidates.shape[1]} columns"
            raise InputError("teacher and teacher_candidates must be of one width", got=got, cure="use one teacher")
    elif len(z) < 2:
        raise InputError("items are compared with each other", got=f"{len(z)} of them", cure="pass two or more")
    if not temperature > 0:
        raise InputError("temperature must be a number above 0", got=temperature, cure="0.05 is usual")


def _check_paired(student: Tensor, known: Tensor) -> None:
    if len(student) != len(known):
        got = f"{len(student)} vectors of the student and {len(known)} of the teacher"
        raise InputError("student and teacher must have read the same items", got=got, cure="pair the rows")
