"""Texts in memory as splits: all bytes end to end in one array, which forks, pickles and is shared by views."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.data.dataset import UNKNOWN, Dataset
from matryo.data.split import Rows, as_labels, below, numbered
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike

    from matryo.data.dataset import Labels, Pixels

__all__ = ["TextRows", "TextStore", "text_dataset"]


class TextStore:
    """Texts as UTF-8 in one array of bytes: text i is ``blob[starts[i]:ends[i]]``.

    A list of a million texts neither forks nor pickles well; three arrays do. Two stores may share one blob.
    """

    def __init__(self, blob: Pixels, starts: Labels, ends: Labels) -> None:
        self.blob, self.starts, self.ends = blob, starts, ends

    @classmethod
    def pack(cls, texts: Iterable[str], source: str = "texts") -> TextStore:
        """The ``texts`` end to end; ``source`` is named in errors."""
        if isinstance(texts, str):
            raise DataError(f"{source}: texts are a list", got=f"{texts!r:.40}", cure="put it in a list")
        blob, ends = bytearray(), [0]
        for row, text in enumerate(texts):
            try:
                blob += text.encode()
            except (AttributeError, UnicodeEncodeError) as error:
                raise DataError(
                    f"{source}: item {row} must be a text of whole characters",
                    got=f"{text!r:.40}",
                    cure="half a surrogate pair is no character, and a number no text: mend or drop it",
                ) from error
            ends.append(len(blob))
        offsets = np.array(ends, np.int64)
        return cls(np.frombuffer(blob, np.uint8), offsets[:-1], offsets[1:])

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> str:
        return self.blob[self.starts[row] : self.ends[row]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return (self[row] for row in range(len(self)))


class TextRows(Rows):
    """``texts`` with a label each (UNKNOWN without ``labels``) and, as stable ids, their ``names``.

    Without ``names`` a text is called by ``source`` and its place: "train#0", "train#1", …
    """

    item = "text"

    def __init__(
        self,
        texts: Iterable[str] | TextStore,
        labels: ArrayLike | None = None,
        names: Iterable[str] | TextStore | None = None,
        *,
        source: str = "texts",
    ) -> None:
        self._texts = texts if isinstance(texts, TextStore) else TextStore.pack(texts, source)
        count = len(self._texts)
        super().__init__(
            np.full(count, UNKNOWN, np.int64) if labels is None else as_labels(labels, count, source, self.item)
        )
        self._names = _check_names(names, count, source)
        self.source = source

    def text(self, index: int) -> str:
        """Text ``index``."""
        return self._texts[self._row(index)]

    def name(self, index: int) -> str:
        """The stable id of text ``index``."""
        row = self._row(index)
        return f"{self.source}#{row}" if self._names is None else self._names[row]

    def names(self) -> Iterator[str]:
        """The stable id of each text."""
        return (self.name(index) for index in range(len(self)))

    def __iter__(self) -> Iterator[str]:
        return (self._texts[row] for row in self._rows.tolist())


def text_dataset(
    splits: Mapping[str, Sequence[str] | tuple[Sequence[str], ArrayLike]],
    classes: Sequence[str] | None = None,
    name: str = "texts",
) -> Dataset:
    """A dataset of ``splits``, each a list of texts, or a tuple of such a list and the labels.

    Without ``classes`` they are "0", "1", …

    >>> data = text_dataset({"train": (["purr", "woof"], [0, 1])}, ["cat", "dog"])
    >>> data.split("train").text(1), data.split("train").name(1)
    ('woof', 'train#1')
    """
    made: dict[str, TextRows] = {}
    for split, given in splits.items():
        texts, labels = _pair(given, split)
        made[split] = TextRows(texts, labels, source=split)
    if not made:
        raise DataError("a dataset has a split", got="none", cure='give {"train": texts} or {"train": (texts, labels)}')
    names = numbered(list(made.values())) if classes is None else tuple(classes)
    for split, rows in made.items():
        below(rows.labels, len(names), split)
    return Dataset(name, names, made)


def _pair(given: Any, split: str) -> tuple[Any, Any]:
    if not isinstance(given, tuple):
        return given, None
    if len(given) != 2 or isinstance(given[0], str):
        raise DataError(
            f"{split}: a tuple holds a list of texts and their labels",
            got=f"a tuple of {len(given)}",
            cure="give (texts, labels), or a list of texts",
        )
    return given


def _check_names(names: Iterable[str] | TextStore | None, count: int, source: str) -> TextStore | None:
    if names is None:
        return None
    store = names if isinstance(names, TextStore) else TextStore.pack(names, f"{source}: names")
    if len(store) != count:
        raise DataError(
            f"{source}: every text needs one name",
            got=f"{count} texts, {len(store)} names",
            cure="give one name a text, or none at all",
        )
    distinct = set(store)
    if len(distinct) != count or "" in distinct:
        twice = "''" if "" in distinct else repr(Counter(store).most_common(1)[0][0]) + " more than once"
        raise DataError(f"{source}: ids must differ, and none is empty", got=twice, cure="give each text its own id")
    return store
