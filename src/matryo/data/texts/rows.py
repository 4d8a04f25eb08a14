"""Splits of texts in memory, stored as one array of bytes that forks and pickles cheaply and is shared by subsets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.data.dataset import Dataset
from matryo.data.split import Rows, as_labels, class_names
from matryo.errors import DataError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike

    from matryo.data.dataset import Labels, Pixels


class TextStore:
    """Texts as UTF-8 in one array of bytes: text i is ``blob[starts[i]:ends[i]]``.

    Three arrays fork and pickle cheaply, unlike a list of a million strings. Several stores may share one blob.
    """

    def __init__(self, blob: Pixels, starts: Labels, ends: Labels) -> None:
        self.blob, self.starts, self.ends = blob, starts, ends

    @classmethod
    def pack(cls, texts: Iterable[str], source: str = "texts") -> TextStore:
        """Concatenate ``texts``; ``source`` is used in errors."""
        if isinstance(texts, str | bytes) or not hasattr(texts, "__iter__") or getattr(texts, "ndim", 1) == 0:
            raise DataError(f"{source}: texts must be a list", got=shown(texts, 40), cure="pass [text]")
        blob, ends = bytearray(), [0]
        for row, text in enumerate(texts):
            try:
                blob += text.encode()
            except (AttributeError, UnicodeEncodeError) as error:
                raise DataError(
                    f"{source}: item {row} must be a string of valid Unicode",
                    got=shown(text, 40),
                    cure="convert it with str(), or drop lone surrogates",
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
    """A split of ``texts`` with ``labels`` (UNKNOWN by default) and ``names``, their stable ids.

    The default names are ``source`` and the row: "train#0", "train#1", …
    """

    item = "text"

    @checked
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
        super().__init__(as_labels(labels, count, source, self.item))
        self._names = _check_names(names, count, source)
        self.source = source

    def text(self, index: int) -> str:
        """Return text ``index``."""
        return self._texts[self._row(index)]

    def name(self, index: int) -> str:
        """Return the stable id of text ``index``."""
        row = self._row(index)
        return f"{self.source}#{row}" if self._names is None else self._names[row]

    def names(self) -> Iterator[str]:
        """Iterate over the stable ids of all texts."""
        return (self.name(index) for index in range(len(self)))

    def __iter__(self) -> Iterator[str]:
        return (self._texts[row] for row in self._rows.tolist())


@checked
def text_dataset(
    splits: Mapping[str, Sequence[str] | tuple[Sequence[str], ArrayLike]],
    classes: Sequence[str] | None = None,
    name: str = "texts",
) -> Dataset[TextRows]:
    """Create a dataset from ``splits``, each a list of texts or a tuple (texts, labels).

    The default ``classes`` are "0", "1", …

    >>> data = text_dataset({"train": (["purr", "woof"], [0, 1])}, ["cat", "dog"])
    >>> data.split("train").text(1), data.split("train").name(1)
    ('woof', 'train#1')
    """
    rows: dict[str, TextRows] = {}
    for split, values in splits.items():
        texts, labels = _texts_and_labels(values, split)
        rows[split] = TextRows(texts, labels, source=split)
    if not rows:
        raise DataError(
            "a dataset must have a split", got="none", cure='pass {"train": texts} or {"train": (texts, labels)}'
        )
    return Dataset(name, class_names(rows, classes), rows)


def _texts_and_labels(values: Any, split: str) -> tuple[Any, Any]:
    if not isinstance(values, tuple):
        return values, None
    if len(values) != 2 or isinstance(values[0], str):
        raise DataError(
            f"{split}: a tuple must hold a list of texts and their labels",
            got=f"a tuple of {len(values)}",
            cure="pass (texts, labels), or a list of texts",
        )
    return values


def _check_names(names: Iterable[str] | TextStore | None, count: int, source: str) -> TextStore | None:
    if names is None:
        return None
    store = names if isinstance(names, TextStore) else TextStore.pack(names, f"{source}: names")
    if len(store) != count:
        raise DataError(
            f"{source}: every text needs one name",
            got=f"{count} texts, {len(store)} names",
            cure="pass one name per text, or none",
        )
    distinct = set(store)
    if len(distinct) != count or "" in distinct:
        bad = "''" if "" in distinct else repr(Counter(store).most_common(1)[0][0]) + " more than once"
        raise DataError(f"{source}: ids must be unique and not empty", got=bad, cure="give each text its own id")
    return store
