"""Costs as the paper counts them."""

from __future__ import annotations

import pytest

from matryo.metrics import mflops, vector_bytes


@pytest.mark.parametrize(
    ("dim", "published"),
    [(8, 10), (16, 20), (32, 41), (64, 82), (128, 164), (256, 328), (512, 656), (1024, 1312), (2048, 2624)],
)
def test_mflops_of_imagenet(dim: int, published: int) -> None:
    assert round(mflops(1_281_167, dim)) == pytest.approx(published, abs=0.5)


def test_bytes() -> None:
    assert vector_bytes(2048) == 8192
    assert vector_bytes(2048, "float16") == 4096
