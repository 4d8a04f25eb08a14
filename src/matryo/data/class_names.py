"""Class names and superclasses from the files of a dataset, and labels from class names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.data.dataset import UNKNOWN
from matryo.data.meta import read_json, read_lines, strings
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from matryo.data.dataset import Labels


def in_order(names: Iterable[str]) -> list[str]:
    """Return ``names`` sorted, numerically if all are numbers, so that "10" follows "9"."""
    names = sorted(names)
    return sorted(names, key=int) if all(map(is_number, names)) else names


def is_number(name: str) -> bool:
    """Return whether ``name`` consists of the digits 0…9."""
    return name.isascii() and name.isdigit()


def listed_classes(root: Path) -> tuple[str, ...]:
    """Return the classes in ``classes.txt`` (one per line) or ``classes.json`` (a list); empty without either."""
    listed = root / "classes.txt"
    if listed.exists():
        return tuple(read_lines(listed))
    return strings(read_json(root / "classes.json", list, default=[]), "classes.json")


def labels_by_name(
    keys: Sequence[str | None], names: Sequence[str], places: Mapping[str, str], *, indices: bool, strict: bool
) -> Labels:
    """Return the index into ``names`` of each key; None is UNKNOWN, and so is a key of no class unless ``strict``.

    With ``indices``, a numeric key that is not a name is an index. ``places`` holds where each key first occurs.
    """
    position: dict[str | None, int] = {name: i for i, name in enumerate(names)}
    if indices:
        numbers = {key: int(key) for key in places if key not in position and is_number(key)}
        position |= {key: number for key, number in numbers.items() if number < len(names)}
    for key, place in places.items() if strict else ():
        if key not in position:
            raise DataError(
                f"{place}: a label must be one of the {len(names)} classes",
                got=repr(key),
                cure="correct it, add it to classes.txt, or leave it empty if the class is unknown",
            )
    return np.array([position.get(key, UNKNOWN) for key in keys], np.int64)


def superclasses(
    root: Path, names: Sequence[str], readable: Mapping[str, Any], *, strict: bool
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the superclasses in ``superclasses.json`` and the superclass index of each class; empty without one."""
    by_class = read_json(root / "superclasses.json", dict, default={})
    parent = {str(readable.get(key, key)): str(value) for key, value in by_class.items()}
    orphans = [name for name in names if name not in parent]
    if not by_class or (orphans and not strict):   # the classes of a model may exceed those of this folder
        return (), ()
    if orphans:
        raise DataError(
            "superclasses.json must give every class a superclass",
            got=f"none for {orphans[0]!r}",
            cure="add it, or remove the file",
        )
    groups = sorted({parent[name] for name in names})
    position = {group: i for i, group in enumerate(groups)}
    return tuple(groups), tuple(position[parent[name]] for name in names)
