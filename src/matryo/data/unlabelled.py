"""Open images and texts without labels, for encoding and classification: a folder, a file, or a list of either."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.arguments import checked
from matryo.data.images.folder import FolderImages
from matryo.data.images.listing import IMAGE_ENDINGS, images_under, is_image
from matryo.data.texts.files import unlabelled_texts
from matryo.data.texts.tables import TABLES, ending_of, split_files
from matryo.errors import DataError
from matryo.files import storage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matryo.data.texts.rows import TextRows

_TEXTS = ("txt", *TABLES)


@checked
def open_unlabelled(paths: Path | str | Iterable[Path | str]) -> FolderImages | TextRows:
    """Open ``paths`` as one split in which every label is UNKNOWN; label columns and class folders are ignored.

    A path is an image, a folder (its images at any depth, or without images its text files), or a text file: ``.txt``
    with one text per line, or JSONL, TSV, CSV or parquet with a column ``text``. Images are named by their path below
    the folder that all of them share, texts by the column ``id`` or by file and row ("reviews#0").
    """
    listed = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    files = [file for path in listed for file in _files(path)]
    kinds = {_kind(file) for file in files}
    if len(kinds) != 1:
        raise DataError(
            "the items must be all images, all .txt files or all tables",
            got=", ".join(sorted(kinds)) or "no path",
            cure="pass one kind at a time" if kinds else "pass a folder, an image or a text file",
        )
    if kinds != {"images"}:
        return unlabelled_texts(files)
    inside = [path if path.is_dir() else path.parent for path in listed]
    root = Path(os.path.commonpath([path.absolute() for path in inside]))
    names = [os.path.relpath(file.absolute(), root) for file in files]
    return FolderImages(root, names)


def _files(path: Path) -> list[Path]:
    with storage(path, "read"):
        return _files_of(path)


def _files_of(path: Path) -> list[Path]:
    if not path.exists():
        raise DataError("there must be a file or folder at each path", got=path, cure="check the path")
    if not path.is_dir():
        return [path]
    images = [path / name for name in sorted(images_under(path, ""))]
    return images or [file for files in split_files(path, _TEXTS).values() for file in files]


def _kind(path: Path) -> str:
    if is_image(path.name):
        return "images"
    if ending_of(path) not in _TEXTS:
        endings = ", ".join(f".{ending}" for ending in (*sorted(IMAGE_ENDINGS), *_TEXTS))
        raise DataError("a file must be an image or hold texts", got=path.name, cure=f"use one of {endings}")
    return ".txt files" if ending_of(path) == "txt" else "tables"
