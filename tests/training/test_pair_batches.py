"""Batches of pairs: every query once an epoch with one of its own, nothing beside it that belongs to it too."""

import numpy as np
import pytest
import torch

pytest.importorskip("tokenizers")

from texts_made import captions, pairs, recipe, tokenizer

from matryo.data import pairs_by_label, text_dataset
from matryo.errors import DataError, RecipeError
from matryo.training.batches import open_batches
from matryo.training.distributed import Group
from matryo.training.pair_batches import Positives

CPU = torch.device("cpu")
ALONE = Group(0, 1, CPU)


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
    rows = random_rows()
    positives = Positives(rows)
    assert len(positives) == 200
    for epoch in range(3):
        chosen = positives.epoch(0, epoch, 8)
        assert sorted(rows[chosen, 0]) == list(range(200))
    drawn = np.array([np.sort(positives.epoch(0, epoch, 8)) for epoch in range(60)])
    shares = np.bincount((drawn - 3 * np.arange(200)).reshape(-1), minlength=3) / drawn.size
    np.testing.assert_allclose(shares, 1 / 3, atol=0.02)   # all its positives, in turn


def test_the_order_is_that_of_seed_and_epoch():
    one, two = Positives(random_rows()), Positives(random_rows())
    assert np.array_equal(one.epoch(3, 4, 8), two.epoch(3, 4, 8))
    for other in ((3, 5), (4, 4)):
        assert not np.array_equal(one.epoch(3, 4, 8), one.epoch(*other, 8))


def test_what_belongs_together_is_kept_apart():
    rows = random_rows()
    found = Positives(rows)
    shuffled = np.random.default_rng(0).permutation(200) * 3
    assert clashes(rows, shuffled, 8) > 50
    assert sum(clashes(rows, found.epoch(0, epoch, 8)[:160], 8) for epoch in range(4)) == 0   # but for the last few


def test_where_it_cannot_be_avoided_nobody_is_lost():
    rows = np.stack([np.arange(40), np.arange(40) % 2], 1)   # two candidates for everyone
    chosen = Positives(rows).epoch(0, 0, 8)
    assert sorted(chosen) == list(range(40))


def test_an_item_is_no_negative_of_itself():
    labels = np.repeat(np.arange(8), 4)
    split = text_dataset({"train": ([f"text {i}" for i in range(32)], labels)}).split("train")
    made = pairs_by_label(split, seed=0)
    chosen = Positives(made.pairs, one_split=True).epoch(0, 0, 4)
    for low in range(0, 24, 4):   # but for the last few
        some = made.pairs[chosen[low : low + 4]]
        assert not set(some[:, 0]) & set(some[:, 1])


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
    labelled = text_dataset({"train": (["a", "b"], [0, 1])}).split("train")
    cases = [
        (labelled, {"objective__kind": "pairs"}, RecipeError, "objective.kind pairs needs pairs.*2 texts"),
        (pairs().split("train"), {}, RecipeError, "objective.kind classify needs items, not pairs"),
        (pairs(8).split("train"), {"objective__kind": "pairs", "loop__batch": 9}, DataError, "8 queries with a"),
    ]
    for split, changes, error, message in cases:
        with pytest.raises(error, match=message):
            open_batches(split, recipe(**changes), ALONE, progress=False, tokenizer=words)
    with pytest.raises(DataError, match="training on pairs needs some"):
        Positives(np.empty((0, 2), np.int64))
