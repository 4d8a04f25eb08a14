"""Datasets: named splits of images, of texts, or of pairs of them, which share one list of classes.

Images. Each source gives a :class:`Dataset` whose splits decode one image at a time to uint8 RGB:

- :func:`image_folder`: ImageNet's layout, list files, and the shifted test sets made for ImageNet;
- :func:`packed_dataset`: one ``.npz`` file a split, which :func:`pack` and :func:`pack_dataset` write;
- :func:`shard_dataset`: WebDataset tar shards, with exact random access;
- :func:`array_dataset`: arrays in memory;
- :func:`emoji`, which comes with the package (:func:`emoji_names` tells their names and tags).

Texts (:class:`TextRows`), with labels or without:

- :func:`text_folder`: JSONL, TSV, CSV or parquet, a file a split; :func:`corpus_folder`: documents without labels;
- :func:`text_dataset`: lists in memory.

Pairs (:class:`Pairs`): queries, candidates, and which belong together:

- :func:`pair_folder`: a query, a positive and perhaps hard negatives a row; :func:`pair_dataset`: in memory;
  :func:`pairs_by_label`: items of one label;
- :func:`beir_folder`: BEIR's corpus, queries and qrels;
- :func:`caption_folder` and :func:`caption_shards`: images with captions, in a folder or packed, or in tar shards;
- :func:`emoji_pairs` and :func:`wordnet`, which come with the package.

:func:`open_dataset` picks one by name, as recipes do; :func:`decode_all` turns a split of small images into one
array; :class:`Tokenizer` turns texts into ids. Labels are int64 class indices, or :data:`UNKNOWN`. Nothing here
imports torch; Pillow waits for the first image to decode, ``tokenizers`` for the first tokenizer.
"""

from __future__ import annotations

from matryo.data.bundled.emoji import emoji, emoji_names
from matryo.data.bundled.emoji_pairs import emoji_pairs
from matryo.data.bundled.wordnet import wordnet
from matryo.data.dataset import UNKNOWN, Dataset, ImageSplit, PairSplit, Split, TextSplit
from matryo.data.images.arrays import array_dataset
from matryo.data.images.decode import decode_all
from matryo.data.images.folder import image_folder
from matryo.data.images.packed import packed_dataset
from matryo.data.images.packing import pack, pack_dataset
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

__all__ = [
    "UNKNOWN",
    "Dataset",
    "ImageSplit",
    "PairSplit",
    "Pairs",
    "Split",
    "TextRows",
    "TextSplit",
    "Tokenizer",
    "array_dataset",
    "beir_folder",
    "caption_folder",
    "caption_shards",
    "corpus_folder",
    "decode_all",
    "emoji",
    "emoji_names",
    "emoji_pairs",
    "image_folder",
    "open_dataset",
    "pack",
    "pack_dataset",
    "packed_dataset",
    "pair_dataset",
    "pair_folder",
    "pairs_by_label",
    "shard_dataset",
    "text_dataset",
    "text_folder",
    "wordnet",
]
