"""Distillation against a loop over rows and dims in float64; a perfect student has no loss and no gradient."""

import math

import pytest
import torch

from matryo import Nesting, truncate
from matryo.errors import InputError, NestingError
from matryo.losses.distil import distil_by_dim, nested_distil

NESTING = Nesting([3, 5, 8], weights=[1.0, 0.5, 2.0])


def vectors(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(z, teacher, others, known, dim, temperature, alone):
    """Mean over rows of Σ p log(p / q), one number at a time."""
    a, b = truncate(z, dim), truncate(others, dim)
    t, u = truncate(teacher, teacher.shape[1]), truncate(known, known.shape[1])
    total = 0.0
    for i in range(len(z)):
        columns = [j for j in range(len(others)) if not (alone and i == j)]
        wanted = [math.exp(float(t[i] @ u[j]) / temperature) for j in columns]
        got = [math.exp(float(a[i] @ b[j]) / temperature) for j in columns]
        for p, q in zip(wanted, got, strict=True):
            p, q = p / sum(wanted), q / sum(got)
            total += p * math.log(p / q)
    return total / len(z)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_it_is_the_divergence_at_every_dim(alone, temperature):
    z, teacher, others, known = vectors(6, 9), vectors(6, 4, seed=1), vectors(7, 9, seed=2), vectors(7, 4, seed=3)
    options = {} if alone else {"candidates": others, "teacher_candidates": known}
    got = distil_by_dim(z, teacher, NESTING, temperature, **options)
    against = (z, teacher) if alone else (others, known)
    wanted = [by_hand(z, teacher, *against, dim, temperature, alone) for dim in NESTING.dims]
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64))
    whole = sum(weight * loss for weight, loss in zip(NESTING.weights, wanted, strict=True))
    assert nested_distil(z, teacher, NESTING, temperature, **options).item() == pytest.approx(whole)


def test_a_perfect_student_has_no_loss_and_no_gradient():
    teacher = vectors(6, 4)
    turned = torch.linalg.qr(vectors(4, 4, seed=5))[0]
    # Each prefix of 4, 8, 12 columns has the teacher's cosines: copies of it, turned and of another length.
    z = torch.cat([teacher @ turned, 3 * teacher, teacher], 1)
    nesting = Nesting([4, 8, 12])
    z = z.requires_grad_()
    losses = distil_by_dim(z, teacher, nesting)
    assert losses.abs().max() < 1e-12
    losses.sum().backward()
    assert z.grad.abs().max() < 1e-8
    worse = (z + 0.1 * vectors(6, 12, seed=7)).detach()
    assert (distil_by_dim(worse, teacher, nesting) > 1e-4).all()


def test_gradients_are_those_of_finite_differences_and_the_teacher_has_none():
    z, teacher = vectors(4, 8).requires_grad_(), vectors(4, 5, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: distil_by_dim(x, teacher.detach(), NESTING, 0.5), z)
    nested_distil(z, teacher, NESTING).backward()
    assert teacher.grad is None


def test_a_prefix_of_zeros_is_like_nothing():
    z = vectors(4, 8)
    z[0, :3] = 0
    z.requires_grad_()
    nested_distil(z, vectors(4, 5, seed=1), NESTING).backward()
    assert torch.isfinite(z.grad).all()


def test_half_precision_is_compared_in_full():
    teacher = vectors(6, 8).float()
    with torch.autocast("cpu", torch.bfloat16):
        losses = distil_by_dim(teacher, teacher, Nesting([8]))
    assert losses.dtype == torch.float32
    assert losses.abs().max() < 1e-5


def test_mistakes_are_named():
    z, teacher = vectors(4, 8), vectors(4, 5)
    with pytest.raises(InputError, match=r"candidates and teacher_candidates go together \(got candidates only\)"):
        nested_distil(z, teacher, NESTING, candidates=z)
    with pytest.raises(InputError, match=r"encoded the same items.*4 vectors of the student and 3"):
        nested_distil(z, teacher[:3], NESTING)
    with pytest.raises(InputError, match=r"nothing to be compared with \(got 1 items\)"):
        nested_distil(z[:1], teacher[:1], NESTING)
    with pytest.raises(InputError, match="temperature must be a positive number"):
        nested_distil(z, teacher, NESTING, 0.0)
    with pytest.raises(InputError, match=r"the same width \(got 5 and 3 columns\): encode both with one teacher"):
        nested_distil(z, teacher, NESTING, candidates=z, teacher_candidates=teacher[:, :3])
    with pytest.raises(InputError, match=r"z and candidates must be \[batch, d\] and \[n, d\] \(got .* and \(8,\)"):
        nested_distil(z, teacher, NESTING, candidates=z[0], teacher_candidates=teacher)
    with pytest.raises(InputError, match=r"z and teacher_candidates must be on one device \(got cpu and meta\)"):
        nested_distil(z, teacher, NESTING, candidates=z, teacher_candidates=teacher.to("meta"))
    assert nested_distil(z, teacher, [3, 5]) == nested_distil(z, teacher, Nesting([3, 5]))
    with pytest.raises(NestingError, match="must not exceed"):
        nested_distil(z, teacher, Nesting([16]))
