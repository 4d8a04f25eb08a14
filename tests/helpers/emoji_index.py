"""Indexes of the bundled emoji with vectors made from their names and tags, without a trained model.

The columns of the nested one are principal components, so its prefixes are good; those of the other are a random
rotation of them, so its prefixes are poor, as those of a model that is truncated.
"""

import base64
import hashlib
from functools import cache

import numpy as np

from matryo import Index
from matryo.data.bundled.emoji import emoji, emoji_names

DIMS = (4, 8, 16, 32, 64)
GROUPS = ("smileys-emotion", "animals-nature", "food-drink")


def drawings():
    """Ids, payloads and vectors of some of the drawings."""
    names, rows, ids, payloads = emoji_names(), [], [], []
    for split in ("flat", "twemoji"):
        images = emoji().split(split)
        for row, label in enumerate(images.labels):
            about = names[label]
            if about.group in GROUPS:
                url = f"data:image/webp;base64,{base64.b64encode(images.encoded(row)).decode()}"
                ids.append(images.name(row))
                payloads.append({"name": about.name, "style": split, "group": about.group, "image": url})
                rows.append(_word_vector(about, split))
    vectors = np.stack(rows) - np.mean(rows, axis=0)
    _, directions = np.linalg.eigh(np.cov(vectors, rowvar=False))
    return ids, payloads, (vectors @ directions[:, ::-1][:, : DIMS[-1]]).astype(np.float32)


def write(folder):
    """The folders of both indexes."""
    ids, payloads, vectors = drawings()
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(DIMS[-1], DIMS[-1])))
    for name, rows in (("nested", vectors), ("fixed", (vectors @ turn).astype(np.float32))):
        with Index.create(folder / name, nesting=DIMS) as index:
            index.add(rows, ids, payloads)
            index.compact()
    return [folder / "nested", folder / "fixed"]


def _word_vector(about, style):
    """A random direction per word, added: emoji that share words of their name, or tags, are near."""
    weights = dict.fromkeys(about.name.split(), 2.0) | {style: 0.3, about.subgroup: 1.5}
    for tag in about.tags:
        weights.setdefault(tag, 1.0)
    return sum(weight * _direction(word) for word, weight in weights.items())


@cache
def _direction(word):
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).normal(size=192)
