"""The page of compared settings pairs runs by vendor and seed, and says where a setting loses."""

import re

import pytest

pytest.importorskip("matplotlib")   # the pages import the report

from make_docs import results_page
from pages.settings import compared, difference, finding

from matryo.results import Row

GAPS = {("a", 0): (2.0, -1.0), ("a", 1): (4.0, -2.0), ("b", 0): (3.0, -3.0)}   # at dims 8 and 16, in points


def row(vendor, seed, changed, top1):
    figures = {"held_out": vendor, "changed": changed, "1-NN": {dim: value / 100 for dim, value in top1.items()}}
    return Row("settings", "demo", figures, seed, "c", "0", "h", {}, "2026-01-01")


def rows():
    found = []
    for (vendor, seed), (at_8, at_16) in GAPS.items():
        base = 40.0 + 10 * seed + 20 * (vendor == "b")
        found += [row(vendor, seed, {}, {8: base, 16: base + 5}),
                  row(vendor, seed, {"head.self_distil": "0.5"}, {8: base + at_8, 16: base + 5 + at_16})]  # fmt: skip
    return [*found, row("b", 1, {"head.self_distil": "0.5"}, {8: 99.0, 16: 99.0})]   # without a partner: not counted


def test_differences_are_means_over_pairs_with_their_standard_error():
    [(setting, pairs)] = compared(rows())
    assert (setting, len(pairs)) == ("head.self_distil = 0.5", 3)
    assert difference(pairs, 8) == pytest.approx((3.0, 1 / 3**0.5))
    assert difference(pairs, 16) == pytest.approx((-2.0, 1 / 3**0.5))


def test_the_finding_names_gains_and_losses():
    assert re.search(r"better at 8 \(\+3.0\), for the worse at 16 \(-2.0\)", finding(rows()))


def test_the_page_shows_vendors_and_differences():
    page = results_page("demo-settings", rows())
    assert "**head.self_distil = 0.5.** 3 pairs of runs: 2 of a, 1 of b." in page
    assert "| 8 | 45.0 | 48.0 | 60.0 | 63.0 | +3.00 ± 0.58 |" in page
