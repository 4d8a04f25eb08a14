"""The answer on the first screen: checked against plain loops and against numbers worked out by hand."""

import math
from statistics import fmean, stdev

import pytest
from report_rows import evaluate_row, every_kind, of, row

from matryo.evaluation.protocols.sts import Sts
from matryo.report.answer import Choice, answer, payload, subjects
from matryo.report.material import Material

NESTED = {8: 0.60, 12: 0.70, 16: 0.76, 24: 0.796, 32: 0.80}
HARD = {8: 0.10, 12: 0.20, 16: 0.30, 24: 0.45, 32: 0.50}
TRAINED = (8, 16, 32)
NEAREST = "1-NN accuracy"


def models(*rows):
    return subjects(Material.of(list(rows)))


def nested(top1=NESTED, **about):
    return evaluate_row(top1, model="nested", name="nested", trained=TRAINED, **about)


def oracle(model, choice):
    """The answer by plain loops: try every dim, largest first, and stop at the first that fails."""
    curves = [c for c in model.curves if choice.metric in ("all", c.metric) and choice.split in ("all", c.split)]
    best = None
    for dim in sorted(model.dims, reverse=True):
        measured = [dict(zip(c.dims, c.kept, strict=True)).get(dim) for c in curves]
        if any(kept is not None and kept < choice.keep for kept in measured):
            break
        best = dim if None not in measured else best
    return best


@pytest.mark.parametrize("keep", [0.8, 0.9, 0.95, 0.98, 0.99, 1.0])
def test_the_answer_is_that_of_plain_loops(keep):
    found = models(*every_kind())
    for index, model in enumerate(found):
        metrics, splits = ({"all", *names} for names in zip(*((c.metric, c.split) for c in model.curves), strict=True))
        for metric in metrics:
            for split in splits:
                choice = Choice(index, metric, split, keep)
                if any(choice.covers(curve) for curve in model.curves):
                    assert answer(found, choice)["dim"] == oracle(model, choice)


def test_the_hardest_split_decides_and_disagreement_is_reported():
    found = models(nested(), nested(HARD, split="sketch"))
    easy = answer(found, Choice(0, NEAREST, "emoji / flat", 0.95))
    assert (easy["dim"], easy["warning"]) == (16, "")
    assert easy["headline"] == "Use 16 of 32 dims"
    both = answer(found, Choice(0, NEAREST, keep=0.95))
    assert both["headline"] == "Use all 32 dims"
    assert both["warning"] == (
        "The splits disagree: by 1-NN accuracy, 16 dims suffice on emoji / flat, but 32 are needed on emoji / sketch."
    )
    assert both["why"].endswith("keeps at least 95 % of the full-dim quality by 1-NN accuracy on each of 2 splits.")


def test_every_larger_dim_must_keep_the_quality_too():
    found = models(nested({8: 0.79, 16: 0.7, 32: 0.8}))
    assert answer(found, Choice(0, NEAREST))["dim"] == 32


def test_dims_between_the_trained_ones_are_chosen_only_where_one_dim_was_trained():
    assert models(nested())[0].dims == TRAINED
    (own,) = models(evaluate_row(NESTED, model="own", trained=(32,)))
    assert own.dims == tuple(NESTED)
    assert answer([own], Choice(0, NEAREST))["dim"] == 24


def test_costs_are_bytes_per_vector_and_multiply_adds_per_query():
    facts = answer(models(nested()), Choice(0, NEAREST, keep=0.95))
    assert facts["bytes"] == "64 instead of 128 bytes"
    assert facts["flops"] == "0.016 instead of 0.032 MFLOPs"   # 1,000 vectors


def test_the_error_is_the_binomial_one_with_one_seed():
    (curve, _) = models(nested())[0].curves
    at = curve.dims.index(16)
    share = 0.76 / 0.80
    variance = 0.76 * 0.24 / 400 + share**2 * 0.80 * 0.20 / 400
    assert curve.kept[at] == pytest.approx(share)
    assert curve.error[at] == pytest.approx(1.96 * math.sqrt(variance) / 0.80)
    assert curve.error[-1] == 0
    assert curve.text(at) == f"95.0 ± {100 * curve.error[at]:.1f} %"


