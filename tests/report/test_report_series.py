"""Rows become groups and lines: seeds are averaged, names told apart, and strange figures refused."""

from statistics import fmean, stdev

import numpy as np
import pytest
from report_rows import evaluate_row, evaluation, of, row

from matryo.errors import InputError
from matryo.evaluation import Evaluation
from matryo.evaluation.protocols.few_shot import FewShot
from matryo.evaluation.protocols.probe import Probe
from matryo.report.models import Looks, evaluated
from matryo.report.series import curve, gather, over_seeds


def probe_row(top1, *, seed=0, model="m", split="test"):
    return of(Probe(model, "data", split, (8, 16), top1, top1), seed=seed, subject=f"{model} data {split}")


def probes(rows):
    return gather(rows, Probe, lambda one: one.dims)


def test_seeds_of_one_model_and_split_become_a_mean_with_its_deviation():
    values = [(0.5, 0.61), (0.52, 0.6), (0.47, 0.68)]
    (group,) = probes([probe_row(top1, seed=seed) for seed, top1 in enumerate(values)])
    line = curve(group, lambda one: one.top1, metric="top-1")
    assert line.seeds == 3
    assert line.spread == "sd over 3 seeds"
    for place, point in enumerate(line.points):
        seen = [top1[place] for top1 in values]
        assert point.y == pytest.approx(fmean(seen))
        assert point.sd == pytest.approx(stdev(seen))


def test_one_seed_has_no_deviation_but_may_have_a_spread_of_its_own():
    (group,) = probes([probe_row((0.5, 0.6))])
    line = curve(group, lambda one: one.top1, metric="top-1")
    assert [np.isnan(point.sd) for point in line.points] == [True, True]
    assert line.spread == ""
    shots = FewShot("m", "data", "test", "all", 5, 10, (8, 16), (1,), ((0.3, 0.4),), ((0.01, 0.02),))
    (group,) = gather([of(shots)], FewShot, lambda one: one.dims)
    about = {"metric": "1 shot", "own": lambda one: one.margin[0], "own_spread": "95 % interval"}
    line = curve(group, lambda one: one.accuracy[0], **about)
    assert [point.sd for point in line.points] == [0.01, 0.02]
    assert line.spread == "95 % interval"
    (group,) = gather([of(shots), of(shots, seed=1)], FewShot, lambda one: one.dims)
    line = curve(group, lambda one: one.accuracy[0], **about)
    assert [point.sd for point in line.points] == [0.0, 0.0]
    assert line.spread == "sd over 2 seeds"


def test_other_splits_models_and_dims_stay_apart():
    rows = [probe_row((0.5, 0.6)), probe_row((0.4, 0.5), split="sketch"), probe_row((0.3, 0.4), model="other")]
    rows.append(of(Probe("m", "data", "test", (8, 32), (0.1, 0.2), (0.1, 0.2)), subject="m data test"))
    assert [(g.name, g.place, g.first.dims) for g in probes(rows)] == [
        ("m", "data / test", (8, 16)),
        ("m", "data / sketch", (8, 16)),
        ("other", "data / test", (8, 16)),
        ("m", "data / test", (8, 32)),
    ]


def test_measured_again_the_last_row_counts():
    (group,) = probes([probe_row((0.5, 0.6)), probe_row((0.7, 0.8))])
    assert [one.top1 for one in group.results] == [(0.7, 0.8)]


def test_two_folders_with_models_of_one_name_and_seed_go_by_their_folders():
    result = Probe("recipe separate", "data", "test", (8,), (0.5,), (0.5,))
    rows = [of(result, subject=f"{folder} data test") for folder in ("first", "second")]
    assert [group.name for group in probes(rows)] == ["first", "second"]
    rows = [of(result, subject=f"{folder} data test", seed=seed) for seed, folder in enumerate(("s0/run", "s1/run"))]
    assert [(group.name, len(group.rows)) for group in probes(rows)] == [("recipe separate", 2)]


def test_a_model_without_a_name_goes_by_its_folder():
    (group,) = probes([of(Probe("", "data", "test", (8,), (0.5,), (0.5,)), subject="emb/mine data test")])
    assert group.name == "emb/mine"


