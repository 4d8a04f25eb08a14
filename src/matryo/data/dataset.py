"""What a dataset is: named splits of images, texts or pairs, the class names, and optional superclasses.

A split reads one item at a time and knows nothing of torch, so the numpy side can read it too. A dataset does not
care which kind of split it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    Labels = np.ndarray[Any, np.dtype[np.int64]]
    Pixels = np.ndarray[Any, np.dtype[np.uint8]]

__all__ = ["UNKNOWN", "Dataset", "ImageSplit", "PairSplit", "Split", "TextSplit"]

UNKNOWN = -1   # the label of an item whose class is not among the dataset's classes


@runtime_checkable
class ImageSplit(Protocol):
    """A sequence of labelled images, decoded on demand."""

    @property
    def labels(self) -> Labels:
        """One class index an image, int64 (never narrower: indices above 2048 must survive)."""

    @property
    def shape(self) -> tuple[int, int] | None:
        """(height, width) when every image has the same, else None."""

    def __len__(self) -> int: ...

    def image(self, index: int) -> Pixels:
        """Image ``index`` as uint8 RGB, [height, width, 3]."""

    def name(self, index: int) -> str:
        """Where image ``index`` comes from, for messages and as a stable id (no absolute paths)."""


@runtime_checkable
class TextSplit(Protocol):
    """A sequence of texts, with labels where they are known."""

    @property
    def labels(self) -> Labels:
        """One class index a text, or UNKNOWN."""

    def __len__(self) -> int: ...

    def text(self, index: int) -> str:
        """Text ``index``."""

    def name(self, index: int) -> str:
        """A stable id of text ``index``."""


@runtime_checkable
class PairSplit(Protocol):
    """Queries, candidates, and which of them belong together. Either side may be images or texts."""

    @property
    def queries(self) -> ImageSplit | TextSplit:
        """What is looked for with."""

    @property
    def candidates(self) -> ImageSplit | TextSplit:
        """What is looked for."""

    @property
    def pairs(self) -> Labels:
        """[n, 2]: a row of ``queries`` and a row of ``candidates`` that belong together, in no particular order."""

    @property
    def grades(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """[n]: how well each pair belongs together; 1 where nothing says more, 0 for a pair judged not to."""

    @property
    def negatives(self) -> Labels:
        """[n, h]: rows of ``candidates`` that look right for each pair's query and are not; h may be 0."""

    @property
    def by_label(self) -> bool:
        """Whether all items of one label belong together, of which ``pairs`` lists only some."""

    def __len__(self) -> int: ...


Split = ImageSplit | TextSplit | PairSplit


@dataclass(frozen=True, repr=False)
class Dataset:
    """Named splits that share one list of classes."""

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, Split]
    superclasses: tuple[str, ...] = ()
    superclass_of: tuple[int, ...] = ()
    """The index into ``superclasses`` of each class, −1 for a class that has none; empty when there are none."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """What a split is for, in one phrase ("shifted test: drawings by another vendor")."""
    credits: tuple[str, ...] = ()
    """What must be said wherever the images or texts are shown, a line each."""

    def __post_init__(self) -> None:
        if self.superclass_of and len(self.superclass_of) != len(self.classes):
            raise DataError(
                "every class needs one superclass",
                got=f"{len(self.classes)} classes, {len(self.superclass_of)} superclasses given",
                cure="give one index a class, or none at all",
            )

    def __repr__(self) -> str:
        """Short: the class names alone may be thousands."""
        splits = ", ".join(f"{name}: {len(split):,}" for name, split in self.splits.items())
        return f"Dataset({self.name!r}, {len(self.classes):,} classes, {splits})"

    def split(self, name: str) -> Any:
        """The split called ``name``; an unknown name is an error that lists the known ones."""
        if name not in self.splits:
            raise DataError(
                f"dataset {self.name!r} has no such split",
                got=repr(name),
                cure=f"choose one of {', '.join(sorted(self.splits))}",
            )
        return self.splits[name]
