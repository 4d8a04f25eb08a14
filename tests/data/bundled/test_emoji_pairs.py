"""Drawings with what they are called: nothing of a test is in train but what its role says."""

import numpy as np
import pytest

from matryo.data import PairSplit, emoji, emoji_names, emoji_pairs, open_dataset


@pytest.fixture(scope="module")
def data():
    return emoji_pairs()


def emojis(split):
    return set(split.queries.labels.tolist())


def vendors(split):
    return {split.queries.name(i).split("/")[0] for i in range(len(split.queries))}


def test_every_pair_is_a_drawing_and_a_text_of_one_emoji(data):
    names = emoji_names()
    for split in data.splits.values():
        assert isinstance(split, PairSplit)
        images, texts = split.pairs.T
        assert np.array_equal(split.queries.labels[images], split.candidates.labels[texts])
        assert emojis(split) == set(split.candidates.labels.tolist())
        for i, text in enumerate(split.candidates):
            name = names[split.candidates.labels[i]]
            assert text in (name.name, f"{name.name}: {', '.join(name.tags)}")
            assert split.candidates.name(i).split("#")[0] == name.hexcode
        assert len(set(split.candidates)) == len(split.candidates), "no text fits two emoji"
        assert len({tuple(pair) for pair in split.pairs.tolist()}) == len(split)
        # All that fit are there: each drawing with every text of its emoji.
        counts = np.bincount(split.candidates.labels, minlength=len(names))
        assert len(split) == counts[split.queries.labels].sum()


def test_emoji_of_test_are_not_in_train(data):
    train, test, style, both = (data.split(name) for name in ("train", "test", "style", "both"))
    assert not emojis(train) & emojis(test)
    assert not emojis(train) & emojis(both)
    assert emojis(style) <= emojis(train)
    assert emojis(both) <= emojis(test)
    assert not set(train.candidates) & set(test.candidates)
    assert vendors(style) == vendors(both) == {"twemoji"}
    assert "twemoji" not in vendors(train) | vendors(test)
    assert vendors(train) == vendors(test)


def test_splits_are_parts_of_the_emoji(data):
    whole = emoji()
    for part, source in (("train", "train"), ("test", "train"), ("style", "twemoji"), ("both", "twemoji")):
        names = {data.split(part).queries.name(i) for i in range(len(data.split(part).queries))}
        known = whole.split(source)
        assert names <= {known.name(i) for i in range(len(known))}
    assert len(data.split("train").queries) + len(data.split("test").queries) == len(whole.split("train"))
    assert len(data.split("style").queries) + len(data.split("both").queries) == len(whole.split("twemoji"))
    assert data.classes == whole.classes
    assert data.superclass_of == whole.superclass_of
    assert data.credits == whole.credits
    assert set(data.roles) == set(data.splits)


def test_the_emoji_held_out_are_of_all_groups_that_are_drawn_by_the_vendors_of_train(data):
    groups = {data.superclass_of[label] for label in emojis(data.split("test"))}
    assert len(groups) >= 8
    assert 0.1 < len(emojis(data.split("test"))) / len(emojis(data.split("train"))) < 0.2


def test_opening_by_name_and_aligning_to_a_model(data):
    again = open_dataset("emoji-names", classes=data.classes[:3])
    labels = data.split("train").queries.labels
    assert np.array_equal(again.split("train").queries.labels, np.where(labels < 3, labels, -1))
    assert again.split("train").candidates.labels.max() < 3


def test_a_drawing_is_an_image(data):
    pytest.importorskip("PIL")
    assert data.split("test").queries.image(0).shape == (32, 32, 3)
    assert data.split("test").queries.shape == (32, 32)