def test_seeds_add_their_own_error_paired_by_seed():
    low, high = ([0.70, 0.74, 0.75], [0.80, 0.83, 0.86])
    rows = [nested({8: a, 16: b, 32: b}, seed=seed) for seed, (a, b) in enumerate(zip(low, high, strict=True))]
    (curve, _) = models(*rows)[0].curves
    mean, full = fmean(low), fmean(high)
    share = mean / full
    residuals = [a - share * b for a, b in zip(low, high, strict=True)]
    variance = stdev(residuals) ** 2 / 3 + (mean * (1 - mean) + share**2 * full * (1 - full)) / 400
    assert curve.error[0] == pytest.approx(1.96 * math.sqrt(variance) / full)


def test_the_range_allows_for_the_error():
    found = models(nested())
    curve = found[0].curves[0]
    facts = answer(found, Choice(0, NEAREST, keep=0.95))
    sure = [d for d, k, e in zip(curve.dims, curve.kept, curve.error, strict=True) if d in TRAINED and k - e >= 0.95]
    maybe = [d for d, k, e in zip(curve.dims, curve.kept, curve.error, strict=True) if d in TRAINED and k + e >= 0.95]
    assert facts["range"] == f"{min(maybe)} to {min(sure)} dims"


def test_more_than_all_is_as_good_as_the_full_dim():
    facts = answer(models(nested({8: 0.4, 16: 0.85, 32: 0.80})), Choice(0, NEAREST))
    assert facts["headline"] == "Use 16 of 32 dims"
    assert facts["kept"] == "as good as the full dim: 1-NN accuracy on emoji / flat"


def test_a_baseline_is_measured_against_the_model_it_is_made_from():
    own = evaluate_row({8: 0.2, 16: 0.5, 32: 0.8}, model="own", name="own", trained=(32,))
    pca = evaluate_row({8: 0.7, 16: 0.79, 32: 0.8}, model="own + PCA", name="own + PCA", trained=(32,))
    random = evaluate_row({8: 0.2, 16: 0.3, 32: 0.4}, model="own + jl", name="own + jl", trained=(32,))
    found = models(own, pca, random)
    first = answer(found, Choice(0))
    assert (first["headline"], first["other"]) == ("Use all 32 dims", "own + PCA needs only 16 dims.")
    worst = answer(found, Choice(2))
    assert (worst["headline"], worst["dim"]) == ("No dim keeps 98 %", None)
    assert worst["why"].startswith("Even 32 dims of own + jl keep less than 98 % of the quality of own by each of 2")
    family = [evaluate_row({8: 0.4}, model="f-8", name="a", trained=(8,)),
              evaluate_row({8: 0.2, 16: 0.8}, model="f-16", name="b", trained=(16,)),
              evaluate_row({8: 0.1, 16: 0.4}, model="f-16 + jl", name="c", trained=(16,))]   # fmt: skip
    assert [(model.name, model.source) for model in models(*family)] == [("f", "f"), ("f-16 + jl", "f")]


def test_correlations_and_pairs_have_answers_too():
    (model,) = models(of(Sts("m", "data", "test", 103, (8, 16), (0.6, 0.8), (0.6, 0.8))))
    (curve,) = model.curves
    assert (curve.metric, curve.kept) == ("Spearman", (pytest.approx(0.75), 1.0))
    variances = [(1 - r**2) ** 2 * (1 + r**2 / 2) / 100 for r in (0.6, 0.8)]
    assert curve.error[0] == pytest.approx(1.96 * math.sqrt(variances[0] + 0.75**2 * variances[1]) / 0.8)
    assert "MFLOPs" not in answer([model], Choice(0))["flops"]   # nothing is searched
    pairs = next(one for one in every_kind() if one.kind == "pairs")
    assert {c.metric for c in models(pairs)[0].curves} == {"nDCG@10, images → texts", "nDCG@10, texts → images"}


def test_without_two_dims_or_any_quality_there_is_no_question():
    assert models(row("step-cost", {})) == models(evaluate_row({8: 0.5})) == []
    assert models(evaluate_row({8: 0.0, 16: 0.0})) == []


def test_the_page_gets_every_text_it_may_show():
    (model,) = models(nested())
    (data,) = payload([model])
    assert data["bytes"] == ["32", "64", "128"]
    assert [curve["texts"] for curve in data["curves"]] == [[c.text(i) for i in range(5)] for c in model.curves]
