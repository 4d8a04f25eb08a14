"""Datasets: named splits of images, texts or pairs that share one list of classes.

Images, as a :class:`Dataset` whose splits decode one image at a time to uint8 RGB:

- :func:`image_folder`: the layout of ImageNet, list files, and the shifted test sets made for ImageNet;
- :func:`packed_dataset`: one ``.npz`` file per split, written by :func:`pack` and :func:`pack_dataset`;
- :func:`shard_dataset`: WebDataset tar shards, with exact random access;
- :func:`array_dataset`: arrays in memory;
- :func:`emoji`: included in the package; :func:`emoji_names` returns the names and tags.

Texts (:class:`TextRows`), with or without labels:

- :func:`text_folder`: JSONL, TSV, CSV or parquet, one file per split; :func:`corpus_folder`: documents without labels;
- :func:`text_dataset`: lists in memory.

Pairs (:class:`Pairs`): queries, candidates, and the relevant pairs of them:

- :func:`pair_folder`: a query, a positive and optional hard negatives per row; :func:`pair_dataset`: in memory;
  :func:`pairs_by_label`: items with the same label;
- :func:`beir_folder`: corpus, queries and qrels in the layout of BEIR;
- :func:`caption_folder` and :func:`caption_shards`: images with captions, in a folder or packed, or in tar shards;
- :func:`emoji_pairs` and :func:`wordnet`: included in the package.

:func:`open_dataset` opens any of these by name, as recipes do. :func:`open_unlabelled` opens images or texts without
labels, for encoding. :func:`hold_out` holds out a part of the training split, to choose settings. :func:`decode_all`
decodes a split of small images to one array. :class:`Tokenizer` converts texts to ids. Labels are int64 class indices,
or :data:`UNKNOWN`. Nothing here imports torch; Pillow and ``tokenizers`` are imported on first use.
"""

from __future__ import annotations

from matryo.data.bundled.emoji import emoji, emoji_names
from matryo.data.bundled.emoji_pairs import emoji_pairs
from matryo.data.bundled.wordnet import wordnet
from matryo.data.dataset import UNKNOWN, Dataset, ImageSplit, PairSplit, Split, TextSplit
from matryo.data.held_out import hold_out
from matryo.data.images.arrays import array_dataset
from matryo.data.images.decode import decode_all
from matryo.data.images.folder import image_folder
from matryo.data.images.pack_files import pack_dataset
from matryo.data.images.packed import packed_dataset
from matryo.data.images.packing import pack
from matryo.data.images.shards import shard_dataset
from matryo.data.open import open_dataset
from matryo.data.pairs.beir import beir_folder
from matryo.data.pairs.caption_shards import caption_shards
from matryo.data.pairs.captions import caption_folder
from matryo.data.pairs.files import pair_folder
from matryo.data.pairs.pairs import Pairs, pair_dataset, pairs_by_label
from matryo.data.texts.files import corpus_folder, text_folder
from matryo.data.texts.rows import TextRows, text_dataset
from matryo.data.texts.tokenizer import Tokenizer
from matryo.data.unlabelled import open_unlabelled

__all__ = [
    "UNKNOWN", "Dataset", "ImageSplit", "PairSplit", "Pairs", "Split", "TextRows", "TextSplit", "Tokenizer",
    "array_dataset", "beir_folder", "caption_folder", "caption_shards", "corpus_folder", "decode_all", "emoji",
    "emoji_names", "emoji_pairs", "hold_out", "image_folder", "open_dataset", "open_unlabelled", "pack", "pack_dataset",
    "packed_dataset", "pair_dataset", "pair_folder", "pairs_by_label", "shard_dataset", "text_dataset", "text_folder",
    "wordnet",
]  # fmt: skip
