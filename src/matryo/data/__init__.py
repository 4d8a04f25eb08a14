"""Datasets: named splits of labelled images that share one list of classes.

Four sources, one shape. Each gives a :class:`Dataset` whose splits decode one image at a time to uint8 RGB:

- :func:`image_folder`: ImageNet's layout, list files, and the shifted test sets made for ImageNet;
- :func:`packed_dataset`: one ``.npz`` file a split, which :func:`pack` and :func:`pack_dataset` write;
- :func:`shard_dataset`: WebDataset tar shards, with exact random access;
- :func:`array_dataset`: arrays in memory;

and :func:`emoji`, which comes with the package (:func:`emoji_names` tells their names and tags).
:func:`open_dataset` picks one by name, as recipes do;
:func:`decode_all` turns a split of small images into one array. Labels are int64 class indices, or
:data:`UNKNOWN`. Nothing here imports torch, and Pillow waits for the first image to decode.
"""

from __future__ import annotations

from matryo.data.arrays import array_dataset
from matryo.data.dataset import UNKNOWN, Dataset, ImageSplit
from matryo.data.decode import decode_all
from matryo.data.emoji import emoji, emoji_names
from matryo.data.folder import image_folder
from matryo.data.open import open_dataset
from matryo.data.packed import packed_dataset
from matryo.data.packing import pack, pack_dataset
from matryo.data.shards import shard_dataset

__all__ = [
    "UNKNOWN",
    "Dataset",
    "ImageSplit",
    "array_dataset",
    "decode_all",
    "emoji",
    "emoji_names",
    "image_folder",
    "open_dataset",
    "pack",
    "pack_dataset",
    "packed_dataset",
    "shard_dataset",
]
