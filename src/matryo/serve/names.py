"""Models and indexes by name, from the words of a command line or of a call.

>>> named(["runs/pets", "small=runs/tiny"], "model")
{'pets': PosixPath('runs/pets'), 'small': PosixPath('runs/tiny')}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matryo.errors import InputError

__all__ = ["Sources", "named"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")


@dataclass(frozen=True)
class Sources:
    """The folders by name."""

    models: dict[str, Path]
    indexes: dict[str, Path]

    def check(self) -> None:
        """Raise if there is nothing to serve, or if an index is given as a model."""
        from matryo.retrieve import Index

        if not self.models and not self.indexes:
            cure = "name a run folder, a sentence-transformers folder, or --index FOLDER"
            raise InputError("there is nothing to serve", got="no model and no index", cure=cure)
        for path in self.models.values():
            if path.is_dir() and Index.exists(path):
                raise InputError("this folder is an index, not a model", got=path, cure=f"pass --index {path}")


def named(given: Any, kind: str) -> dict[str, Path]:
    """Paths by name. A path may be ``NAME=PATH``; otherwise its name is that of the folder."""
    if given is None:
        return {}
    if isinstance(given, str | Path):
        given = [given]
    if isinstance(given, Mapping):
        pairs = [(str(name), Path(path)) for name, path in given.items()]
    elif isinstance(given, Iterable):
        pairs = [_pair(one) for one in given]
    else:
        raise InputError(f"{kind} must be a path, a list of paths, or a dict of names and paths", got=repr(given))
    named: dict[str, Path] = {}
    for name, path in pairs:
        if not _NAME.fullmatch(name):
            rule = f"the name of a served {kind} has letters, digits, '.', '_', ':' and '-'"
            raise InputError(rule, got=repr(name), cure=f"name it: NAME={path}")
        if name in named:
            cure = f"name one of them: OTHER={path}"
            raise InputError(f"each {kind} needs a name of its own", got=f"two named {name}", cure=cure)
        named[name] = path
    return named


def _pair(given: Any) -> tuple[str, Path]:
    if not isinstance(given, str | Path):
        raise InputError("a path must be a str or a Path", got=repr(given), cure="pass str(path)")
    name, equals, path = str(given).partition("=")
    if equals and _NAME.fullmatch(name) and not Path(given).exists():
        return name, Path(path)
    return Path(given).absolute().name, Path(given)
