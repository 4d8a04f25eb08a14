"""WebDataset tar shards of images with captions, as written by img2dataset.

Shards are named like those of labelled images (see ``images/shards.py``). A sample is one image and its caption: a
``.txt`` file, or else ``caption``, ``captions`` (a list) or ``text`` in a ``.json`` file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from matryo.arguments import checked
from matryo.data.dataset import Dataset
from matryo.data.images.shards import ShardImages, open_shards
from matryo.data.images.tar_index import index_captions
from matryo.data.pairs.captions import with_captions
from matryo.data.split import align
from matryo.data.texts.rows import TextStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.data.pairs.pairs import Pairs


@checked
def caption_shards(
    root: Path | str, classes: Sequence[str] | None = None, *, threads: int = 8, progress: bool = True
) -> Dataset[Pairs]:
    """Open the tar shards under ``root`` as a dataset of pairs: queries are images, candidates are captions.

    Indexing reads every header and caption once. The index is stored in a hidden file next to its shard if the folder
    is writable. Captions are held in memory, images are read from the shards. The dataset takes over ``classes``; every
    label is UNKNOWN.
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
