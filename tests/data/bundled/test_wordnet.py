"""The bundled nouns are whole, rightly split, and credited; the script that made them reads Debian's files."""

import gzip
import io
import tarfile
from pathlib import Path

import build_wordnet
import numpy as np
import pytest

import matryo
from matryo.data import PairSplit, open_dataset, wordnet
from matryo.data.bundled.wordnet import KINDS, PATH, wordnet_nouns

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def data():
    return wordnet()


@pytest.fixture(scope="module")
def nouns():
    return wordnet_nouns()


def texts(split):
    return [(split.queries.text(int(q)), split.candidates.text(int(c))) for q, c in split.pairs]


def test_every_noun_has_words_a_gloss_and_a_kind(nouns):
    assert len(nouns) == len({noun.id for noun in nouns}) == 13_357
    for noun in nouns:
        assert noun.words and all(word.strip() == word != "" for word in noun.words), noun
        assert noun.gloss.strip() == noun.gloss != "", noun
        assert noun.kind in KINDS
        assert "_" not in "".join(noun.words)


def test_every_noun_but_the_highest_is_below_another(nouns):
    assert [noun.words for noun in nouns if noun.above < 0] == [("entity",)]
    for row, noun in enumerate(nouns):
        chain = [row]
        while nouns[chain[-1]].above >= 0:
            chain.append(nouns[chain[-1]].above)
            assert len(chain) < 20, noun
        assert nouns[chain[-1]].words == ("entity",)


def test_a_known_noun(nouns):
    dog = next(noun for noun in nouns if "domestic dog" in noun.words)
    assert (dog.id, dog.kind, dog.words) == ("02084071", "animal", ("dog", "domestic dog", "Canis familiaris"))
    assert dog.gloss.startswith("a member of the genus Canis")
    assert '"the dog barked all night"' not in dog.gloss


def test_pairs_are_those_of_the_nouns(data, nouns):
    known = {(word, noun.gloss) for noun in nouns for word in noun.words}
    train, test = texts(data.split("train")), texts(data.split("test"))
    assert set(train) | set(test) <= known
    assert len(set(train)) == len(train) and len(set(test)) == len(test)
    assert len(train) + len(test) > 0.9 * len(known)


def test_no_word_and_no_gloss_of_test_is_in_train(data):
    train, test = texts(data.split("train")), texts(data.split("test"))
    assert not {word.lower() for word, _ in train} & {word.lower() for word, _ in test}
    assert not {gloss for _, gloss in train} & {gloss for _, gloss in test}
    assert 0.08 < len(test) / (len(train) + len(test)) < 0.15


def test_every_row_is_in_a_pair(data):
    for split in data.splits.values():
        assert isinstance(split, PairSplit)
        assert set(split.pairs[:, 0]) == set(range(len(split.queries)))
        assert set(split.pairs[:, 1]) == set(range(len(split.candidates)))


def test_labels_are_kinds_on_both_sides(data, nouns):
    assert data.classes == KINDS
    assert len(set(KINDS)) == 26
    kinds = {noun.id: noun.kind for noun in nouns}
    of_word = {}
    for noun in nouns:
        for word in noun.words:
            of_word.setdefault(word, []).append(noun.kind)
    for split in data.splits.values():
        glosses = split.candidates
        assert [KINDS[label] for label in glosses.labels] == [kinds[id] for id in glosses.names()]
        for word, label in zip(split.queries, split.queries.labels, strict=True):
            assert KINDS[label] in of_word[word]
        assert split.queries.labels.dtype == np.int64


def test_ids_are_stable_and_opening_by_name_is_the_same(data):
    again = open_dataset("wordnet")
    for name, split in data.splits.items():
        assert list(again.split(name).queries.names()) == list(split.queries) == list(split.queries.names())
        assert np.array_equal(again.split(name).pairs, split.pairs)
    assert set(data.roles) == set(data.splits)


def test_the_notice_holds_the_licence_and_the_credit(data):
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for words in (
        "WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved.",
        "Permission to use, copy, modify and distribute this software and",
        'THIS SOFTWARE AND DATABASE IS PROVIDED "AS IS" AND PRINCETON',
        "Princeton University and LICENSEE agrees to preserve same.",
        "13,357 of 82,115",
    ):
        assert words in notice
    assert "WordNet 3.0 Copyright 2006 by Princeton University." in data.credits[0]
    assert Path(matryo.__file__).parent in PATH.parents


def test_the_bundled_file_is_small():
    assert PATH.stat().st_size < 600_000


# Lines of Debian's files: a licence, a chain of four nouns of which one was never met, and a name.
NOUNS = """  1 This software and database is being provided to you
00001740 03 n 01 entity 0 001 ~ 00002684 n 0000 | that which exists
00002684 03 n 02 object 0 physical_object 0 001 @ 00001740 n 0000 | a tangible thing; "it was full of objects"
00003553 06 n 01 whole 1 001 @ 00002684 n 0000 | never met
00004000 05 n 02 tom_cat 0 tom 2 002 @ 00003553 n 0000 ~ 00005000 n 0000 | a male cat: "the tom hissed"
00005000 18 n 01 Tom 0 001 @i 00004000 n 0000 | one of them
"""
COUNTS = """entity%1:03:00:: 1 2
object%1:03:00:: 1 1
tom%1:05:02:: 1 9
tom%1:18:00:: 2 5
tom%2:30:00:: 1 7
unknown%1:04:00:: 1 1
"""


@pytest.fixture
def package(tmp_path):
    """A Debian package of those two files."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:xz") as tar:
        for name, text in (("data.noun", NOUNS), ("cntlist.rev", COUNTS)):
            info = tarfile.TarInfo(f"./usr/share/wordnet/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    parts = b"!<arch>\n"
    for name, data in (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", inner.getvalue())):
        parts += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    path = tmp_path / "wordnet-base.deb"
    path.write_bytes(parts)
    return path


def test_the_script_chooses_nouns_that_were_met(package, tmp_path, capsys):
    out = tmp_path / "wordnet.tsv.gz"
    build_wordnet.main([str(package), "--out", str(out)])
    rows = [line.split("\t") for line in gzip.decompress(out.read_bytes()).decode().splitlines()]
    assert rows == [
        ["id", "kind", "above", "words", "gloss"],
        ["00004000", "animal", "00002684", "tom cat|tom", "a male cat"],
        ["00001740", "tops", "", "entity", "that which exists"],
        ["00002684", "tops", "00001740", "object|physical object", "a tangible thing"],
    ]
    first = out.read_bytes()
    build_wordnet.main([str(package), "--out", str(out), "--compare"])
    assert capsys.readouterr().out == "shipped rows: 4, built too: 4, added: 0\n"
    build_wordnet.main([str(package), "--out", str(out)])
    assert out.read_bytes() == first


def test_a_file_that_is_no_package(tmp_path):
    (tmp_path / "x.deb").write_bytes(b"!<arch>\n")
    with pytest.raises(SystemExit, match=r"holds no data.tar: give wordnet-base"):
        build_wordnet.main([str(tmp_path / "x.deb")])
