"""Image folders in ImageNet's layout, ``root/<split>/<class>/*.jpg``, and the shifted test sets made for it.

All splits share one list of classes: that of ``train``, or without one the union. A class is its folder's
name, so a test split with fewer classes (ImageNet-A, -R, -Sketch) still gets the right labels. Also read:

- ``<split>.txt`` lists a split's images, one ``relative/path.jpg`` a line, with the class behind it or else
  that of its folder. It stands in for a split folder: a choice from ImageNet-21K, a ``val`` without classes;
- a split whose class folders are all numbers, when the classes are not, holds class indices (ImageNetV2);
- ``<split>/class_map.json`` maps folders to classes, or to null to leave them out (ObjectNet);
- ``classes.json`` gives class folders readable names, which then are the classes' names;
- ``superclasses.json`` gives each class its superclass.

Images lie at any depth under their class folder. Hidden files are ignored.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.data.class_names import in_order, is_number, superclasses
from matryo.data.dataset import UNKNOWN, Dataset
from matryo.data.images.decode import EncodedImages
from matryo.data.images.listing import list_images
from matryo.data.meta import read_json
from matryo.data.split import all_different, as_labels
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from matryo.data.dataset import Labels
    from matryo.data.images.listing import Listing

__all__ = ["FolderImages", "image_folder"]


class FolderImages(EncodedImages):
    """Labelled image files at ``paths``, which are relative to ``root``."""

    def __init__(self, root: Path, paths: Sequence[str], labels: ArrayLike) -> None:
        super().__init__(as_labels(labels, len(paths), root.name))
        self._root = root.absolute()
        # An array of bytes forks and pickles well; a list of a million texts does neither.
        self._paths = np.array([os.fsencode(path) for path in paths])

    def encoded(self, index: int) -> bytes:
        """The file of image ``index``."""
        path = self.name(index)
        try:
            return (self._root / path).read_bytes()
        except OSError as error:
            raise DataError(
                f"image {path} cannot be read",
                got=error.strerror,
                cure="restore it, or open the folder again",
            ) from error

    def name(self, index: int) -> str:
        """The path of image ``index`` relative to the root."""
        return os.fsdecode(self._paths[self._row(index)])


def image_folder(
    root: Path | str, classes: Sequence[str] | None = None, *, progress: bool = True
) -> Dataset:
    """The image folder at ``root`` as a dataset; this module's docstring says what it may hold.

    With ``classes`` (say, those of a trained model) labels are indices into that list, and images of any
    other class are UNKNOWN. Without, a class folder that is not in ``train`` is an error.
    """
    root = Path(root)
    found = list_images(root, progress)
    readable = read_json(root / "classes.json", dict, default={})
    first = found.get("train")
    keys = set(first.keys) if first else {key for listing in found.values() for key in listing.keys}
    own = tuple(str(readable.get(key, key)) for key in in_order(keys))
    names = own if classes is None else tuple(classes)
    all_different(names)
    # Where train itself is numbered, numbers are the names of this dataset's classes, not indices into others.
    rules = {"strict": classes is None, "indices": not (first and all(map(is_number, first.keys)))}
    splits = {
        split: FolderImages(root, listing.paths, _labels(split, listing, names, readable, **rules))
        for split, listing in found.items()
    }
    groups, parents = superclasses(root, names, readable, strict=classes is None)
    return Dataset(root.resolve().name, names, splits, groups, parents)


def _labels(
    split: str, listing: Listing, names: Sequence[str], readable: Mapping[str, Any], *, strict: bool, indices: bool
) -> Labels:
    """The label of each image of a split; a class not among ``names`` is UNKNOWN, or if strict an error."""
    keys = sorted(set(listing.keys))
    if indices and all(map(is_number, keys)) and not all(map(is_number, names)):
        label_of = {key: int(key) for key in keys}
        strange = [key for key in keys if label_of[key] >= len(names)]
        rule, cure = f"{split}: folders that are numbers are class indices", f"use 0…{len(names) - 1}"
    else:
        position = {name: i for i, name in enumerate(names)}
        label_of = {key: position.get(key, position.get(str(readable.get(key)), UNKNOWN)) for key in keys}
        strange = [key for key in keys if label_of[key] == UNKNOWN] if strict else []
        rule = f"{split}: every class must be one of train's"
        cure = f"rename it, or map it to a class or to null in {split}/class_map.json"
    if strange:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise DataError(rule, got=f"{strange[0]!r}{more}", cure=cure)
    return np.array([label_of[key] for key in listing.keys], dtype=np.int64)
