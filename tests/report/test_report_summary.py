"""The sentences say what the rows say: each is checked against numbers worked out by hand."""

import dataclasses

import pytest
from report_rows import evaluate_row, every_kind, of, row

from matryo.classify.curve import CascadeCurve
from matryo.report.material import Material
from matryo.report.series import Curve, Point
from matryo.report.summary import overview, summary
from matryo.report.words import bars, ends, enough

NESTED = {8: 0.60, 12: 0.70, 16: 0.76, 24: 0.78, 32: 0.80}
FIXED = {8: 0.20, 12: 0.30, 16: 0.41, 24: 0.70, 32: 0.82}


def rows():
    return [
        evaluate_row(NESTED, model="nested", name="nested", trained=(8, 16, 32)),
        evaluate_row(FIXED, model="fixed", name="fixed", trained=(32,)),
    ]


def said(*given):
    return [sentence.replace("\u00a0", " ") for sentence in summary(Material.of(list(given)))]


def test_what_few_dims_keep_and_where_the_nested_model_is_ahead():
    assert said(*rows()) == [
        "On emoji / flat, the first 16 of 32 dims of nested keep 95 % of its 1-NN accuracy (76.0 % against 80.0 %); "
        "an ordinary model (fixed) cut to 16 keeps 50 %.",
        "In 1-NN accuracy nested is ahead of all others at 8 and 16 dims; behind at 32 (by 2.0 points, to fixed, "
        "truncated).",
        "Drawn from 2 rows: 2 models on 1 split, 1 seed.",
    ]


def test_level_is_within_half_a_point_of_the_best_other():
    other = {8: 0.597, 16: 0.764, 32: 0.80}
    found = said(rows()[0], rows()[1], evaluate_row(other, model="fixed + PCA", name="fixed + PCA", trained=(32,)))
    assert found[1] == (
        "In 1-NN accuracy nested is level with the best other (within 0.5 points) at 8 and 16; behind at 32 (by 2.0 "
        "points, to fixed, truncated)."
    )


def test_a_model_alone_is_compared_with_nothing():
    assert said(rows()[1]) == [
        "On emoji / flat, fixed keeps 24 % of its 1-NN accuracy at 8 dims.",
        "Drawn from 1 row: 1 model on 1 split, 1 seed.",
    ]


def test_seeds_are_averaged_before_anything_is_said():
    low = {dim: value - 0.05 for dim, value in NESTED.items()}
    high = {dim: value + 0.05 for dim, value in NESTED.items()}
    given = [evaluate_row(low, seed=0, trained=(8, 16, 32)), evaluate_row(high, seed=1, trained=(8, 16, 32))]
    assert said(*given)[0] == (
        "On emoji / flat, the first 16 of 32 dims of demo separate keep 95 % of its 1-NN accuracy (76.0 % against "
        "80.0 %)."
    )
    assert said(*given)[-1] == "Drawn from 2 rows: 1 model on 1 split, 2 seeds."


def test_rows_of_no_known_kind_are_only_counted():
    assert said(row("step-cost", {}, seed=None)) == ["Drawn from 1 row."]
    assert overview(Material.of([row("step-cost", {})])) is None


def test_nothing_right_at_any_dim_is_no_division_by_zero():
    assert said(evaluate_row({8: 0.0, 16: 0.0})) == ["Drawn from 1 row: 1 model on 1 split, 1 seed."]


CASCADE = CascadeCurve(
    "nested", "emoji", "flat", "tied", "greedy", 30, 100, 300, (8, 16, 32), (0.5, 0.7, 0.8), (8.0, 16.0, 32.0),
    (0.5, 0.72, 0.797), (0.01,) * 3, (8.0, 10.0, 12.4), (0.1,) * 3, (8.0, 15.0, 21.0), (0.2,) * 3,
)  # fmt: skip


def test_the_cheapest_cascade_that_loses_at_most_half_a_point_is_named():
    dearer = dataclasses.replace(CASCADE, strategy="budget", expected_dim=(8.0, 11.0, 15.0), accuracy=(0.5, 0.7, 0.81))
    elsewhere = dataclasses.replace(CASCADE, split="sketch", expected_dim=(1.0, 1.0, 1.0))
    found = said(of(CASCADE), of(dearer), of(elsewhere, subject="nested emoji sketch"))
    assert found[0] == (
        "Answered at the smallest dim that is sure enough, nested spends 12 of 32 dims on average and loses 0.3 points "
        "against its full dim (80.0 %)."
    )
    assert "gains 1.0 points" in said(of(dearer))[0]
    assert len(said(of(dataclasses.replace(CASCADE, accuracy=(0.5, 0.6, 0.7))))) == 1
    separate = said(of(dataclasses.replace(CASCADE, head="separate")))[0]
    assert "nested answers at 12 of 32 dims on average (21 computed in all) and loses 0.3 points" in separate


def test_the_table_shows_the_first_split_at_the_trained_dims():
    table = overview(Material.of([*rows(), evaluate_row(NESTED, model="nested", name="nested", split="sketch")]))
    assert table.title == "1-NN accuracy on emoji / flat, %"
    assert table.heads == ("dim", "nested", "fixed, truncated")
    assert table.lines == (("8", "60.0", "20.0"), ("16", "76.0", "41.0"), ("32", "80.0", "82.0"))
    seeds = overview(Material.of(every_kind()))
    assert seeds.lines[0][1] == "74.9 ± 1.1"


def line(ys, trained=None, spread=""):
    points = [Point(dim, y, 0.1, trained=trained is None or dim in trained) for dim, y in ys.items()]
    return Curve("place", "name", "metric", tuple(points), spread=spread)


@pytest.mark.parametrize(
    ("ys", "trained", "dim"),
    [
        ({8: 0.5, 16: 0.95, 32: 1.0}, None, 16),                  # just enough
        ({8: 0.5, 16: 0.94, 32: 1.0}, None, 32),                  # nothing below full is
        ({8: 0.99, 16: 0.9, 32: 1.0}, None, 8),                   # the smallest, whatever comes after
        ({8: 0.5, 16: 0.99, 24: 1.0, 32: 1.0}, (8, 24, 32), 24),  # dims that were not trained do not count,
        ({8: 0.5, 16: 0.99, 32: 1.0}, (32,), 16),                 # unless nothing else was
    ],
)
def test_the_smallest_dim_that_is_enough(ys, trained, dim):
    assert enough(line(ys, trained)).dim == dim


def test_a_curve_is_told_by_two_different_dims():
    assert [point.dim for point in ends(line({8: 0.5, 16: 0.94, 32: 1.0}))] == [8, 32]
    assert [point.dim for point in ends(line({8: 0.5, 16: 0.95, 32: 1.0}))] == [16, 32]


def test_bars_are_explained_once_and_only_where_they_are():
    assert bars([line({8: 0.5}, spread="sd over 3 seeds")] * 2) == " Bars: sd over 3 seeds."
    assert bars([line({8: 0.5})]) == ""
