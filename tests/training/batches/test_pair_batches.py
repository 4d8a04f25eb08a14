"""Batches of pairs: every query once an epoch with one of its own, nothing beside it that belongs to it too."""

import numpy as np
import pytest
import torch

pytest.importorskip("tokenizers")

from hypothesis import given, settings
from hypothesis import strategies as st
from texts_made import captions, labelled, pairs, recipe, tokenizer

from matryo.data import Pairs, TextRows, pairs_by_label, text_dataset
from matryo.errors import DataError, RecipeError
from matryo.training.batches.false_negatives import Positives, keys_of
from matryo.training.batches.open import open_batches
from matryo.training.batches.pairs import PairOrder
from matryo.training.distributed import Group

CPU = torch.device("cpu")
ALONE = Group(0, 1, CPU)


def split_of(rows, negatives=None, **options):
    """Rows of two lists of texts that are all different."""
    sides = [TextRows([f"{side}{i}" for i in range(rows[:, place].max() + 1)]) for place, side in enumerate("qc")]
    return Pairs(*sides, rows, negatives=negatives, **options)


def positives(split):
    return PairOrder(split.pairs, split.negatives, Positives(split.pairs, keys_of(split)))


def clashes(rows, chosen, batch):
    """How many candidates of a batch belong to a query they do not stand beside."""
    known, count = {tuple(row) for row in rows.tolist()}, 0
    for low in range(0, len(chosen) // batch * batch, batch):
        some = rows[chosen[low : low + batch]]
        count += sum((q, c) in known for i, (q, _) in enumerate(some.tolist()) for j, (_, c) in enumerate(some.tolist())
                     if i != j)  # fmt: skip
    return count


def random_rows(queries=200, candidates=60, each=3, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([(q, c) for q in range(queries) for c in rng.choice(candidates, each, replace=False)])


def test_every_query_comes_once_with_a_positive_of_its_own():
    rows = np.array([(q, 3 * q + c) for q in range(200) for c in range(3)])
    known = positives(split_of(rows))
    assert len(known) == 200
    for epoch in range(3):
        chosen = known.epoch(0, epoch, 8)
        assert sorted(rows[chosen, 0]) == list(range(200))
    drawn = np.array([np.sort(known.epoch(0, epoch, 8)) for epoch in range(60)])
    shares = np.bincount((drawn - 3 * np.arange(200)).reshape(-1), minlength=3) / drawn.size
    np.testing.assert_allclose(shares, 1 / 3, atol=0.02)   # all its positives, in turn


def test_the_order_is_that_of_seed_and_epoch():
    one, two = (positives(split_of(random_rows())) for _ in range(2))
    assert np.array_equal(one.epoch(3, 4, 8), two.epoch(3, 4, 8))
    for other in ((3, 5), (4, 4)):
        assert not np.array_equal(one.epoch(3, 4, 8), one.epoch(*other, 8))


def test_what_belongs_together_is_kept_apart():
    rows = random_rows()
    found = positives(split_of(rows))
    shuffled = np.random.default_rng(0).permutation(200) * 3
    assert clashes(rows, shuffled, 8) > 50
    for epoch in range(4):
        chosen = found.epoch(0, epoch, 8)
        assert clashes(rows, chosen, 8) == 0
        assert len(np.unique(rows[chosen, 0])) >= 195   # whoever would have clashed at the end waits for another epoch


def test_where_it_cannot_be_avoided_nobody_is_lost():
    rows = np.stack([np.arange(40), np.arange(40) % 2], 1)   # two candidates for everyone
    assert sorted(positives(split_of(rows)).epoch(0, 0, 8)) == list(range(40))


def test_where_one_candidate_is_too_common_others_come_again():
    rows = np.stack([np.arange(60), np.r_[np.zeros(30, int), np.arange(1, 31)]], 1)   # half of all have the same
    chosen = positives(split_of(rows)).epoch(0, 0, 6)
    assert len(chosen) == 60
    assert clashes(rows, chosen, 6) == 0


@pytest.mark.parametrize(("sizes", "batch"), [([20] * 12, 12), ([20] * 12, 5), ([40, 30, *[10] * 17], 8)])
def test_a_batch_of_pairs_by_label_holds_each_label_once(sizes, batch):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    made = pairs_by_label(text_dataset({"train": ([f"t{i}" for i in range(len(labels))], labels)}).split("train"), 0)
    chosen = positives(made).epoch(0, 0, batch)
    for low in range(0, len(chosen) // batch * batch, batch):
        assert len(set(labels[made.pairs[chosen[low : low + batch], 0]])) == batch


# --- with hard negatives, and by what texts say ---

SPELT = ("{}", "{}", " {}", "{} ")   # texts that differ in spaces alone are the same


@st.composite
def asked_and_found(draw):
    """Some subjects of a few texts, where a text may stand on both sides, and negatives may belong to anyone."""
    rows = []
    for subject in range(20):
        for _ in range(draw(st.integers(1, 3))):
            query, positive = (f"{draw(st.sampled_from('abc'))} {subject}" for _ in range(2))
            rows.append((draw(st.sampled_from(SPELT)).format(query), positive))
    texts = [*sorted({text for row in rows for text in row}), "of nobody", "Of  nobody"]
    negatives = [draw(st.lists(st.integers(0, len(texts) - 1), min_size=2, max_size=2)) for _ in rows]
    return rows, negatives, texts


def same(text):
    return " ".join(text.lower().split())


@given(asked_and_found(), st.integers(0, 3), st.sampled_from([1, 3, 4]))
@settings(max_examples=40, deadline=None)
def test_no_candidate_of_a_batch_belongs_to_another_query(made, epoch, batch):
    rows, negatives, texts = made
    related = [(i, texts.index(positive)) for i, (_, positive) in enumerate(rows)]
    split = Pairs(TextRows([query for query, _ in rows]), TextRows(texts), related, negatives=negatives)
    belonging = Positives(split.pairs, keys_of(split))
    kept = belonging.true_negatives(split.pairs, split.negatives, seed=1)
    chosen = PairOrder(split.pairs, kept, belonging).epoch(1, epoch, batch)
    assert len(chosen) == len(rows)
    belongs = {(same(query), same(positive)) for query, positive in rows} | {(same(q), same(q)) for q, _ in rows}
    for row, (own, before) in enumerate(zip(kept, split.negatives, strict=True)):
        for now, then in zip(own, before, strict=True):
            assert (same(rows[row][0]), same(texts[now])) not in belongs
            assert now == then or (same(rows[row][0]), same(texts[then])) in belongs
    for low in range(0, len(chosen) // batch * batch, batch):
        some = chosen[low : low + batch]
        assert len(some) == len(set(some))
        for i in some:
            beside = [texts[split.pairs[j, 1]] for j in some if j != i] + [texts[n] for j in some for n in kept[j]]
            assert not [text for text in beside if (same(rows[i][0]), same(text)) in belongs]


def test_an_image_is_known_by_its_row_and_not_taken_for_a_text():
    split = captions(per_image=1).split("train")
    split.candidates = TextRows(["a dog", "A  dog", "a cat"] * 8)
    images, texts = keys_of(split)
    assert len(set(images)) == 24
    assert not set(images) & set(texts)
    assert np.array_equal(texts, texts[[0, 0, 2] * 8])
    assert len(set(texts)) == 2


def test_a_negative_stays_where_all_candidates_belong_to_the_query():
    split = split_of(np.array([(0, 0), (0, 1), (1, 1)]), negatives=[[1], [0], [0]])
    kept = Positives(split.pairs, keys_of(split)).true_negatives(split.pairs, split.negatives, seed=0)
    assert kept.shape == (3, 1)
    assert kept[2] == 0   # it was right


def test_rows_become_the_texts_of_the_pairs():
    split, words = pairs(negatives=2).split("train"), tokenizer()
    batches = open_batches(split, recipe(objective__kind="pairs"), ALONE, progress=False, tokenizer=words)
    texts = {split.queries.text(q): (split.candidates.text(c), [split.candidates.text(n) for n in row])
             for (q, c), row in zip(split.pairs, split.negatives, strict=True)}  # fmt: skip
    seen = []
    for (queries, candidates), target in batches.epoch(1):
        assert target.tolist() == list(range(8))
        asked = [words.decode(row[kept].tolist()) for row, kept in zip(queries.ids, queries.mask, strict=True)]
        found = [words.decode(row[kept].tolist()) for row, kept in zip(candidates.ids, candidates.mask, strict=True)]
        assert len(found) == 8 * 3
        for i, text in enumerate(asked):
            positive, negatives = texts[text]
            assert found[i] == positive
            assert found[8 + 2 * i : 10 + 2 * i] == negatives
        seen += asked
    assert len(set(seen)) == 32
    without = recipe(objective__kind="pairs", objective__negatives="no")
    (_, candidates), _ = next(open_batches(split, without, ALONE, progress=False, tokenizer=words).epoch(1))
    assert len(candidates.ids) == 8


def test_what_was_judged_not_to_belong_together_is_no_positive():
    split, words = pairs(negatives=1).split("train"), tokenizer()
    split.grades[::4] = 0
    batches = open_batches(split, recipe(objective__kind="pairs"), ALONE, progress=False, tokenizer=words)
    rows = zip(split.pairs, split.negatives, split.grades, strict=True)
    text = split.candidates.text
    fitting = {split.queries.text(q): (text(c), text(n)) for (q, c), (n,), grade in rows if grade}
    seen = []
    for (queries, candidates), _ in batches.epoch(0):
        asked, found = ([words.decode(row.tolist()) for row in side.ids] for side in (queries, candidates))
        assert all(fitting[one] == (found[i], found[8 + i]) for i, one in enumerate(asked))
        seen += asked
    assert sorted(seen) == sorted(fitting)


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_images_come_beside_their_captions_on_one_process_or_two(resident):
    split, words = captions().split("train"), tokenizer()
    options = {"objective__kind": "pairs", "data__resident": resident, "data__workers": 0, "augment__crop": "none",
               "augment__flip": "no", "data__mean": "0,0,0", "data__std": "1,1,1"}  # fmt: skip

    def opened(batch, group):
        return list(open_batches(split, recipe(loop__batch=batch, **options), group, progress=False,
                                 tokenizer=words).epoch(0))  # fmt: skip

    whole = opened(8, ALONE)
    halves = [opened(4, Group(rank, 2, CPU)) for rank in (0, 1)]
    image_of = {split.candidates.text(c): split.queries.image(q) for q, c in split.pairs}
    for step, ((images, texts), _) in enumerate(whole):
        assert torch.equal(torch.cat([half[step][0][0] for half in halves]), images)
        pixels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        for image, row in zip(pixels, texts.ids.tolist(), strict=True):
            assert np.array_equal(image, image_of[words.decode(row)])


def test_mistakes_are_named():
    words = tokenizer()
    unlabelled = text_dataset({"train": ["a", "b"]}).split("train")
    alone = text_dataset({"train": (["a", "b"], [0, 1])}).split("train")
    cases = [
        (unlabelled, {"objective__kind": "pairs"}, RecipeError, "pairs needs pairs, or labels.*2 texts without labels"),
        (alone, {"objective__kind": "pairs"}, DataError, "two items with the same label"),
        (labelled().split("train"), {"objective__kind": "pairs"}, DataError,
         "each label at most once .*3 labels, a global batch of 8.*: use --loop.batch 3 or less"),
        (pairs().split("train"), {}, RecipeError, "objective.kind classify needs items, not pairs"),
        (pairs(8).split("train"), {"objective__kind": "pairs", "loop__batch": 9}, DataError, "8 queries with a"),
    ]
    for split, changes, error, message in cases:
        with pytest.raises(error, match=message):
            open_batches(split, recipe(**changes), ALONE, progress=False, tokenizer=words)
    judged = pairs().split("train")
    judged.grades[:] = 0
    with pytest.raises(DataError, match="training on pairs needs at least one pair"):
        open_batches(judged, recipe(objective__kind="pairs"), ALONE, progress=False, tokenizer=words)
