"""Colours stand out from both backgrounds, and can be told from each other by the code that swaps them."""

import pytest

from matryo.report.style import COLOURS, RAMP, SERIES, categories, ramp, variables


def luminance(colour):
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_every_colour_stands_out_from_the_paper(mode):
    paper = COLOURS["paper"][mode]
    for name in (*SERIES, *RAMP):
        assert contrast(COLOURS[name][mode], paper) >= 3, name   # graphical objects
    for name in ("ink", "soft", "good", "bad"):
        for back in ("paper", "wash"):
            assert contrast(COLOURS[name][mode], COLOURS[back][mode]) >= 4.5, (name, back)   # text


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_the_ramp_moves_away_from_the_paper_all_the_way(mode):
    seen = [contrast(COLOURS[name][mode], COLOURS["paper"][mode]) for name in RAMP]
    assert seen == sorted(seen)


def test_each_light_colour_names_one_variable():
    light = [colours[0] for colours in COLOURS.values()]
    assert len(set(light)) == len(light)
    for name, (on_white, on_black) in COLOURS.items():
        assert variables(0).count(f"--{name}: {on_white};") == 1
        assert variables(1).count(f"--{name}: {on_black};") == 1


def test_looks_do_not_repeat_before_they_must():
    looks = categories(24)
    assert len({(look.colour, look.marker, look.dash) for look in looks}) == 24
    assert len({look.colour for look in ramp(9)}) == 9
    assert [look.colour for look in ramp(1)] == [COLOURS["r1"][0]]
