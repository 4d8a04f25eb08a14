"""Affine maps of z that keep every prefix, and so every logit once its head is adapted, but improve its cosines.

A lower-triangular matrix T maps the first m columns to the first m columns, at every m. The head W at dim m becomes
W T⁻¹, so training and accuracy do not change; cosines do, because heads ignore the origin and the scale of z.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Moments:
    """The mean of vectors, and their covariance: in total, and within classes."""

    mean: Tensor
    total: Tensor
    within: Tensor

    @classmethod
    def of(cls, batches: Iterable[tuple[Tensor, Tensor]]) -> Moments:
        """The moments of (vectors [n, d], labels [n]), in float64."""
        count, sums, squares = 0, torch.zeros(0), torch.zeros(0)
        for z, labels in batches:
            z = z.double()
            if not count:
                sums, squares, counts = z.new_zeros(0, z.shape[1]), z.new_zeros(z.shape[1], z.shape[1]), z.new_zeros(0)
            classes = max(len(sums), int(labels.max()) + 1)
            sums = torch.cat([sums, sums.new_zeros(classes - len(sums), z.shape[1])])
            counts = torch.cat([counts, counts.new_zeros(classes - len(counts))])
            sums.index_add_(0, labels.to(z.device), z)
            counts += torch.bincount(labels.to(z.device), minlength=classes)
            squares += z.T @ z
            count += len(z)
        mean = sums.sum(0) / count
        total = squares / count - torch.outer(mean, mean)
        means = sums / counts.clamp(min=1)[:, None]
        within = (squares - (means * counts[:, None]).T @ means) / count
        return cls(mean, total, within)


def triangular(moments: Moments, kind: str, shrink: float) -> tuple[Tensor, Tensor]:
    """Weight [d, d], lower-triangular, and bias [d] of a map."""
    size, mean = len(moments.mean), moments.mean
    eye = torch.eye(size, dtype=mean.dtype, device=mean.device)
    if kind == "none":
        return eye, torch.zeros_like(mean)
    if kind == "centre":
        return eye, -mean
    floor = 1e-6 * moments.total.diagonal().mean()
    if kind == "standardise":
        weight = (moments.total.diagonal() + floor).rsqrt().diag()
        return weight, -weight @ mean
    which, target = kind.split("-")
    covariance = moments.total if which == "total" else moments.within
    diagonal = covariance.diagonal() if target == "diagonal" else covariance.diagonal().mean().expand(size)
    shrunk = (1 - shrink) * covariance + (shrink * diagonal + floor).diag()
    weight = torch.linalg.solve_triangular(torch.linalg.cholesky(shrunk), eye, upper=False)
    return weight, -weight @ mean
