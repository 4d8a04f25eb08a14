"""The bundled emoji with what they are called: drawings and texts, split so that a test asks for emoji never seen.

>>> data = emoji_pairs()
>>> {name: (len(split.queries), len(split.candidates)) for name, split in data.splits.items()}
{'train': (4771, 2856), 'test': (793, 466), 'style': (1428, 2856), 'both': (232, 464)}
>>> test = data.split("test")
>>> [(test.queries.name(i), test.candidates.text(j)[:40]) for i, j in test.pairs[:2]]
[('noto/1F606', 'grinning squinting face'), ('noto/1F606', 'grinning squinting face: closed, eyes, f')]

One emoji in seven is held out. If ``train`` showed it by another vendor, with the very same name beside it, finding the
name would only be recognising a class. So recall on ``test`` is among drawings and texts that were never seen; what
helps is what they share with others: a face, a hand, a colour, a clock. ``style`` asks for known emoji by a vendor that
was not seen, ``both`` for both at once. Flags that this vendor alone draws are left out.
"""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from matryo.data.bundled.emoji import emoji, emoji_names
from matryo.data.dataset import Dataset
from matryo.data.pairs.pairs import Pairs
from matryo.data.texts.rows import TextRows

if TYPE_CHECKING:
    from matryo.data.bundled.emoji import EmojiName
    from matryo.data.images.packed import PackedImages

__all__ = ["emoji_pairs"]

_ONE_IN = 7
_ROLES = {
    "train": "training: four vendors, six emoji in seven, each with its name and its tags",
    "test": "emoji that train never shows, by the vendors of train",
    "style": "shifted test: the emoji of train, drawn by another vendor (twemoji)",
    "both": "emoji that train never shows, drawn by a vendor that it never shows (twemoji)",
}


def emoji_pairs() -> Dataset:
    """Drawings (queries) with their names and tags (candidates) as a dataset of pairs; a class is an emoji.

    An emoji has two texts: its name, "grinning face", and its name with the words that fit it, "grinning face:
    cheerful, cheery, face". Labels are those of :func:`matryo.data.emoji` on both sides, and superclasses are groups,
    so that texts also give a classifier of drawings: among emoji, or among groups.
    """
    names, drawn = emoji_names(), emoji()
    held_out = np.array([_is_held_out(name) for name in names])
    chosen = {
        "train": ("train", ~held_out),
        "test": ("train", held_out),
        "style": ("twemoji", ~held_out),
        "both": ("twemoji", held_out),
    }
    splits = {}
    for split, (source, mask) in chosen.items():
        images = drawn.split(source)
        splits[split] = _pairs(images.subset(mask[images.labels]), names, split)
    return Dataset(
        name="emoji-names",
        classes=drawn.classes,
        splits=splits,
        superclasses=drawn.superclasses,
        superclass_of=drawn.superclass_of,
        roles=_ROLES,
        credits=drawn.credits,
    )


def _is_held_out(name: EmojiName) -> bool:
    """By a hash of its code points: the same emoji whatever else the file holds, and some of every group."""
    digest = hashlib.sha256(name.hexcode.encode()).digest()
    return int.from_bytes(digest[:8], "big") % _ONE_IN == 0


def _pairs(images: PackedImages, names: tuple[EmojiName, ...], source: str) -> Pairs:
    """Each drawing with the texts of its emoji, which many drawings share."""
    labels, which = np.unique(images.labels, return_inverse=True)
    texts = [_texts(names[label]) for label in labels]
    counts = np.array([len(several) for several in texts])
    firsts = np.cumsum(counts) - counts
    ids = (f"{names[label].hexcode}#{i}" for label, count in zip(labels, counts, strict=True) for i in range(count))
    candidates = TextRows(chain(*texts), np.repeat(labels, counts), ids, source=source)
    pairs = [(row, firsts[own] + i) for row, own in enumerate(which) for i in range(counts[own])]
    return Pairs(images, candidates, pairs, source=source)


def _texts(name: EmojiName) -> list[str]:
    return [name.name, f"{name.name}: {', '.join(name.tags)}"] if name.tags else [name.name]
