"""The bundled emoji: 1,920 emoji drawn by up to seven vendors, split by vendor so that tests shift in style.

>>> data = emoji()
>>> {name: len(split) for name, split in data.splits.items()}
{'train': 5564, 'flat': 1594, 'twemoji': 1660, 'high-contrast': 1594, 'unseen': 259}
>>> data.split("flat").name(0), data.classes[data.split("flat").labels[0]]
('fluent-emoji-flat/1F600', 'grinning face')

The drawings are under the licences that NOTICE lists; scripts/build_emoji.py made them.
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

__all__ = ["EmojiName", "emoji", "emoji_names"]

_BUNDLED = Path(__file__).parent
_SHAPE = (32, 32)
_TRAIN = ("noto", "noto-v1", "fluent-emoji", "emojione")
_ROLES = {
    "train": "training: four vendors, up to four drawings an emoji",
    "flat": "in-distribution test: fluent-emoji-flat, the shapes of a training vendor without their shading",
    "twemoji": "shifted test: drawings by another vendor",
    "high-contrast": "extreme shift: fluent-emoji-high-contrast, black line art",
    "unseen": "classes that train never shows: flags that twemoji alone draws, one image each",
}
# What NOTICE says that must stand beside the drawings; tests hold the two together.
_CREDITS = (
    "Graphics by Twemoji (Twitter, Inc and other contributors), licensed under CC-BY 4.0; rasterised.",
    "Emoji artwork provided by EmojiOne (Ranks.com, with contributions from the Emojitwo community), licensed under "
    "CC-BY 4.0; rasterised.",
    "Noto Emoji by Google Inc, Apache-2.0. Fluent Emoji by Microsoft Corporation, MIT.",
)


@dataclass(frozen=True)
class EmojiName:
    """What one emoji is called: its English name, words that fit it, and its place in Unicode's order."""

    name: str
    tags: tuple[str, ...]
    hexcode: str
    """Its code points, like "1F600" or "1F468-200D-1F680"."""
    group: str
    subgroup: str


def emoji() -> Dataset:
    """The emoji as a dataset; a class is an emoji and a superclass is its group.

    Every emoji Unicode names is a class, in the order of :func:`emoji_names`. Three are drawn by nobody here
    (hair components), so that a label is also an index into the names.
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
    """What each class of :func:`emoji` is called, in the order of the labels.

    >>> emoji_names()[0].tags[:3], len({each.subgroup for each in emoji_names()})
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
    every, vendors = _images(about)
    train = np.isin(vendors, _TRAIN)
    # A class without a training image has no right answer to give, so it must not weigh on the shifted test.
    known = np.isin(every.labels, every.labels[train])
    chosen = {
        "train": train,
        "flat": vendors == "fluent-emoji-flat",
        "twemoji": (vendors == "twemoji") & known,
        "high-contrast": vendors == "fluent-emoji-high-contrast",
        "unseen": ~known,
    }
    return {name: every.subset(mask) for name, mask in chosen.items()}


def _images(about: dict[str, Any]) -> tuple[PackedImages, np.ndarray[Any, np.dtype[np.str_]]]:
    """Every drawing, named like "twemoji/1F600", and the vendor of each."""
    arrays = read_npz(_BUNDLED / "emoji.npz", needed=("blob", "off", "y", "vendor"), mapped="blob")
    vendors = np.array([vendor["name"] for vendor in about["vendors"]])[arrays["vendor"]]
    hexcodes = np.array([entry["hexcode"] for entry in about["emoji"]])[arrays["y"]]
    names = [f"{vendor}/{hexcode}" for vendor, hexcode in zip(vendors, hexcodes, strict=True)]
    images = PackedImages(arrays["blob"], arrays["off"], arrays["y"], names, _SHAPE, source="emoji.npz")
    return images, vendors


def _about() -> dict[str, Any]:
    """What ``emoji.json`` says of vendors, groups and emoji."""
    about: dict[str, Any] = json.loads((_BUNDLED / "emoji.json").read_text(encoding="utf-8"))
    return about
