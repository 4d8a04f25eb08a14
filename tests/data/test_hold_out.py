"""A held-out part is disjoint, a fixed share of every class, the same for every call, and never a whole class."""

import numpy as np
import pytest

from matryo.data import array_dataset, hold_out, pair_dataset


def dataset(labels, **splits):
    """Images whose first pixel is their row."""
    labels = np.asarray(labels)
    images = np.zeros((len(labels), 8, 8, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(len(labels))
    return array_dataset({"train": (images, labels), "test": (images[:1], labels[:1]), **splits})


def rows(split):
    return [int(split.image(i)[0, 0, 0]) for i in range(len(split))]


def test_the_parts_are_disjoint_and_complete_and_keep_labels_and_names():
    given = dataset([0] * 20 + [1] * 10 + [2] * 30)
    divided = hold_out(given, 0.1)
    kept, held = divided.split("train"), divided.split("validation")
    assert sorted(rows(kept) + rows(held)) == list(range(60))
    assert np.bincount(held.labels).tolist() == [2, 1, 3]
    before = given.split("train")
    for part in (kept, held):
        assert [part.name(i) for i in range(len(part))] == [before.name(row) for row in rows(part)]
        assert part.labels.tolist() == [before.labels[row] for row in rows(part)]
    assert divided.split("test") is given.split("test")
    assert divided.classes == given.classes


def test_a_seed_always_draws_one_part():
    given = dataset([0] * 40 + [-1] * 20)
    drawn = [rows(hold_out(given, 0.5, seed=seed).split("validation")) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sum(row >= 40 for row in drawn[0]) == 10   # items of unknown class are a class of their own


def test_every_class_keeps_an_item_to_train_on():
    divided = hold_out(dataset([0, 0, 1]), 0.99)
    assert sorted(set(divided.split("train").labels.tolist())) == [0, 1]


def test_small_classes_give_their_share_together():
    divided = hold_out(dataset(np.arange(240) % 80), 0.1)   # 80 classes of 3
    assert 12 <= len(divided.split("validation")) <= 36      # 24 expected, 4.1 their standard deviation


@pytest.mark.parametrize("share", [0.0, 1.0, 1.5, float("nan")])
def test_the_share_is_a_share(share, refuses):
    with refuses("between 0 and 1", f"got {share}", "0.1"):
        hold_out(dataset([0, 0]), share)


def test_what_cannot_be_held_out(refuses):
    with refuses("has a split of this name already", "'test'", "pass another name="):
        hold_out(dataset([0, 0]), 0.5, name="test")
    with refuses("no such split", "'tranin'", "did you mean 'train'?"):
        hold_out(dataset([0, 0]), 0.5, split="tranin")
    with refuses("0.1 of the items of each class is none", "2 items", "a larger share"):
        hold_out(dataset([0, 1]), 0.1)
    pairs = pair_dataset({"train": [("a", "b"), ("c", "d")]})
    with refuses("only a split of single items can be divided", "pairs in 'train'"):
        hold_out(pairs, 0.5)
