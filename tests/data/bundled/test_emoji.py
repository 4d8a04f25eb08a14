"""The bundled emoji are whole, rightly split, and credited."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import matryo
from matryo.data.bundled.emoji import emoji, emoji_names
from matryo.data.dataset import ImageSplit
from matryo.errors import MissingExtra

ROOT = Path(__file__).parents[3]
BUNDLED = Path(matryo.__file__).parent / "data" / "bundled"
TRAIN = {"noto": 1659, "noto-v1": 1224, "fluent-emoji": 1594, "emojione": 1087}
HELD_OUT = {"flat": "fluent-emoji-flat", "twemoji": "twemoji", "high-contrast": "fluent-emoji-high-contrast"}
VENDORS = {**TRAIN, "twemoji": 1919, "fluent-emoji-flat": 1594, "fluent-emoji-high-contrast": 1594}


@pytest.fixture(scope="module")
def data():
    return emoji()


def vendors(split):
    return Counter(split.name(i).split("/")[0] for i in range(len(split)))


def test_every_drawing_is_in_exactly_one_split(data):
    names = [split.name(i) for split in data.splits.values() for i in range(len(split))]
    assert len(names) == len(set(names)) == 10_671
    assert sum((vendors(split) for split in data.splits.values()), Counter()) == VENDORS


def test_train_holds_no_drawing_of_a_held_out_vendor(data):
    assert vendors(data.split("train")) == TRAIN


@pytest.mark.parametrize("split", HELD_OUT)
def test_a_test_split_is_one_vendor_and_only_asks_for_classes_that_train_shows(data, split):
    assert set(vendors(data.split(split))) == {HELD_OUT[split]}
    assert set(data.split(split).labels) <= set(data.split("train").labels)


def test_unseen_are_the_classes_that_train_lacks(data):
    names, unseen = emoji_names(), data.split("unseen").labels
    assert len(unseen) == len(set(unseen)) == 259
    assert not set(unseen) & set(data.split("train").labels)
    assert {names[label].group for label in unseen} == {"flags"}


def test_labels_are_int64_and_name_their_class(data):
    names = {each.hexcode: each.name for each in emoji_names()}
    for split in data.splits.values():
        assert isinstance(split, ImageSplit)
        assert split.labels.dtype == np.int64
        for i, label in enumerate(split.labels):
            assert data.classes[label] == names[split.name(i).split("/")[1]]


def test_classes_are_all_emoji_and_all_but_three_are_drawn(data):
    assert len(data.classes) == len(set(data.classes)) == 1923
    drawn = set().union(*(split.labels.tolist() for split in data.splits.values()))
    assert {data.classes[i] for i in set(range(1923)) - drawn} == {"red hair", "curly hair", "white hair"}


def test_superclasses_are_the_ten_groups(data):
    assert len(data.superclasses) == len(set(data.superclasses)) == 10
    groups = [each.group for each in emoji_names()]
    assert [data.superclasses[i] for i in data.superclass_of] == groups


def test_names_are_in_label_order_with_tags_and_a_hundred_subgroups(data):
    names = emoji_names()
    assert tuple(each.name for each in names) == data.classes
    assert len({each.hexcode for each in names}) == 1923
    assert len({each.subgroup for each in names}) == 100
    assert all(each.tags for each in names if each.group != "component")
    # A subgroup lies in one group.
    assert len({(each.group, each.subgroup) for each in names}) == 100


def test_every_split_has_a_role(data):
    assert set(data.roles) == set(data.splits)


def test_every_image_decodes_to_a_drawing(data):
    pytest.importorskip("PIL")
    for split in data.splits.values():
        assert split.shape == (32, 32)
        for i in range(len(split)):
            pixels = split.image(i)
            assert pixels.dtype == np.uint8 and pixels.shape == (32, 32, 3), split.name(i)
            assert pixels.std() > 3, split.name(i)


def test_one_known_drawing(data):
    """The red heart, by every held-out vendor in colour, is red in the middle and white in the corners."""
    pytest.importorskip("PIL")
    for name in ("flat", "twemoji"):
        split = data.split(name)
        pixels = split.image(split.labels.tolist().index(data.classes.index("red heart")))
        red, green, blue = pixels[14:18, 14:18].mean((0, 1))
        assert red > 180 and green < 90 and blue < 110
        assert pixels[[0, 0, -1, -1], [0, -1, 0, -1]].min() > 240


def test_opening_needs_neither_pillow_nor_torch():
    code = "import sys, matryo.data; matryo.data.emoji(); print({'PIL', 'torch'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "set()"


def test_decoding_without_pillow_names_the_extra(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"pip install 'matryo\[images\]'"):
        data.split("flat").image(0)


def test_bundled_files_keep_the_wheel_small():
    assert sum(file.stat().st_size for file in BUNDLED.iterdir()) <= 6_500_000


def test_json_credits_each_vendor_that_ships_and_no_other():
    about = json.loads((BUNDLED / "emoji.json").read_text(encoding="utf-8"))
    assert {vendor["name"] for vendor in about["vendors"]} == set(VENDORS)
    assert "openmoji" not in (BUNDLED / "emoji.json").read_text(encoding="utf-8")


def test_notice_credits_each_vendor_with_its_licence():
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    about = json.loads((BUNDLED / "emoji.json").read_text(encoding="utf-8"))
    for vendor in about["vendors"]:
        name, licence, count = re.escape(vendor["name"]), vendor["license"], VENDORS[vendor["name"]]
        assert re.search(rf"^ +{name} {{2,}}.* {licence} +{count:,}$", notice, re.MULTILINE), name
        # The vendor's own section: its line, perhaps those of its siblings, then indented facts.
        section = re.search(rf"^{name}: .*\n(?:\S.*\n)*((?: .*\n)+)", notice, re.MULTILINE)
        assert section, name
        for fact in (vendor["author"], vendor["url"], licence):
            assert fact in section[1], (name, fact)


@pytest.mark.parametrize(
    "words",
    [
        "Copyright (c) Microsoft Corporation.",
        "Copyright (c) 2017-2019 Miles Johnson",
        "Copyright Twitter, Inc and other contributors",
        "Emoji artwork provided by EmojiOne",
        "UNICODE LICENSE V3",
        "https://creativecommons.org/licenses/by/4.0/",
    ],
)
def test_notice_holds_the_words_each_licence_asks_for(words):
    assert words in (ROOT / "NOTICE").read_text(encoding="utf-8")


def test_licence_is_the_apache_licence():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text


def test_the_credits_name_every_author_and_licence_of_the_notice(data):
    notice, credits = (ROOT / "NOTICE").read_text(encoding="utf-8"), " ".join(data.credits)
    for author in ("Twitter, Inc and other contributors", "Emojitwo community", "Google Inc", "Microsoft Corporation"):
        assert author in notice
        assert author in credits
    for attribution in ("Graphics by Twemoji", "Emoji artwork provided by EmojiOne"):
        assert attribution in notice
        assert attribution in credits
    assert credits.count("CC-BY 4.0") == 2
