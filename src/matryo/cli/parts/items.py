"""Open the new images or texts that ``encode`` and ``classify`` are given: paths, or standard input."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from matryo.data import ImageSplit, TextRows, TextSplit
from matryo.data.unlabelled import open_unlabelled
from matryo.errors import InputError

_STDIN = "-"


def add_items_argument(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Add the positional ITEM …."""
    parser.add_argument(
        "items", nargs="*", metavar="ITEM",
        help=f"new data to {purpose}: images, folders of images, or files of texts (.txt with one text per line, or "
        f"JSONL, TSV, CSV, Parquet with a column text); {_STDIN} reads one text per line from standard input",
    )  # fmt: skip


def open_items(items: Sequence[str]) -> ImageSplit | TextSplit:
    """Return the items as one split without labels."""
    if _STDIN not in items:
        return open_unlabelled(list(dict.fromkeys(items)))   # an item that is given twice is read once
    if len(items) > 1:
        rule = f"{_STDIN} (standard input) must be the only ITEM"
        raise InputError(rule, got=" ".join(items), cure="drop the others")
    try:
        texts = [text for line in sys.stdin or () if (text := line.strip())]   # None if it is closed
    except UnicodeDecodeError as error:
        raise InputError("standard input must be UTF-8 text", got=error, cure="pass files as ITEM instead") from error
    if not texts:
        raise InputError("standard input must have one text per line", got="no text", cure="pipe some lines in")
    return TextRows(texts, source="stdin")
