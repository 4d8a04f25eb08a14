"""The bundled emoji: 1,920 emoji drawn by up to seven vendors, split by vendor so that test splits shift in style.

>>> data = emoji()
>>> {name: len(split) for name, split in data.splits.items()}
{'train': 5564, 'flat': 1594, 'twemoji': 1660, 'high-contrast': 1594, 'unseen': 259}
>>> data.split("flat").name(0), data.classes[data.split("flat").labels[0]]
('fluent-emoji-flat/1F600', 'grinning face')

NOTICE lists the licences of the drawings. scripts/build_emoji.py builds the files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from matryo.data.dataset import Dataset
from matryo.data.images.npz import read_npz
from matryo.data.images.packed import PackedImages

_BUNDLED = Path(__file__).parent
_SHAPE = (32, 32)
_TRAIN = ("noto", "noto-v1", "fluent-emoji", "emojione")
_ROLES = {
    "train": "training: four vendors, up to four drawings per emoji",
    "flat": "in-distribution test: fluent-emoji-flat, the shapes of a training vendor without their shading",
    "twemoji": "shifted test: drawings by another vendor",
    "high-contrast": "extreme shift: fluent-emoji-high-contrast, black line art",
    "unseen": "classes that are not in train: flags that only twemoji draws, one image each",
}
# The attributions that NOTICE requires next to the drawings; a test compares the two.
_CREDITS = (
    "Graphics by Twemoji (Twitter, Inc and other contributors), licensed under CC-BY 4.0; rasterised.",
    "Emoji artwork provided by EmojiOne (Ranks.com, with contributions from the Emojitwo community), licensed under "
    "CC-BY 4.0; rasterised.",
    "Noto Emoji by Google Inc, Apache-2.0. Fluent Emoji by Microsoft Corporation, MIT.",
)


@dataclass(frozen=True)
class EmojiName:
    """The English name of an emoji, its tags, and its group in Unicode."""

    name: str
    tags: tuple[str, ...]
    hexcode: str
    """The code points, for example "1F600" or "1F468-200D-1F680"."""
    group: str
    subgroup: str


def emoji() -> Dataset[PackedImages]:
    """Return the emoji as a dataset; a class is an emoji, and a superclass is its group.

    Every emoji in Unicode is a class, in the order of :func:`emoji_names`, so that labels index the names. Three
    classes (hair components) have no images.
    """
    about = _about()
    entries = about["emoji"]
    return Dataset(
        name="emoji",
        classes=tuple(entry["name"] for entry in entries),
        splits=_splits(about),
        superclasses=tuple(about["groups"]),
        superclass_of=tuple(entry["group"] for entry in entries),
        roles=_ROLES,
        credits=_CREDITS,
    )


def emoji_names() -> tuple[EmojiName, ...]:
    """Return the names of the classes of :func:`emoji`, in the order of the labels.

    >>> emoji_names()[0].tags[:3], len({name.subgroup for name in emoji_names()})
    (('cheerful', 'cheery', 'face'), 100)
    """
    about = _about()
    return tuple(
        EmojiName(
            name=entry["name"],
            tags=tuple(entry["tags"]),
            hexcode=entry["hexcode"],
            group=about["groups"][entry["group"]],
            subgroup=about["subgroups"][entry["subgroup"]],
        )
        for entry in about["emoji"]
    )


def _splits(about: dict[str, Any]) -> dict[str, PackedImages]:
    images, vendors = _images(about)
    train = np.isin(vendors, _TRAIN)
    # Classes without a training image cannot be predicted, so they are kept out of the shifted test.
    trained = np.isin(images.labels, images.labels[train])
    masks = {
        "train": train,
        "flat": vendors == "fluent-emoji-flat",
        "twemoji": (vendors == "twemoji") & trained,
        "high-contrast": vendors == "fluent-emoji-high-contrast",
        "unseen": ~trained,
    }
    return {name: images.subset(mask) for name, mask in masks.items()}


def _images(about: dict[str, Any]) -> tuple[PackedImages, np.ndarray[Any, np.dtype[np.str_]]]:
    """Return all drawings, named "twemoji/1F600", …, and the vendor of each."""
    arrays = read_npz(_BUNDLED / "emoji.npz", needed=("blob", "off", "y", "vendor"), mapped="blob")
    vendors = np.array([vendor["name"] for vendor in about["vendors"]])[arrays["vendor"]]
    hexcodes = np.array([entry["hexcode"] for entry in about["emoji"]])[arrays["y"]]
    names = [f"{vendor}/{hexcode}" for vendor, hexcode in zip(vendors, hexcodes, strict=True)]
    images = PackedImages(arrays["blob"], arrays["off"], arrays["y"], names, _SHAPE, source="emoji.npz")
    return images, vendors


def _about() -> dict[str, Any]:
    """Return the contents of ``emoji.json``: vendors, groups and emoji."""
    about: dict[str, Any] = json.loads((_BUNDLED / "emoji.json").read_text(encoding="utf-8"))
    return about
