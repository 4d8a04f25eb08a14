"""Open a dataset by the kind of its source, as recipes and the command line do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.arguments import checked
from matryo.data.bundled.emoji import emoji
from matryo.data.bundled.emoji_pairs import emoji_pairs
from matryo.data.bundled.wordnet import wordnet
from matryo.data.images.folder import image_folder
from matryo.data.images.packed import packed_dataset
from matryo.data.images.shards import shard_dataset
from matryo.data.pairs.beir import beir_folder
from matryo.data.pairs.caption_shards import caption_shards
from matryo.data.pairs.captions import caption_folder
from matryo.data.pairs.files import pair_folder
from matryo.data.split import align
from matryo.data.texts.files import corpus_folder, text_folder
from matryo.errors import DataError
from matryo.files import storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matryo.data.dataset import Dataset

_BUNDLED: dict[str, Callable[[], Dataset]] = {"emoji": emoji, "emoji-names": emoji_pairs, "wordnet": wordnet}
_ON_DISK: dict[str, Callable[..., Dataset]] = {
    "folder": image_folder,
    "packed": packed_dataset,
    "shards": shard_dataset,
    "texts": text_folder,
    "corpus": corpus_folder,
    "pairs": pair_folder,
    "beir": beir_folder,
    "captions": caption_folder,
    "caption-shards": caption_shards,
}
BUNDLED = tuple(_BUNDLED)   # included in the package, so they need no root
SOURCES = ("emoji", *_ON_DISK, "emoji-names", "wordnet")


@checked
def open_dataset(source: str, root: Path | str | None = None, classes: Sequence[str] | None = None) -> Dataset:
    """Open the dataset at ``root``, of the kind ``source``: one of :data:`SOURCES`. :data:`BUNDLED` ones need no root.

    With ``classes``, usually those of a trained model, labels index that list, matched by name, and items of other
    classes are UNKNOWN.
    """
    if source in _BUNDLED:
        return align(_BUNDLED[source](), classes)
    if source not in _ON_DISK:
        raise DataError("no such kind of dataset", got=repr(source), cure=f"choose one of {', '.join(SOURCES)}")
    if root is None:
        raise DataError(f"a dataset of kind {source!r} needs a folder", got="none", cure="pass --data DIR")
    with storage(root, "read"):
        return _ON_DISK[source](root, classes)
