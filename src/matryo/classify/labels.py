"""Labels as column numbers of the logits, whatever the names of the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arrays import as_array
from matryo.embeddings import UNKNOWN, EmbeddingSet
from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Array, Integers


def class_names(classes: Sequence[Any] | None, count: int) -> Array:
    """Return [count]: the name of each column of the logits; by default 0, 1, 2, …"""
    if classes is None:
        return np.arange(count)
    names = as_array(classes, "classes")
    if names.shape != (count,) or names.dtype.kind not in "iufbU" or len(np.unique(names)) != count:
        raise InputError(
            f"classes must name each of the {count} columns of the logits once, by numbers or text",
            got=f"shape {names.shape}, {names.dtype}",
            cure="list them in the order of the columns",
        )
    return names


def to_columns(x: Any, y: Any, classes: Array, count: int) -> Integers:
    """Return [count]: the column of each row's true class; UNKNOWN for embeddings of unknown class.

    The labels of embeddings are column numbers already.
    """
    if y is None and isinstance(x, EmbeddingSet):
        if x.labels is None:
            raise InputError(
                "the embeddings must have labels", got=x.path, cure="write them again with labels=…, or give y"
            )
        labels, known = np.asarray(x.labels), np.append(np.arange(len(classes)), UNKNOWN)
    elif y is None:
        raise InputError("a cascade requires y to be passed, but the target y is None", cure="give the true classes")
    else:
        labels, known = as_array(y, "y"), classes
        if labels.shape != (count,) or labels.dtype == object:
            raise InputError(
                f"y must be a list of labels, one for each of the {count} rows",
                got=f"shape {labels.shape}, {labels.dtype}", cure="pass the labels of the rows of X",
            )   # fmt: skip
    column = {name: place for place, name in enumerate(known.tolist())}
    if strange := {label for label in labels.tolist() if label not in column}:
        raise InputError(
            "labels must be among the classes that have logits",
            got=", ".join(map(repr, sorted(strange, key=str)[:5])),
            cure=f"these are {', '.join(map(str, classes[:3].tolist()))}, …; Cascade(classes=…) sets other names",
        )
    columns = np.array([column[label] for label in labels.tolist()], np.int64)
    return np.where(columns < len(classes), columns, UNKNOWN)


def check_holdout(columns: Integers) -> None:
    """Raise unless there are rows of at least two classes; otherwise thresholds cannot be compared."""
    if len(present := np.unique(columns[columns != UNKNOWN])) < 2:
        raise InputError(
            "the hold-out must have labelled rows of at least two classes",
            got=f"{(columns != UNKNOWN).sum()} rows, {len(present)} class{'es' * (len(present) != 1)}",
            cure="give labelled rows of several classes",
        )


def check_known(columns: Integers) -> Integers:
    """Return ``columns``, or raise if no class is known."""
    if not (columns != UNKNOWN).any():
        raise InputError("there must be rows whose class is known", got=f"{len(columns)} rows", cure="give labels")
    return columns
