"""Open a dataset by the name of its source, as recipes and the command line do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.data.folder import image_folder
from matryo.data.packed import packed_dataset
from matryo.data.shards import shard_dataset
from matryo.data.split import align
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matryo.data.dataset import Dataset

__all__ = ["SOURCES", "open_dataset"]

_ON_DISK = {"folder": image_folder, "packed": packed_dataset, "shards": shard_dataset}
SOURCES = ("emoji", *_ON_DISK)


def open_dataset(
    source: str, root: Path | str | None = None, classes: Sequence[str] | None = None
) -> Dataset:
    """The dataset at ``root``, read as ``source`` says: one of :data:`SOURCES` (``emoji`` needs no root).

    With ``classes``, those a model was trained on, labels are aligned to that list by name, and images of any
    other class are UNKNOWN.
    """
    if source == "emoji":
        from matryo.data.emoji import emoji

        return align(emoji(), classes)
    if source not in _ON_DISK:
        known = ", ".join(SOURCES)
        raise DataError("no such kind of dataset", got=repr(source), cure=f"choose one of {known}")
    if root is None:
        raise DataError(f"a dataset of kind {source!r} lies in a folder", got="none", cure="--data DIR")
    return _ON_DISK[source](root, classes)
