"""The page of reading speed computes shares and hours from its rows."""

import pytest

pytest.importorskip("matplotlib")   # the pages import the report

from make_docs import results_page
from pages.feed import finding

from matryo.results import Row


def row(subject, **figures):
    machine = {"processors": 16, "decoder": "d 1"}
    return Row("image-feed", subject, machine | figures, 0, "c", "0", "GPU", {}, "2026-01-01")


ROWS = [
    row("ResNet50 160 px, folder", whole_images_per_second=3600.0, step_images_per_second=4000.0, whole_waiting=0.08,
        step_ratio_to_fixed=1.012, read_images_per_second=2000.0, seconds_to_20_steps=12.3, imagenet_hours=4.0),
    row("encodes", encode_images_per_second=5000.4),
]  # fmt: skip


def test_the_finding_is_the_share_of_the_step():
    assert "3,600 images per second on one GPU and 16 cores, 90% of its step alone" in finding(ROWS)


def test_the_page_shows_rates_and_hours():
    page = results_page("image-feed", ROWS)
    assert "| ResNet50 160 px, folder | GPU | 16 | d 1 | 4,000 | 2,000 | – | 3,600 | 8% | 12.3 s | 1.012 | – |" in page
    assert "| encodes | GPU | 16 | d 1 | – | – | – | – | – | – | – | 5,000 |" in page
    assert "| ResNet50 160 px, folder | GPU | 4.0 | 0.50 | 32 |" in page
