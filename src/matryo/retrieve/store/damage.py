"""The error for a damaged file of an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.errors import IndexFolderError

if TYPE_CHECKING:
    from pathlib import Path


def damaged(path: Path, found: object) -> IndexFolderError:
    """The error for a file whose content differs from what was written."""
    return IndexFolderError(f"{path} is damaged", got=found, cure="restore the index from a backup, or create it again")
