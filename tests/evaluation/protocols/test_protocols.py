"""One model, every protocol: under its name, with the baselines beside it, and refusals that say what is missing."""

from dataclasses import replace

import numpy as np
import pytest

from matryo import EmbeddingSet, Nesting, evaluate
from matryo.baselines import PCA, RandomFeatures
from matryo.embeddings import Head
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation import PROTOCOLS, Relevance, Subject, measure, measure_baseline, pairs, similarity_span, sts

NESTING = Nesting([4, 8, 16])
CLASSES = 6


def embeddings(split, count, *, seed, head=None, nesting=NESTING, offset=0, **about):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES + offset
    centres = np.random.default_rng(0).normal(size=(CLASSES + 2, 16))
    vectors = centres[labels] + rng.normal(size=(count, 16))
    named = {"classes": [f"c{i}" for i in range(CLASSES + 2)], "dataset": "made up", "split": split}
    return EmbeddingSet.of(vectors, labels=labels, head=head, nesting=nesting, **named, **about)


@pytest.fixture(scope="module")
def subject():
    head = Head.tied(np.random.default_rng(0).normal(size=(CLASSES + 2, 16)), dims=NESTING.dims)
    kinds = {"superclasses": ["even", "odd"], "superclass_of": [i % 2 for i in range(CLASSES + 2)]}
    queries = {
        "near": embeddings("near", 240, seed=2, head=head, **kinds),
        "far": embeddings("far", 240, seed=3, head=head, **kinds),
    }
    return Subject("mine", 7, embeddings("train", 180, seed=1), queries, texts=embeddings("texts", 16, seed=4))


FITTED = {"probe": "scipy"}


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name not in ("zero-shot", "pairs", "sts")])
def test_every_protocol_tells_its_splits_under_the_subjects_name(subject, protocol):
    if protocol in FITTED:
        pytest.importorskip(FITTED[protocol])
    found = measure(subject, protocol)
    assert {one.kind for one in found} == {protocol}
    assert {one.model for one in found} == {"mine"}
    if protocol == "robustness":
        assert found[0].splits == ("near", "far")
    else:
        assert {one.split for one in found} == {"near", "far"}
    again = type(found[0]).from_figures(found[0].to_figures())
    assert again.to_figures() == found[0].to_figures()


def test_zero_shot_needs_texts(subject):
    described = embeddings("texts", 8, seed=5)
    all_described = described.select(np.arange(6))
    given = Subject("mine", 7, subject.database, subject.queries, texts=all_described)
    assert [one.prompts for one in measure(given, "zero-shot")] == [6, 6]
    with pytest.raises(InputError, match="embeddings of texts"):
        measure(Subject("mine", 7, subject.database, subject.queries), "zero-shot")


@pytest.fixture(scope="module")
def paired():
    """Queries and candidates of the same six things; those of one thing belong together."""
    asked, known = embeddings("test", 40, seed=2), embeddings("test", 60, seed=3)
    related = Relevance.of(np.argwhere(asked.labels[:, None] == known.labels[None]))
    return Subject("mine", 7, known, {"test": asked}, relevance=related, progress=False)


def test_pairs_are_measured_where_it_is_known_what_belongs_together(subject, paired):
    (found,) = measure(paired, "pairs")
    by_hand = pairs(paired.queries["test"], paired.database, paired.relevance, progress=False)
    assert (found.model, found.dims) == ("mine", NESTING.dims)
    assert (found.ndcg, found.hit, found.recall, found.mrr) == (by_hand.ndcg, by_hand.hit, by_hand.recall, by_hand.mrr)
    (span,) = measure(paired, "similarity")
    expected = similarity_span(paired.queries["test"], paired.database, relevance=paired.relevance)
    assert (span.auc, span.positive_mean) == (expected.auc, expected.positive_mean)
    with pytest.raises(InputError, match="pairs need relevance judgements"):
        measure(subject, "pairs")


def test_a_baseline_of_pairs_maps_both_sides(paired):
    (found,) = measure_baseline(paired, "pca")
    fitted = PCA().fit(paired.database)
    sides = fitted.apply(paired.queries["test"]), fitted.apply(paired.database)
    by_hand = pairs(*sides, paired.relevance, dims=NESTING.dims, progress=False)
    assert (found.model, found.ndcg, found.hit) == ("mine + PCA", by_hand.ndcg, by_hand.hit)
    (drawn,) = measure_baseline(paired, "random", draws=3)
    each = []
    for seed in range(3):
        fitted = RandomFeatures(seed).fit(paired.database)
        sides = fitted.apply(paired.queries["test"]), fitted.apply(paired.database)
        each.append(pairs(*sides, paired.relevance, dims=NESTING.dims, progress=False))
    assert np.array(drawn.recall) == pytest.approx(np.mean([one.recall for one in each], axis=0))
    assert (drawn.ks, drawn.counts) == (each[0].ks, each[0].counts)


