"""Databases with queries of several kinds: one kind to plan with, and others that a plan may meet later.

The warning's settings were chosen on captions of Flickr8k, CLINC150, STS-B and SciFact, which are not used here.
"""

from __future__ import annotations

import gzip
import json
import lzma
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from support.unseen_sets import TEXT_DIMS, Sources, Vectors, descriptions, wordllama, wordnet_glosses

SEED, MOST, QUERIES = 0, 100_000, 2000
Texts = list[str]


@dataclass(frozen=True)
class Shifts:
    """A database, the queries of the usual kind, and those of other kinds."""

    database: Vectors
    nesting: tuple[int, ...]
    usual: Vectors
    """[2 × QUERIES, d]: the first half is to plan with, the second to measure."""
    others: dict[str, Vectors]
    """By name: [2 × QUERIES, d] each."""


def reviews_of(path: Path) -> tuple[Texts, Texts]:
    """Reviews of IMDB, each text once: whole, and divided into sentences."""
    packed = json.loads(lzma.decompress(path.read_bytes()))["train/unsup"]
    reviews = [text.replace("<br />", " ") for text, *_ in packed]
    sentences = (part.strip() for text in reviews[:20_000] for part in re.split(r"(?<=[.!?])\s+", text))
    return list(dict.fromkeys(reviews)), list(dict.fromkeys(part for part in sentences if len(part) > 15))


def typing_errors(texts: Texts, rate: float = 0.2) -> Texts:
    """Texts with this share of their letters replaced at random."""
    random, changed = np.random.default_rng([SEED, 1]), []
    for text in texts:
        wrong, letters = random.random(len(text)) < rate, random.integers(97, 123, len(text)).tolist()
        changed.append("".join(chr(letters[i]) if wrong[i] and c.isalpha() else c for i, c in enumerate(text)))
    return changed


def keywords(texts: Texts, count: int = 2) -> Texts:
    """The longest words of each text, as a user types them into a search box."""
    return [" ".join(sorted(text.split(), key=len)[-count:]) for text in texts]


def drawn(texts: Texts, *sizes: int) -> list[Texts]:
    """Disjoint random draws."""
    order = np.random.default_rng(SEED).permutation(len(texts))
    return [[texts[i] for i in part] for part in np.split(order, np.cumsum(sizes))[: len(sizes)]]


def glosses(sources: Sources, imdb: Path) -> Shifts:
    """Glosses of WordNet and package descriptions; the usual queries are glosses."""
    packages = list(dict.fromkeys(text for path in sources.packages for text in descriptions(path)))
    words = list(dict.fromkeys(wordnet_glosses(sources.need("wordnet"))))
    usual, changed, stored = drawn(words, 2 * QUERIES, 2 * QUERIES, MOST // 2)
    asked, others = drawn(packages, 2 * QUERIES, MOST // 2)
    kinds = {"descriptions of packages": asked, "two words": keywords(changed), "typing errors": typing_errors(changed),
             "sentences of reviews": drawn(reviews_of(imdb)[1], 2 * QUERIES)[0]}   # fmt: skip
    return _embedded(sources, stored + others, usual, kinds)


def reviews(sources: Sources, imdb: Path) -> Shifts:
    """Sentences of reviews; the usual queries are sentences of other reviews."""
    whole, sentences = reviews_of(imdb)
    usual, changed, stored = drawn(sentences, 2 * QUERIES, 2 * QUERIES, MOST)
    words = list(dict.fromkeys(wordnet_glosses(sources.need("wordnet"))))
    kinds = {"whole reviews": whole[-2 * QUERIES :], "two words": keywords(changed),
             "typing errors": typing_errors(changed), "glosses": drawn(words, 2 * QUERIES)[0]}   # fmt: skip
    return _embedded(sources, stored, usual, kinds)


def _embedded(sources: Sources, stored: Texts, usual: Texts, kinds: dict[str, Texts]) -> Shifts:
    def embed(texts: Texts) -> Vectors:
        return wordllama(sources.need("wordllama"), texts)

    return Shifts(embed(stored), TEXT_DIMS, embed(usual), {name: embed(texts) for name, texts in kinds.items()})


def fashion(sources: Sources, _imdb: Path) -> Shifts:
    """Pixels of garments; the usual queries are other photos."""
    parts = []
    for name in ("train", "t10k"):
        data = gzip.decompress((sources.need("fashion") / f"{name}-images-idx3-ubyte.gz").read_bytes())
        parts.append(np.frombuffer(data, np.uint8, offset=16).reshape(-1, 28, 28))
    photos = parts[1].astype(np.float32)
    usual, changed = photos[: 2 * QUERIES], photos[2 * QUERIES : 4 * QUERIES]
    noise = np.random.default_rng([SEED, 1]).normal(0, 60, changed.shape).astype(np.float32)
    kinds: dict[str, Any] = {"upside down": changed[:, ::-1], "moved by 3 pixels": np.roll(changed, 3, axis=2),
                             "noise": np.clip(changed + noise, 0, 255), "negatives": 255 - changed}   # fmt: skip
    return Shifts(
        parts[0].reshape(-1, 784).astype(np.float32), (784,), usual.reshape(-1, 784),
        {name: np.ascontiguousarray(images, np.float32).reshape(-1, 784) for name, images in kinds.items()},
    )  # fmt: skip


SETS: dict[str, Callable[[Sources, Path], Shifts]] = {"glosses": glosses, "reviews": reviews, "fashion": fashion}
