"""truncate and prefix_norms on tensors: the same numbers as numpy, and gradients flow."""

import numpy as np
import pytest
import torch

from matryo import truncate
from matryo.nesting import prefix_norms


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_truncate_agrees_with_numpy(dtype):
    z = torch.randn(5, 3, 16, dtype=torch.float64).to(dtype)
    got = truncate(z, 7)
    assert got.dtype == dtype
    want = truncate(z.double().numpy(), 7)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
    np.testing.assert_allclose(got.double().numpy(), want, atol=tolerance)


def test_gradients_flow_to_the_prefix_only():
    z = torch.randn(4, 10, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: truncate(x, 6), (z,))
    truncate(z, 6).sum().backward()
    assert (z.grad[:, 6:] == 0).all()
    assert (z.grad[:, :6] != 0).any()


def test_half_precision_does_not_overflow():
    big = torch.full((1, 4), 300.0, dtype=torch.float16)
    torch.testing.assert_close(truncate(big, 4), torch.full((1, 4), 0.5, dtype=torch.float16))
    assert truncate(torch.zeros(1, 4), 2).tolist() == [[0.0, 0.0]]


def test_prefix_norms_agree_with_numpy():
    z = torch.randn(5, 16, dtype=torch.float64)
    np.testing.assert_allclose(prefix_norms(z, [2, 7, 16]).numpy(), prefix_norms(z.numpy(), [2, 7, 16]))
