"""WebDataset tar shards of images with their captions, as img2dataset writes them.

Shards are named and found as those of labelled images. A sample is one image and its caption: a ``.txt`` file, or
``caption``, ``captions`` (a list) or ``text`` in a ``.json`` file; where both are there the ``.txt`` file counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from matryo.data.dataset import Dataset
from matryo.data.images.shards import ShardImages, open_shards
from matryo.data.images.tar_index import index_captions
from matryo.data.pairs.captions import with_captions
from matryo.data.split import align
from matryo.data.texts.rows import TextStore

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["caption_shards"]


def caption_shards(
    root: Path | str, classes: Sequence[str] | None = None, *, threads: int = 8, progress: bool = True
) -> Dataset:
    """The tar shards under ``root`` as a dataset of pairs, a split each: queries are images, candidates captions.

    Indexing reads every header and every caption once; the index is then kept in a hidden file beside its shard, if
    that folder can be written. Captions stay in memory, images in their shards. ``classes`` are taken over; no image
    has one.
    """
    root = Path(root)
    splits = {}
    for split, (paths, indexes) in open_shards(root, index_captions, threads, progress).items():
        sizes = np.concatenate([np.diff(index.ends, prepend=0) for index in indexes])
        ends = np.cumsum(sizes)
        texts = TextStore(np.concatenate([index.blob for index in indexes]), ends - sizes, ends)
        counts = np.concatenate([index.counts for index in indexes])
        splits[split] = with_captions(ShardImages(root, paths, indexes), texts, counts, split)
    return align(Dataset(root.resolve().name, (), splits), classes)
