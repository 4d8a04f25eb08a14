"""The pages of texts and images: what is compared with what, over which seeds, and whether it is reached."""

import dataclasses

import pytest
from pages.modalities import (
    MAKERS,
    mlm_tables,
    pairs_tables,
    similarity_tables,
    steps_tables,
    text_tables,
    vit_tables,
    zero_shot_tables,
)
from pages.modalities_rows import behind, counted

from matryo.evaluation import Pairs, Similarity, ZeroShot
from matryo.results import stamp


def text_row(arm, ndcg, seed=None, **more):
    dims, trained = [12, 16, 24], [12, 24]
    figures = {"arm": arm, "dims": dims, "trained": trained, "model": "MiniLM", "quick": False,
               "scifact": {"ndcg@10": ndcg, "recall@100": ndcg}, "clinc150": {"1-nn": ndcg, "10-nn": ndcg},
               "stsb": {"spearman": ndcg}}  # fmt: skip
    if seed is not None:
        figures |= {"steps": 10, "batch": 8, "lr": 5e-5, "length": 128, "pairs": {"scifact": 1234}}
    return stamp("text-finetune", arm, {**figures, **more}, seed=seed, hardware="GPU")


def test_finetuned_encoders_stand_beside_each_other_over_their_seeds():
    rows = [
        text_row("original", [0.3, 0.4, 0.5]),
        text_row("nested", [0.5, 0.5, 0.6], seed=0),
        text_row("nested", [0.52, 0.5, 0.6], seed=1),
        text_row("matryoshka", [0.52, 0.5, 0.61], seed=0),
        text_row("matryoshka", [0.52, 0.5, 0.67], seed=1),
    ]
    page = "\n".join(text_tables(rows))
    assert "| dim | original | MatryoshkaLoss | nested |" in page
    assert "| 12 | 30.0 (1) | **52.0 ± 0.0 (2)** | 51.0 ± 1.4 (2) |" in page
    assert "| 16\\* |" in page   # no model was trained there
    assert "10 steps of 8 pairs" in page and "1,234 pairs of scifact" in page
    # At 24 dims the difference is 4 points, of which two standard errors are 6.
    assert behind([0.6, 0.6], [0.61, 0.67]) == pytest.approx((0.04, 0.06))
    asked = "≥ at every dim, within noise"
    assert f"nested beside MatryoshkaLoss | {asked} | -4.0 points at 24, the worst dim | yes |" in page
    assert f"nested beside original | {asked} | +10.0 points at 24, the worst dim | yes |" in page
    worse = [*rows[:3], text_row("matryoshka", [0.9, 0.5, 0.6], seed=0)]
    assert "-39.0 points at 12, the worst dim | **no** |" in "\n".join(text_tables(worse))


def test_quick_tries_and_older_settings_do_not_count():
    old, new = text_row("nested", [0.1] * 3, seed=0, steps=5), text_row("nested", [0.2] * 3, seed=1)
    again = text_row("nested", [0.3] * 3, seed=1)
    quick = text_row("nested", [0.9] * 3, seed=2, quick=True)
    kept = counted([old, new, again, quick], lambda row: row.figures["arm"], ("steps",))
    assert kept == [again]
    assert "| 12 | 30.0 (1) |" in "\n".join(text_tables([old, new, again, quick]))
    assert len(text_tables([quick])) == 1


def test_steps_say_how_much_faster_they_are():
    def of(ms):
        return {"p20": ms * 0.9, "p50": ms, "p80": ms * 1.2}

    figures = {"steps": {"nested": of(10.0), "matryoshka": of(15.0), "nested loss": of(12.0)}}
    row = stamp("text-steps", "a training step", figures | {"sentence_transformers": "6.0"}, seed=None, hardware="GPU")
    page = "\n".join(steps_tables([row]))
    assert "| nested | 9.00 | 10.00 | 12.00 | 1.50 |" in page
    assert "| NestedRankingLoss | 10.80 | 12.00 | 14.40 | 1.25 |" in page
    assert "On GPU; sentence-transformers 6.0." in page


def series_row(kind, figure, model, by_dim, seed=0, **changed):
    figures = {figure: {"test": {str(dim): value for dim, value in by_dim.items()}}, "seconds": 10.0 + seed}
    figures |= {"model": model, "recipe": "imdb-mlm", "changed": changed, "quick": False}
    return stamp(kind, "imdb-mlm tied", figures, seed=seed, hardware="GPU")


def test_nested_within_half_a_point_of_fixed_or_not():
    rows = [series_row("mlm", "masked_top1", "nested", {12: 0.30, 24: 0.40}, seed, steps=9) for seed in (0, 1)]
    rows += [series_row("mlm", "masked_top1", "fixed:12", {12: 0.304}, steps=9),
             series_row("mlm", "masked_top1", "fixed:24", {24: 0.41}, steps=9)]  # fmt: skip
    page = "\n".join(mlm_tables(rows))
    assert "| nested, 12 dims | at most 0.5 points behind fixed | -0.40 | yes |" in page
    assert "| nested, 24 dims | at most 0.5 points behind fixed | -1.00 | **no** |" in page
    assert "| 12 | 30.00 ± 0.00 (2) | 30.40 (1) | -0.40 |" in page
    assert "## imdb-mlm, steps = 9" in page
    assert "Seconds a training: nested 10 ± 1 (2), fixed 10 ± 0 (2)." in page
    shared = [dataclasses.replace(row, figures={**row.figures, "alone": False}) for row in rows]
    assert "Several trainings shared the device and took up to 11 seconds" in "\n".join(mlm_tables(shared))
    assert "Seconds a training: fixed 10 (1)." in "\n".join(mlm_tables([*shared[:3], rows[3]]))
    noted = dataclasses.replace(rows[3], figures={**rows[3].figures, "note": "rounded"})
    assert "fixed:24 seed 0: rounded." in mlm_tables([*rows[:3], noted])
    shorter = "\n".join(mlm_tables([series_row("mlm", "masked_top1", "nested", {12: 0.9}, steps=5), *rows]))
    own, _, rest = shorter.partition("## imdb-mlm, steps = 9")
    assert "## imdb-mlm, steps = 5" in own and "| 12 | 90.00 (1) |" in own   # never among those of other steps
    assert rest == page.partition("## imdb-mlm, steps = 9")[2]


