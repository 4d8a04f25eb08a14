"""Image folders in the layout of ImageNet, ``root/<split>/<class>/*.jpg``, and the shifted test sets made for it.

All splits share the classes of ``train``; without a split ``train``, the union. A class is the name of its folder, so
a test split with fewer classes (ImageNet-A, -R, -Sketch) gets the right labels. Optional files and layouts:

- ``<split>.txt`` replaces a split folder. It lists one ``relative/path.jpg`` per line, followed by the class; without
  one, the folder of the image is its class. Use it for a selection from ImageNet-21K or a ``val`` without classes;
- a split whose class folders are all numbers, if the classes are not, holds class indices (ImageNetV2);
- ``<split>/class_map.json`` maps folders to classes, or to null to exclude them (ObjectNet);
- ``classes.json`` maps class folders to readable class names;
- ``superclasses.json`` maps each class to its superclass.

Images may be at any depth below their class folder. Hidden files are ignored.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.data.class_names import in_order, is_number, superclasses
from matryo.data.dataset import UNKNOWN, Dataset
from matryo.data.images.decode import EncodedImages
from matryo.data.images.listing import list_images, read_file
from matryo.data.meta import read_json
from matryo.data.split import as_labels, check_distinct
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from matryo.data.dataset import Labels
    from matryo.data.images.listing import Listing


class FolderImages(EncodedImages):
    """A split of image files at ``paths``, relative to ``root``."""

    def __init__(self, root: Path, paths: Sequence[str], labels: ArrayLike | None = None) -> None:
        super().__init__(as_labels(labels, len(paths), root.name))
        self._root = root.absolute()
        # An array of bytes forks and pickles cheaply, unlike a list of a million strings.
        self._paths = np.array([os.fsencode(path) for path in paths])

    def encoded(self, index: int) -> bytes:
        """Return the encoded bytes of image ``index``."""
        path = self.name(index)
        try:
            return read_file(f"{self._root}/{path}")
        except OSError as error:
            raise DataError(
                f"image {path} cannot be read",
                got=error.strerror,
                cure="restore it, or open the dataset again",
            ) from error

    def name(self, index: int) -> str:
        """Return the path of image ``index`` relative to the root."""
        return os.fsdecode(self._paths[self._row(index)])


@checked
def image_folder(
    root: Path | str, classes: Sequence[str] | None = None, *, progress: bool = True
) -> Dataset[FolderImages]:
    """Open the image folder at ``root`` as a dataset, in the layout of this module's docstring.

    With ``classes``, for example those of a trained model, labels are indices into that list, and images of other
    classes are UNKNOWN. Without, a class folder that is not in ``train`` is an error.
    """
    root = Path(root)
    listings = list_images(root, progress)
    readable = read_json(root / "classes.json", dict, default={})
    train = listings.get("train")
    keys = set(train.keys) if train else {key for listing in listings.values() for key in listing.keys}
    own = tuple(str(readable.get(key, key)) for key in in_order(keys))
    names = own if classes is None else tuple(classes)
    check_distinct(names)
    # If the class folders of train are numbers, numbers are class names, not indices.
    rules = {"strict": classes is None, "indices": not (train and all(map(is_number, train.keys)))}
    splits = {
        split: FolderImages(root, listing.paths, _labels(split, listing, names, readable, **rules))
        for split, listing in listings.items()
    }
    groups, parents = superclasses(root, names, readable, strict=classes is None)
    return Dataset(root.resolve().name, names, splits, groups, parents)


def _labels(
    split: str, listing: Listing, names: Sequence[str], readable: Mapping[str, Any], *, strict: bool, indices: bool
) -> Labels:
    """Return the labels of a split; a class that is not in ``names`` is UNKNOWN, or an error if ``strict``."""
    keys = sorted(set(listing.keys))
    if indices and all(map(is_number, keys)) and not all(map(is_number, names)):
        label_of = {key: int(key) for key in keys}
        unmatched = [key for key in keys if label_of[key] >= len(names)]
        rule, cure = f"{split}: folders named by numbers must be class indices", f"use 0…{len(names) - 1}"
    else:
        position = {name: i for i, name in enumerate(names)}
        label_of = {key: position.get(key, position.get(str(readable.get(key)), UNKNOWN)) for key in keys}
        unmatched = [key for key in keys if label_of[key] == UNKNOWN] if strict else []
        rule = f"{split}: every class must also be in train"
        cure = f"rename it, or map it to a class or to null in {split}/class_map.json"
    if unmatched:
        more = f" and {len(unmatched) - 1} more" if len(unmatched) > 1 else ""
        raise DataError(rule, got=f"{unmatched[0]!r}{more}", cure=cure)
    return np.array([label_of[key] for key in listing.keys], dtype=np.int64)
