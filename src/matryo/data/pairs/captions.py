"""Images with captions: a folder of images or one packed file, and a file of captions.

Images are files under ``root/images/`` (or directly under the root), or one packed ``root/*.npz``. Captions are:

- ``captions.json``: ``{"keys": […], "split": […], "captions": [[…], …]}``, one entry per image; the default split is
  ``train``;
- or a table (``.jsonl``, ``.tsv``, ``.csv``, ``.parquet``): ``captions`` or ``metadata`` with an optional column
  ``split`` (default ``train``), or one table per split, ``train.jsonl``. Columns are ``image`` (or ``file_name``,
  ``path``) and ``caption`` (or ``text``; in JSONL and parquet also a list, ``captions``). An image may have several
  rows.

Images are named by their path below ``images/``, or below the root if all paths begin with ``images/``. In a packed
file they are named as packed; if it has no names, the keys of ``captions.json`` must be in the order of the images.
Images without a caption are excluded.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.data.dataset import Dataset
from matryo.data.images.folder import FolderImages
from matryo.data.images.listing import check_present, is_image
from matryo.data.images.npz import read_npz
from matryo.data.images.packed import PackedImages
from matryo.data.meta import read_json
from matryo.data.pairs.pairs import Pairs
from matryo.data.split import align
from matryo.data.texts.rows import TextRows
from matryo.data.texts.tables import rows_of, split_files
from matryo.errors import DataError
from matryo.files import is_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from matryo.data.dataset import Labels
    from matryo.data.images.decode import EncodedImages
    from matryo.data.texts.rows import TextStore

_IMAGE = ("image", "file_name", "path")
_CAPTION = ("caption", "captions", "text")
_OF_ALL = ("captions", "metadata")   # names of tables that may hold several splits
_Entry = tuple[str, list[str]]   # the split and the captions of an image
_FORM = 'write {"keys": ["1.jpg"], "split": ["train"], "captions": [["a cat"]]}'


@checked
def caption_folder(root: Path | str, classes: Sequence[str] | None = None) -> Dataset[Pairs]:
    """Open images and captions, in the format of this module's docstring, as a dataset of pairs.

    Queries are the images, candidates the captions. Captions of image ``a.jpg`` are named ``a.jpg#0``, … The dataset
    takes over ``classes``; every label is UNKNOWN.
    """
    root = Path(root)
    entries, source, positional = _entries(root)
    images = _images(root, list(entries), source, positional)
    splits = {}
    for split in sorted({split for split, _ in entries.values()}):
        rows = [row for row, (of, _) in enumerate(entries.values()) if of == split]
        captions = [captions for of, captions in entries.values() if of == split]
        splits[split] = with_captions(images.subset(rows), chain(*captions), list(map(len, captions)), split)
    return align(Dataset(root.resolve().name, (), splits), classes)


def with_captions(
    images: EncodedImages, texts: Iterable[str] | TextStore, counts: Labels | Sequence[int], source: str
) -> Pairs:
    """Pair each image with its captions: ``counts`` holds the number of consecutive ``texts`` per image."""
    owners = np.repeat(np.arange(len(images)), counts)
    numbers = np.arange(len(owners)) - np.searchsorted(owners, owners)   # of each caption within its image
    names = (f"{images.name(image)}#{number}" for image, number in zip(owners.tolist(), numbers.tolist(), strict=True))
    pairs = np.stack([owners, np.arange(len(owners))], axis=1)
    return Pairs(images, TextRows(texts, names=names, source=source), pairs, source=source)


def _entries(root: Path) -> tuple[dict[str, _Entry], str, bool]:
    """Return the split and captions of each image by key, the source file, and whether it lists all images in order."""
    if (root / "captions.json").exists():
        return dict(_from_json(root / "captions.json")), "captions.json", True
    if not root.is_dir():
        raise DataError("a caption folder must exist", got=root, cure="use the folder with images and captions")
    entries: dict[str, _Entry] = {}
    files = split_files(root)
    for split, paths in files.items():
        for row in rows_of(paths):
            key = row.text(*_IMAGE).removeprefix("./")
            name = row.id("split") if split in _OF_ALL and row.has("split") else split
            name = "train" if name in _OF_ALL else name
            captions = row.texts(*_CAPTION) or [row.text(*_CAPTION)]   # the latter raises the error for a missing text
            first, own = entries.setdefault(key, (name, []))
            if first != name:
                got = f"{key} in {first} and in {name}"
                raise row.refused("an image must belong to one split", got, "drop it from one")
            own += captions
    return entries, ", ".join(paths[0].name for paths in files.values()), False


def _from_json(path: Path) -> Iterator[tuple[str, _Entry]]:
    content: dict[str, Any] = read_json(path, dict, default={})
    keys, captions = content.get("keys"), content.get("captions")
    if not isinstance(keys, list) or not isinstance(captions, list) or not keys:
        got = ", ".join(content) or "none"
        raise DataError("captions.json must hold the lists keys and captions", got=got, cure=_FORM)
    splits = content.get("split", ["train"] * len(keys))
    if not isinstance(splits, list) or not len(keys) == len(captions) == len(splits):
        counts = f"{len(keys)} keys, {len(captions)} captions, split: {splits!r:.40}"
        raise DataError("captions.json must have one entry per image in each list", got=counts, cure=_FORM)
    seen = set()
    for key, split, own in zip(keys, splits, captions, strict=True):
        texts = own if isinstance(own, list) else [own]
        bad = [text for text in (key, split, *texts) if not isinstance(text, str) or not text.strip()]
        if bad or not texts or key in seen:
            got = f"{key!r:.40} twice" if key in seen else f"{own!r:.60} for {key!r:.40}"
            raise DataError("captions.json must give each key once, with a split and captions", got=got, cure=_FORM)
        seen.add(key)
        yield key, (split, texts)


def _images(root: Path, keys: Sequence[str], source: str, positional: bool) -> EncodedImages:
    """Open the images named ``keys``, in that order."""
    packed = sorted(root.glob("*.npz"))
    if len(packed) > 1:
        got = ", ".join(path.name for path in packed)
        raise DataError("packed images with captions must be one .npz file", got=got, cure="keep one in this folder")
    if packed:
        return _packed(packed[0], keys, source, positional)
    folder = _folder(root, keys)
    for key in keys:
        if not is_image(key.rpartition("/")[2]) or not is_below(key):
            raise DataError(
                f"{source}: an image must be a path below {folder.name}/", got=repr(key), cure="write folder/image.jpg"
            )
    check_present(folder, source, keys, cure=f"correct the list; its paths are relative to {folder.name}/")
    return FolderImages(folder, keys)


def _folder(root: Path, keys: Sequence[str]) -> Path:
    """Return the folder that paths are relative to: ``images/``, or its parent as for Hugging Face ``metadata``."""
    inside = root / "images"
    from_root = all(key.startswith("images/") for key in keys) and not (inside / "images").is_dir()
    return inside if inside.is_dir() and not from_root else root


def _packed(path: Path, keys: Sequence[str], source: str, positional: bool) -> EncodedImages:
    arrays = read_npz(path, needed=("blob", "off"), mapped="blob")
    if not arrays.keys() >= {"blob", "off"}:
        got = ", ".join(sorted(arrays)) or "none"
        raise DataError(f"{path.name} must hold the arrays blob and off", got=got, cure="pack the images again")
    count = len(arrays["off"]) - 1
    names = arrays.get("name")
    if names is None and not (positional and len(keys) == count):
        raise DataError(
            f"{path.name} has no names, so captions.json must have one key per image, in order",
            got=f"{count} images, {len(keys)} keys in {source}",
            cure="complete captions.json, or pack the images with matryo.data.pack",
        )
    images = PackedImages(arrays["blob"], arrays["off"], names=keys if names is None else names, source=path.name)
    row_of = {images.name(row): row for row in range(count)}
    missing = [key for key in keys if key not in row_of]
    if missing:
        got = f"{len(missing):,} of {len(keys):,} missing, the first {missing[0]}"
        raise DataError(f"{source}: every listed image must be in {path.name}", got=got, cure="correct the list")
    return images.subset([row_of[key] for key in keys])