@pytest.mark.parametrize("figures", [{}, {"model": "m", "nonsense": 1}, {"model": "m", "dims": [8]}])
def test_figures_of_another_layout_are_refused(figures):
    with pytest.raises(InputError, match=r"'probe' must have the figures of Probe .*'demo-nested emoji flat'.*again"):
        probes([row("probe", figures)])


def test_what_is_missing_in_every_seed_is_left_out():
    mean, deviation = over_seeds([(0.5, None), (0.7, None)], lambda one: one)
    assert mean[0] == pytest.approx(0.6)
    assert deviation[0] == pytest.approx(stdev([0.5, 0.7]))
    assert np.isnan([mean[1], deviation[1]]).all()


def test_models_stand_in_order_and_say_where_they_were_trained():
    dims = (8, 12, 16)
    rows = [
        evaluate_row(dict.fromkeys(dims, 0.5), model="fixed + PCA", name="fixed + PCA", trained=(16,)),
        evaluate_row(dict.fromkeys(dims, 0.5), model="fixed", name="fixed", trained=(16,)),
        evaluate_row(dict.fromkeys(dims, 0.5), model="nested", name="nested", trained=(8, 16)),
        evaluate_row(dict.fromkeys(dims, 0.5), model="nested", name="nested", trained=(8, 16), split="sketch"),
    ]
    lines = evaluated(rows)
    assert [(line.label, line.role, line.place) for line in lines] == [
        ("nested", "nested", "emoji / flat"),
        ("fixed", "fixed", "emoji / flat"),
        ("fixed + PCA", "post hoc", "emoji / flat"),
        ("nested", "nested", "emoji / sketch"),
    ]
    assert [point.trained for point in lines[0].curve("1-NN accuracy").points] == [True, False, True]
    assert lines[0].curve("head top-1") is None


@pytest.mark.parametrize("names", [("fixed", "fixed"), ("run-fixed-8", "run-fixed-16")])
def test_fixed_models_of_several_dims_give_a_truncated_line_and_one_of_their_own(names):
    small, large = names
    rows = [
        evaluate_row({8: 0.4}, model=small, name="a", trained=(8,)),
        evaluate_row({8: 0.1, 16: 0.6}, model=large, name="b", trained=(16,)),
    ]
    family = small.removesuffix("-8")
    cut, own = evaluated(rows)
    assert (cut.label, own.label) == (f"{family}, truncated", f"{family}, one per dim")
    assert [(point.dim, point.y) for point in cut.curve("1-NN accuracy").points] == [(8, 0.1), (16, 0.6)]
    assert [(point.dim, point.y) for point in own.curve("1-NN accuracy").points] == [(8, 0.4), (16, 0.6)]
    alone = evaluated(rows[1:])
    assert [line.label for line in alone] == [large]


def test_a_metric_is_averaged_by_dim_over_the_seeds_that_have_it():
    rows = [evaluate_row({8: 0.4, 16: 0.5}, seed=0), evaluate_row({8: 0.6, 12: 0.7, 16: 0.9}, seed=1)]
    (line,) = evaluated(rows)
    low, middle, high = line.curve("mAP@10").points
    assert (low.y, high.y) == (pytest.approx(fmean([0.32, 0.48])), pytest.approx(fmean([0.4, 0.72])))
    assert low.sd == pytest.approx(stdev([0.32, 0.48]))
    assert (middle.y, np.isnan(middle.sd)) == (pytest.approx(0.56), True)


def test_a_model_looks_the_same_everywhere_and_unlike_the_others():
    rows = [
        evaluate_row({8: 0.4, 16: 0.6}, model=name, name=name, trained=trained)
        for name, trained in (("fixed", (16,)), ("fixed + PCA", (16,)), ("nested", (8, 16)))
    ]
    looks = Looks(evaluated(rows))
    found = [looks.of(name) for name in ("nested", "fixed", "fixed + PCA", "something else")]
    assert len({(look.colour, look.marker) for look in found}) == 4
    assert found == [looks.of(name) for name in ("nested", "fixed", "fixed + PCA", "something else")]
    assert found[0].width > found[1].width > found[2].width
    assert found[2].dash
    assert not found[0].dash


def test_evaluations_read_back_as_they_were():
    one = evaluation({8: 0.4, 16: 0.6}, head={16: 0.7})
    (group,) = gather([row("evaluate", one.to_figures())], Evaluation, lambda each: each.dims)
    assert group.first == one
