"""nested(loss) against the sum written out."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from matryo import Nesting, truncate
from matryo.errors import InputError, NestingError
from matryo.losses import nested

NESTING = Nesting([3, 8, 20], weights=[1.0, 0.5, 2.0])


@pytest.mark.parametrize("normalize", [True, False])
def test_triplet_is_the_weighted_sum_over_prefixes(normalize):
    a, p, n = torch.randn(3, 6, 20, dtype=torch.float64, requires_grad=True).unbind()
    got = nested(F.triplet_margin_loss, NESTING, normalize=normalize, embeddings=3)(a, p, n, margin=0.7)
    want = 0
    for m, c in zip(NESTING.dims, NESTING.weights, strict=True):
        cut = [z[:, :m] / z[:, :m].norm(dim=1, keepdim=True) if normalize else z[:, :m] for z in (a, p, n)]
        want = want + c * F.triplet_margin_loss(*cut, margin=0.7)
    torch.testing.assert_close(got, want)


def test_one_dim_is_the_plain_loss():
    a, b, y = torch.randn(4, 8), torch.randn(4, 8), torch.tensor([1, -1, 1, 1])
    lifted = nested(nn.CosineEmbeddingLoss(), Nesting([8]), normalize=False, embeddings=2)
    torch.testing.assert_close(lifted(a, b, y), F.cosine_embedding_loss(a, b, y))


def test_a_module_loss_trains_and_moves_with_it():
    class Proxies(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, z, y):
            return self.scale * (z.sum(1) - y).square().mean()

    lifted = nested(Proxies(), NESTING, normalize=False)
    assert [name for name, _ in lifted.named_parameters()] == ["loss.scale"]
    lifted(torch.randn(4, 20), torch.randn(4)).backward()
    assert lifted.loss.scale.grad is not None


def test_gradients_reach_every_column_the_nesting_reads_and_no_other():
    z = torch.randn(4, 24, requires_grad=True)
    nested(lambda x: x.square().sum(), NESTING, normalize=False)(z).backward()
    assert (z.grad[:, :20] != 0).all()
    assert (z.grad[:, 20:] == 0).all()


def test_a_perfect_student_has_zero_loss():
    teacher = torch.randn(5, 20)
    distil = nested(F.mse_loss, NESTING, normalize=True, embeddings=2)
    assert distil(teacher.clone(), teacher).item() == 0


def test_bad_input_is_named():
    assert nested(F.mse_loss, [3, 8], normalize=False).nesting == Nesting([3, 8])
    with pytest.raises(InputError, match=r"embeddings must be at least 1 \(got 0\)"):
        nested(F.mse_loss, NESTING, normalize=False, embeddings=0)
    lifted = nested(F.mse_loss, NESTING, normalize=False, embeddings=2)
    with pytest.raises(InputError, match="first 2 positional arguments must be embeddings"):
        lifted(torch.randn(2, 20))
    with pytest.raises(NestingError, match="must not exceed the 8 dimensions"):
        lifted(torch.randn(2, 8), torch.randn(2, 8))
    assert truncate(torch.randn(2, 8), 8).shape == (2, 8)
