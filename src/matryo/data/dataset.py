"""Dataset: named splits of images, texts or pairs, with class names and optional superclasses.

A split reads one item at a time. Nothing here imports torch, so that the numpy side can read datasets too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from matryo.arguments import checked
from matryo.errors import DataError
from matryo.files import is_plain_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    Labels = np.ndarray[Any, np.dtype[np.int64]]
    Pixels = np.ndarray[Any, np.dtype[np.uint8]]

UNKNOWN = -1   # the label of an item whose class is unknown or not one of the dataset's


@runtime_checkable
class ImageSplit(Protocol):
    """A sequence of images with labels, decoded on demand."""

    @property
    def labels(self) -> Labels:
        """One class index per image, or UNKNOWN; int64, because narrow floats cannot hold indices above 2048."""

    @property
    def shape(self) -> tuple[int, int] | None:
        """(height, width) if all images have the same shape, else None."""

    def __len__(self) -> int: ...

    def image(self, index: int) -> Pixels:
        """Return image ``index`` as uint8 RGB, [height, width, 3]."""

    def name(self, index: int) -> str:
        """Return a stable id of image ``index``, for example its relative path."""


@runtime_checkable
class TextSplit(Protocol):
    """A sequence of texts with labels."""

    @property
    def labels(self) -> Labels:
        """One class index per text, or UNKNOWN."""

    def __len__(self) -> int: ...

    def text(self, index: int) -> str:
        """Return text ``index``."""

    def name(self, index: int) -> str:
        """Return a stable id of text ``index``."""


@runtime_checkable
class PairSplit(Protocol):
    """Queries, candidates, and the pairs of them that are relevant. Either side may be images or texts."""

    @property
    def queries(self) -> ImageSplit | TextSplit:
        """The items that are searched for."""

    @property
    def candidates(self) -> ImageSplit | TextSplit:
        """The items among which the search takes place."""

    @property
    def pairs(self) -> Labels:
        """[n, 2]: a row of ``queries`` and a row of ``candidates`` that is relevant to it, in any order."""

    @property
    def grades(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """[n]: the relevance of each pair; 1 by default, 0 for a pair judged irrelevant."""

    @property
    def negatives(self) -> Labels:
        """[n, h]: rows of ``candidates`` that are hard negatives of each pair's query; h may be 0."""

    @property
    def by_label(self) -> bool:
        """Whether all items of the same label are relevant to each other; ``pairs`` then lists only some."""

    def __len__(self) -> int: ...


Split = ImageSplit | TextSplit | PairSplit

if TYPE_CHECKING:
    import typing_extensions

    # Where the kind of split is not known before run time, as for open_dataset, it is Any.
    S = typing_extensions.TypeVar("S", bound=Split, covariant=True, default=Any)
else:
    S = TypeVar("S")


@dataclass(frozen=True, repr=False)
class Dataset(Generic[S]):
    """Named splits of type ``S`` that share one list of classes."""

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, S]
    superclasses: tuple[str, ...] = ()
    superclass_of: tuple[int, ...] = ()
    """The index into ``superclasses`` of each class, −1 for none; empty if there are no superclasses."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """The purpose of each split, in one phrase ("shifted test: drawings by another vendor")."""
    credits: tuple[str, ...] = ()
    """Attributions required wherever the images or texts are shown, one line each."""

    def __post_init__(self) -> None:
        for name in self.splits:   # embeddings are written to a folder of this name
            if not is_plain_name(name):
                raise DataError(
                    f"dataset {self.name!r}: the name of a split must be a plain file name",
                    got=repr(name)[:80],
                    cure="rename the split, for example to train or test",
                )
        if self.superclass_of and len(self.superclass_of) != len(self.classes):
            raise DataError(
                "every class needs one superclass",
                got=f"{len(self.classes)} classes, {len(self.superclass_of)} superclasses given",
                cure="pass one index per class, or none",
            )

    def __repr__(self) -> str:
        """Return a short text without the class names."""
        splits = ", ".join(f"{name}: {len(split):,}" for name, split in self.splits.items())
        return f"Dataset({self.name!r}, {len(self.classes):,} classes, {splits})"

    @checked
    def split(self, name: str) -> S:
        """Return the split called ``name``."""
        if name not in self.splits:
            similar = "".join(f"did you mean {match!r}? " for match in get_close_matches(str(name), self.splits, n=1))
            raise DataError(
                f"dataset {self.name!r} has no such split",
                got=repr(name),
                cure=f"{similar}choose one of {', '.join(sorted(self.splits))}",
            )
        return self.splits[name]