def test_grades_are_measured_beside_pairs_with_their_baselines(subject, paired):
    rng = np.random.default_rng(5)
    graded = Relevance.of(rng.integers(0, 40, (90, 2)), rng.integers(0, 6, 90))
    known = replace(paired, relevance=graded)
    (found,) = measure(known, "sts")
    by_hand = sts(paired.queries["test"], paired.database, graded)
    assert (found.model, found.spearman, found.pearson) == ("mine", by_hand.spearman, by_hand.pearson)
    (mapped,) = measure_baseline(known, "pca", "sts")
    fitted = PCA().fit(paired.database)
    by_hand = sts(fitted.apply(paired.queries["test"]), fitted.apply(paired.database), graded, dims=NESTING.dims)
    assert (mapped.model, mapped.spearman) == ("mine + PCA", by_hand.spearman)
    with pytest.raises(InputError, match="pairs need relevance judgements"):
        measure(subject, "sts")
    with pytest.raises(InputError, match="different grades"):   # all belong together equally well
        measure(paired, "sts")
    with pytest.raises(InputError, match=r"baselines cannot be measured with this protocol .*'probe'"):
        measure_baseline(known, "pca", "probe")


def test_what_a_folder_lacks_is_named(subject):
    bare = Subject("bare", None, subject.database, {"near": embeddings("near", 60, seed=2)})
    with pytest.raises(InputError, match="must have superclasses"):
        measure(bare, "superclass")
    with pytest.raises(InputError, match=r"a head at several dims \(got none\)"):
        measure(bare, "cascade")
    with pytest.raises(InputError, match="several query splits"):
        measure(bare, "robustness")
    with pytest.raises(InputError, match=r"no such protocol \(got 'nope'\): choose from evaluate, probe"):
        measure(bare, "nope")
    with pytest.raises(InputError, match=r"no such baseline .*'nope'"):
        measure_baseline(bare, "nope")
    unlabelled = Subject("bare", None, subject.database, {"near": EmbeddingSet.of(np.ones((3, 16)))})
    with pytest.raises(EmbeddingsError, match="labels"):
        measure(unlabelled, "few-shot")


def test_predictions_come_from_a_head_that_knows_several_dims_else_from_neighbours(subject):
    assert subject.predictions[0][1].by == "head"
    alone = Head.separate({16: np.eye(CLASSES + 2, 16)})
    fixed = embeddings("near", 60, seed=2, head=alone, nesting=Nesting([16]))
    said = Subject("fixed", None, embeddings("train", 180, seed=1, nesting=Nesting([16])), {"near": fixed})
    [(queries, predictions)] = said.predictions
    assert queries is fixed
    assert (predictions.by, predictions.dims) == ("1-NN", (8, 16))


def test_a_baseline_is_its_map_then_evaluate(subject):
    found = measure_baseline(subject, "pca")
    assert [one.model for one in found] == ["mine + PCA"] * 2
    fitted = PCA().fit(subject.database)
    for one, asked in zip(found, subject.queries.values(), strict=True):
        by_hand = evaluate(fitted.apply(subject.database), fitted.apply(asked), progress=False)
        assert one.rows == by_hand.rows


def test_random_baselines_are_the_mean_of_their_draws(subject):
    near = measure_baseline(subject, "random", draws=3)[0]
    drawn = []
    for seed in range(3):
        fitted = RandomFeatures(seed).fit(subject.database)
        sets = fitted.apply(subject.database), fitted.apply(subject.queries["near"])
        drawn.append(evaluate(*sets, progress=False))
    for dim in near.dims:
        assert near.at(dim).top1 == pytest.approx(np.mean([one.at(dim).top1 for one in drawn]))
        assert near.at(dim).map_at[10] == pytest.approx(np.mean([one.at(dim).map_at[10] for one in drawn]))
        assert near.at(dim).mflops == pytest.approx(drawn[0].at(dim).mflops)
    assert near.at(4).trained is drawn[0].at(4).trained


def test_classes_that_the_database_lacks_are_measured_by_themselves(subject):
    mixed = embeddings("mixed", 120, seed=6, offset=2)   # classes 2 … 7, of which the database lacks two
    told = measure(Subject("mine", None, subject.database, {"mixed": mixed}), "few-shot")
    assert [(one.classes, one.ways) for one in told] == [("all", 6), ("never trained", 2)]


def test_splits_with_one_example_a_class_are_put_together_for_few_shot(subject):
    single = {name: embeddings(name, CLASSES, seed=seed) for name, seed in (("a", 7), ("b", 8), ("c", 9))}
    (told,) = measure(Subject("mine", None, subject.database, single), "few-shot")
    assert (told.split, told.shots) == ("a + b + c", (1,))
