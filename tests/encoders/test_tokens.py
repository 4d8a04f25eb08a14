"""Tokens travel together, and pooling is what it says for each text alone."""

import pytest
import torch

from matryo.encoders import Tokens, pool
from matryo.errors import InputError


def test_tokens_go_to_a_device_with_or_without_a_mask():
    ids = torch.arange(6).view(2, 3)
    for mask in (None, ids > 1):
        moved = Tokens(ids, mask).to("meta")
        assert isinstance(moved, Tokens)
        assert moved.ids.device.type == "meta"
        assert moved.mask is None or moved.mask.device.type == "meta"
        assert (moved.mask is None) == (mask is None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pooling_reads_each_text_alone(dtype):
    hidden = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    rows = ("111111", "111000", "001111", "010000", "101010")
    mask = torch.tensor([[digit == "1" for digit in row] for row in rows])
    picks = {"mean": lambda rows: rows.double().mean(0), "cls": lambda rows: rows[0], "last": lambda rows: rows[-1]}
    for kind, pick in picks.items():
        wanted = torch.stack([pick(rows[kept]) for rows, kept in zip(hidden, mask, strict=True)]).to(dtype)
        torch.testing.assert_close(pool(hidden, mask, kind), wanted)
        torch.testing.assert_close(pool(hidden[:1], None, kind), wanted[:1])


def test_an_unknown_pooling_is_refused():
    with pytest.raises(InputError, match=r"unknown pooling \(got 'max'\): choose one of mean, cls, last"):
        pool(torch.zeros(1, 1, 1), None, "max")
