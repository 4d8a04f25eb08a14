"""The bundled emoji paired with their names: drawings and texts, with test splits of unseen emoji.

>>> data = emoji_pairs()
>>> {name: (len(split.queries), len(split.candidates)) for name, split in data.splits.items()}
{'train': (4771, 2856), 'test': (793, 466), 'style': (1428, 2856), 'both': (232, 464)}
>>> test = data.split("test")
>>> [(test.queries.name(i), test.candidates.text(j)[:40]) for i, j in test.pairs[:2]]
[('noto/1F606', 'grinning squinting face'), ('noto/1F606', 'grinning squinting face: closed, eyes, f')]

One emoji in seven is held out. If ``train`` contained another vendor's drawing of it with the same name, retrieval
would only be classification. So ``test`` measures recall among unseen drawings and texts, by what they share with
others: a face, a hand, a colour, a clock. ``style`` tests emoji of ``train`` drawn by an unseen vendor, ``both`` unseen
emoji by an unseen vendor. Flags drawn only by that vendor are excluded.
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

_ONE_IN = 7
_ROLES = {
    "train": "training: four vendors, six emoji in seven, each with its name and its tags",
    "test": "emoji that are not in train, by the vendors of train",
    "style": "shifted test: the emoji of train, drawn by another vendor (twemoji)",
    "both": "emoji that are not in train, drawn by a vendor that is not in train (twemoji)",
}


def emoji_pairs() -> Dataset[Pairs]:
    """Return drawings (queries) with their names and tags (candidates) as a dataset of pairs; a class is an emoji.

    Each emoji has two texts: its name, "grinning face", and its name with tags, "grinning face: cheerful, cheery,
    face". Both sides have the labels of :func:`matryo.data.emoji`, and superclasses are groups, so that the texts also
    serve as a zero-shot classifier of emoji or of groups.
    """
    names, drawn = emoji_names(), emoji()
    held_out = np.array([_is_held_out(name) for name in names])
    parts = {
        "train": ("train", ~held_out),
        "test": ("train", held_out),
        "style": ("twemoji", ~held_out),
        "both": ("twemoji", held_out),
    }
    splits = {}
    for split, (source, mask) in parts.items():
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
    """Decide by a hash of the code points, which does not depend on the other emoji and covers all groups."""
    digest = hashlib.sha256(name.hexcode.encode()).digest()
    return int.from_bytes(digest[:8], "big") % _ONE_IN == 0


def _pairs(images: PackedImages, names: tuple[EmojiName, ...], source: str) -> Pairs:
    """Pair each drawing with the texts of its emoji; several drawings share the same texts."""
    labels, group = np.unique(images.labels, return_inverse=True)
    texts = [_texts(names[label]) for label in labels]
    counts = np.array(list(map(len, texts)))
    firsts = np.cumsum(counts) - counts
    ids = (f"{names[label].hexcode}#{i}" for label, count in zip(labels, counts, strict=True) for i in range(count))
    candidates = TextRows(chain(*texts), np.repeat(labels, counts), ids, source=source)
    pairs = [(row, firsts[own] + i) for row, own in enumerate(group) for i in range(counts[own])]
    return Pairs(images, candidates, pairs, source=source)


def _texts(name: EmojiName) -> list[str]:
    return [name.name, f"{name.name}: {', '.join(name.tags)}"] if name.tags else [name.name]