def test_nested_models_trained_otherwise_stand_beside_the_same_fixed_ones():
    def mlm(model, by_dim, **changed):
        return series_row("mlm", "masked_top1", model, by_dim, steps=9, **changed)

    rows = [mlm("fixed:12", {12: 0.4}), mlm("nested", {12: 0.3, 24: 0.5}),
            mlm("nested", {12: 0.35, 24: 0.45}, **{"head.weights": "2,1"}),
            mlm("nested", {12: 0.36}, **{"head.weights": "2,1", "head.join": "0.5"})]  # fmt: skip
    page = "\n".join(mlm_tables(rows))
    assert page.count("\n## ") == 1   # one section for all
    assert "| 12 | 30.00 (1) | 40.00 (1) | -10.00 |" in page
    assert "| nested, as in the recipe | 30.00 (-10.00) | 50.00 |" in page
    assert "| head.weights = 2,1 | 35.00 (-5.00) | 45.00 |" in page
    assert "| head.join = 0.5, head.weights = 2,1 | 36.00 (-4.00) | – |" in page
    assert "join later" not in "\n".join(mlm_tables(rows[:2]))
    alike = [mlm("fixed:12", {12: 0.4}, **{"head.join": "0.5"}), *rows[2:]]   # a fixed model has no dims to weigh
    assert "| 12 | 40.00 (1) |" in "\n".join(mlm_tables(alike))
    assert "| head.weights = 2,1 | 35.00 (-5.00) | 45.00 |" in "\n".join(mlm_tables(alike))


def test_vision_transformers_have_two_nested_columns():
    found = {"separate": {12: 0.5, 48: 0.6}, "tied": {12: 0.4, 48: 0.6}, "fixed:12": {12: 0.45}}
    rows = [series_row("vit", "top1", model, by_dim) for model, by_dim in found.items()]
    page = "\n".join(vit_tables(rows))
    assert "| dim | separate | tied | fixed | separate − fixed | tied − fixed |" in page
    assert "| 12 | 50.00 (1) | 40.00 (1) | 45.00 (1) | +5.00 | -5.00 |" in page
    assert "| 48 | 60.00 (1) | 60.00 (1) | – | – | – |" in page


def of(result, seed):
    subject = f"{result.model} {result.dataset} {result.split}"
    return stamp(result.kind, subject, result.to_figures(), seed=seed, hardware="GPU")


def test_images_and_texts_both_ways():
    def made(model, hit):
        by_k = tuple((hit, hit, hit) for _ in (8, 16))
        sizes = ("images", "texts"), (100, 500), (100, 500), 500
        return Pairs(f"flickr8k-pairs {model}", "flickr8k", "test", *sizes, (8, 16), (1, 5, 10), *((by_k, by_k),) * 4)

    rows = [of(made("nested", 0.3), 0), of(made("nested", 0.32), 1), of(made("fixed", 0.2), 0)]
    page = "\n".join(pairs_tables(rows))
    assert "**flickr8k, test, images → texts** (100 ask, 500 are searched)" in page
    assert "**flickr8k, test, texts → images** (500 ask, 100 are searched)" in page
    assert "| dim | hit@1: nested | hit@1: fixed | hit@5: nested |" in page
    assert "| 8 | **31.0 ± 1.4 (2)** | 20.0 (1) | **31.0 ± 1.4 (2)** |" in page


def test_spans_and_zero_shot():
    shares = ((1.0,), (1.0,))
    span = Similarity("x nested", "emoji", "test", 10, (8, 16), (0.6, 0.7), (0.1,) * 2, (0.1, 0.2), (0.1,) * 2,
                      (0.9, 0.95), (-1.0, 1.0), shares, shares)  # fmt: skip
    page = "\n".join(similarity_tables([of(span, 0)]))
    assert "| 16 | 0.700 (1) | 0.200 (1) | 0.500 | 95.0 (1) |" in page
    told = ZeroShot("x nested", "emoji", "test, groups by their names", 20, (8, 16), (0.25, 0.5), (0.5, 1.0))
    both = [of(told, 0), of(dataclasses.replace(told, model="x fixed", top1=(0.1, 0.6)), 0)]
    page = "\n".join(zero_shot_tables(both))
    assert "**emoji, test, groups by their names**" in page
    assert "| 8 | **25.0 (1)** | 10.0 (1) |" in page
    assert "| 16 | 50.0 (1) | **60.0 (1)** |" in page


def test_every_kind_has_its_maker():
    assert {*MAKERS} == {"text-finetune", "text-steps", "mlm", "vit", "image-text", "pairs", "similarity", "zero-shot"}
    row = series_row("image-text", "hit@1", "nested", {8: 0.1})
    assert "| imdb-mlm | nested | 10 (1) | GPU |" in "\n".join(MAKERS["image-text"]([row]))
    beside = dataclasses.replace(row, figures=row.figures | {"alone": False})
    assert "| imdb-mlm | nested | – | GPU |" in "\n".join(MAKERS["image-text"]([beside]))
