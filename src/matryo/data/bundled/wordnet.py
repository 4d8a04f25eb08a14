"""The bundled nouns of WordNet: words paired with their glosses, in 26 classes.

>>> data = wordnet()
>>> test = data.split("test")
>>> data, test.queries.text(0), test.candidates.text(0)
(Dataset('wordnet', 26 classes, train: 24,019, test: 2,850), 'hand', 'the (prehensile) extremity of the superior limb')

A noun here is one meaning (a synset). Several words may share a meaning, and a word may have several meanings. Only
synsets that occur in the texts tagged by the authors of WordNet are included. NOTICE contains the licence.
scripts/build_wordnet.py builds the file.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from matryo.data.dataset import Dataset
from matryo.data.pairs.pairs import Pairs
from matryo.data.texts.rows import TextRows

if TYPE_CHECKING:
    from collections.abc import Sequence

PATH = Path(__file__).parent / "wordnet.tsv.gz"
COLUMNS = ("id", "kind", "above", "words", "gloss")
# The lexicographer files of nouns in WordNet, in its order; "tops" are the most general nouns.
KINDS = (
    "tops", "act", "animal", "artifact", "attribute", "body", "cognition", "communication", "event", "feeling", "food",
    "group", "location", "motive", "object", "person", "phenomenon", "plant", "possession", "process", "quantity",
    "relation", "shape", "state", "substance", "time",
)  # fmt: skip
_HELD_OUT = 10   # one word in ten, with all its meanings
_CREDITS = ("WordNet 3.0 Copyright 2006 by Princeton University. All rights reserved.",)


@dataclass(frozen=True)
class Noun:
    """One meaning: its words, its gloss and its hypernym."""

    id: str
    """The offset in WordNet 3.0, for example "02084071"."""
    kind: str
    words: tuple[str, ...]
    gloss: str
    above: int
    """The row of the nearest hypernym, direct or indirect, in this list; −1 if there is none."""


def wordnet_nouns() -> tuple[Noun, ...]:
    """Return all bundled nouns, the most frequent first.

    >>> nouns = wordnet_nouns()
    >>> dog = next(noun for noun in nouns if noun.words[0] == "dog")
    >>> dog.kind, nouns[dog.above].words[0], nouns[nouns[dog.above].above].words[0]
    ('animal', 'domestic animal', 'animal')
    """
    lines = gzip.decompress(PATH.read_bytes()).decode().splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    row_of = {row[0]: number for number, row in enumerate(rows)} | {"": -1}
    return tuple(
        Noun(id, kind, tuple(words.split("|")), gloss, row_of[above]) for id, kind, above, words, gloss in rows
    )


def wordnet() -> Dataset[Pairs]:
    """Return words (queries) and the glosses of their meanings (candidates) as a dataset of pairs.

    A class on both sides is a kind of noun ("animal", "artifact", …); a word with several meanings has the class of the
    most frequent one. One noun in ten is held out as ``test``, by its first word, so that all meanings of "bank" are in
    the same split. No word and no gloss of ``test`` is in ``train``.
    """
    nouns = wordnet_nouns()
    test = [noun for noun in nouns if _is_held_out(noun)]
    words = {word.lower() for noun in test for word in noun.words}
    glosses = {noun.gloss for noun in test}
    train = [noun for noun in nouns if not _is_held_out(noun) and noun.gloss not in glosses]
    return Dataset(
        name="wordnet",
        classes=KINDS,
        splits={"train": _pairs(train, words, "train"), "test": _pairs(test, set(), "test")},
        roles={
            "train": "training: nine nouns in ten, without the words of test",
            "test": "words that are not in train, and their glosses",
        },
        credits=_CREDITS,
    )


def _is_held_out(noun: Noun) -> bool:
    digest = hashlib.sha256(noun.words[0].lower().encode()).digest()
    return int.from_bytes(digest[:8], "big") % _HELD_OUT == 0


def _pairs(nouns: Sequence[Noun], without: set[str], source: str) -> Pairs:
    """Pair each word of ``nouns`` with each of its glosses, except the words in ``without``."""
    words: dict[str, int] = {}
    glosses: dict[str, int] = {}
    pairs: dict[tuple[int, int], None] = {}
    kinds: tuple[list[int], list[int]] = ([], [])
    ids: list[str] = []
    for noun in nouns:
        kind = KINDS.index(noun.kind)
        for word in noun.words:
            if word.lower() in without:
                continue
            ids += [noun.id] * (noun.gloss not in glosses)
            pair = words.setdefault(word, len(words)), glosses.setdefault(noun.gloss, len(glosses))
            pairs[pair] = None
            for row, side in zip(pair, kinds, strict=True):   # the first meaning of a word is the most frequent one
                side += [kind] * (row == len(side))
    return Pairs(
        TextRows(words, kinds[0], names=words, source=source),
        TextRows(glosses, kinds[1], names=ids, source=source),
        np.array(list(pairs), np.int64),
        source=source,
    )
