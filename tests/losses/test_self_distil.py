"""Self-distillation and label smoothing by dim, against a loop over dims in float64, with every engine."""

import pytest
import torch
from torch.nn import functional as F

from matryo import Nesting
from matryo.errors import InputError
from matryo.heads import NestedLinear
from matryo.losses import SelfDistil, cross_entropy_by_dim, nested_cross_entropy

DIMS, CLASSES, IGNORED = [4, 8, 16], 11, -100


def looped(logits, target, smoothing, distil, shares):
    """The loss at each dim, by its definition."""
    counted = target != IGNORED
    weights = counted.double() if shares is None else shares[target.clamp(min=0)] * counted
    losses = []
    for i, own in enumerate(logits):
        options = {"weight": shares, "ignore_index": IGNORED, "label_smoothing": smoothing[i], "reduction": "none"}
        loss = F.cross_entropy(own, target, **options)
        if distil is not None and i < len(logits) - 1:
            teacher = logits[-1 if distil.teacher == "full" else i + 1].detach() / distil.temperature
            soft = F.cross_entropy(own / distil.temperature, teacher.softmax(-1), reduction="none")
            loss = (1 - distil.share) * loss + distil.share * distil.temperature**2 * soft * weights
        losses.append(loss.sum() / weights.sum())
    return torch.stack(losses)


@pytest.mark.parametrize("engine", ["plain", "chunked"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("smoothing", [(0.1, 0.1, 0.1), (0.0, 0.05, 0.1)])
@pytest.mark.parametrize("distil", [None, SelfDistil(0.5), SelfDistil(0.3, "next", 2.0), SelfDistil(1.0, "full", 0.5)])
def test_values_and_gradients_are_those_of_a_loop(engine, tied, weighted, smoothing, distil):
    source = torch.Generator().manual_seed(0)
    head = NestedLinear(Nesting(DIMS), CLASSES, tied=tied).double()
    z = torch.randn(13, DIMS[-1], generator=source, dtype=torch.double, requires_grad=True)
    target = torch.randint(CLASSES, (13,), generator=source)
    target[3] = IGNORED
    shares = torch.rand(CLASSES, generator=source, dtype=torch.double) if weighted else None
    options = {"label_smoothing": smoothing, "self_distil": distil or 0.0, "class_weight": shares}
    mine = head.losses(z, target, engine=engine, **options)
    right = looped(head.logits(z), target, smoothing, distil, shares)
    torch.testing.assert_close(mine, right)
    upstream = torch.rand(len(DIMS), generator=source, dtype=torch.double)
    for a, b in zip(*(torch.autograd.grad(x @ upstream, [z, *head.parameters()]) for x in (mine, right)), strict=True):
        torch.testing.assert_close(a, b)


def test_the_teacher_gets_no_gradient():
    logits = torch.randn(2, 5, CLASSES, requires_grad=True)
    target = torch.zeros(5, dtype=torch.long)
    losses = cross_entropy_by_dim(logits, target, self_distil=SelfDistil(1.0))
    (gradient,) = torch.autograd.grad(losses[0], logits)
    assert gradient[0].abs().max() > 0
    assert not gradient[1].any()


def test_chunks_do_not_change_the_result(monkeypatch):
    monkeypatch.setattr("matryo.losses.engines.chunked._TILE", 64)
    monkeypatch.setattr("matryo.losses.engines.chunked._ROWS", 4)
    z, weight = (torch.randn(n, DIMS[-1], dtype=torch.double, requires_grad=True) for n in (13, CLASSES))
    bias = torch.randn(CLASSES, dtype=torch.double, requires_grad=True)
    target = torch.arange(13) % CLASSES
    results = []
    for engine in ("plain", "chunked"):
        loss = nested_cross_entropy(z, weight, target, DIMS, bias, self_distil=0.4, engine=engine)
        results.append((loss, *torch.autograd.grad(loss, (z, weight, bias))))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_one_dim_has_no_teacher():
    z, weight, target = torch.randn(4, 16), torch.randn(CLASSES, 16), torch.arange(4)
    plain = nested_cross_entropy(z, weight, target, [16])
    for engine in ("plain", "chunked"):
        torch.testing.assert_close(nested_cross_entropy(z, weight, target, [16], self_distil=0.5, engine=engine), plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"self_distil": 1.5}, r"self_distil must be a share .*1\.5"),
        ({"label_smoothing": (0.1, 0.2)}, r"one per dim \(3\).*2 numbers"),
        ({"label_smoothing": (0.1, 0.2, 2.0)}, r"label_smoothing must be between 0 and 1 .*2\.0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        nested_cross_entropy(torch.randn(4, 16), torch.randn(CLASSES, 16), torch.arange(4), DIMS, **options)


@pytest.mark.parametrize(
    ("teacher", "temperature", "message"), [("last", 1, "one of 'full', 'next'"), ("full", 0, "positive")]
)
def test_bad_teachers_are_refused(teacher, temperature, message):
    with pytest.raises(InputError, match=message):
        SelfDistil(0.5, teacher, temperature)
