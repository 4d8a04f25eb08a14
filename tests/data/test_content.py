"""A digest of what a split holds: it changes with every item and label, and with nothing else."""

import numpy as np

from matryo.data.content import content_digest
from matryo.data.images.arrays import ArrayImages
from matryo.data.texts.rows import TextRows


def images(count=6, seed=0):
    pixels = np.random.default_rng(seed).integers(256, size=(count, 8, 8, 3), dtype=np.uint8)
    return pixels, np.arange(count, dtype=np.int64) % 3


def test_it_changes_with_any_pixel_label_and_order():
    pixels, labels = images()
    known = content_digest(ArrayImages(pixels, labels))
    assert content_digest(ArrayImages(pixels.copy(), labels.copy())) == known
    other = pixels.copy()
    other[4, 3, 2, 1] ^= 1
    assert content_digest(ArrayImages(other, labels)) != known
    assert content_digest(ArrayImages(pixels, labels[::-1].copy())) != known
    assert content_digest(ArrayImages(pixels[::-1].copy(), labels)) != known


def test_it_changes_with_any_text_and_where_one_ends():
    known = content_digest(TextRows(["ab", "c"]))
    assert content_digest(TextRows(["ab", "c"])) == known
    assert len({known, content_digest(TextRows(["a", "bc"])), content_digest(TextRows(["c", "ab"]))}) == 3


def test_of_many_some_are_looked_at_the_first_and_last_among_them():
    texts = [str(number) for number in range(100)]
    known = content_digest(TextRows(texts), 5)
    altered = (TextRows([*texts[:row], "x", *texts[row + 1 :]]) for row in range(100))
    changed = [row for row, items in enumerate(altered) if content_digest(items, 5) != known]
    assert len(changed) == 5
    assert (changed[0], changed[-1]) == (0, 99)
    assert content_digest(TextRows([])) == content_digest(TextRows([]), 5)
