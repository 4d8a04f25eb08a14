"""The manifest of an embeddings folder: JSON that describes the vectors, with the size and checksum of each file.

It ends with a checksum of itself. Folders written before that was added have none, and open as they did.
"""

from __future__ import annotations

import contextlib
import json
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import numpy as np

from matryo.errors import EmbeddingsError
from matryo.files import json_digest, parse_json, storage, write_json
from matryo.nesting import Nesting, as_nesting

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Unpack

    Value = TypeVar("Value")

FORMAT = 1
"""The version of the folder layout. It increases when older versions of matryo cannot read the new layout."""
MANIFEST = "manifest.json"
FILES = ("vectors.npy", "labels.npy", "ids.npy", "head.safetensors")
DTYPES = ("float32", "float16")

# The types of stored fields that are read back as they are.
_STORED: dict[str, type] = {
    "normalized": bool, "dataset": str, "split": str, "classes": list, "superclasses": list, "superclass_of": list,
    "content": str,
}  # fmt: skip
_REMAKE = "restore the folder from a copy, or write the embeddings again"


@dataclass(frozen=True)
class FileRecord:
    """The size of a file in bytes, and its SHA-256."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The contents of an embeddings folder and their origin."""

    dim: int
    dtype: str
    nesting: Nesting
    normalized: bool | None = None
    """Whether every vector has norm 1 (or 0). None until the last vector is written."""
    model: str | Mapping[str, Any] = ""
    dataset: str = ""
    split: str = ""
    classes: tuple[str, ...] = ()
    superclasses: tuple[str, ...] = ()
    superclass_of: tuple[int, ...] = ()
    content: str = ""
    """A digest of the embedded items; empty if unknown."""
    count: int = 0
    files: Mapping[str, FileRecord] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name of the model in tables: ``model`` itself, or its "name"."""
        return self.model if isinstance(self.model, str) else str(self.model.get("name", ""))

    @property
    def origin(self) -> tuple[str, str, str]:
        """The title of the model, the dataset and the split, with which results begin."""
        return self.title, self.dataset, self.split

    @property
    def seed(self) -> int | None:
        """The seed that the model was trained with, if ``model`` says so."""
        return None if isinstance(self.model, str) else self.model.get("seed")

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, the layout version first."""
        return {"format": FORMAT, **asdict(self)}

    def save(self, folder: Path) -> None:
        """Write the manifest into ``folder``, atomically."""
        data = self.to_json()
        write_json(folder / MANIFEST, {**data, "sha256": json_digest(data)})

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read and check the manifest of ``folder``."""
        path = folder / MANIFEST
        with storage(path, "read"):
            if not path.is_file():
                raise EmbeddingsError(
                    f"embeddings must have a {MANIFEST}", got=folder, cure="check the path, or " + _REMAKE
                )
            content = path.read_bytes()
        try:
            data = parse_json(content)
            layout = _typed(data, "format", int)
            manifest = _parse(data) if layout <= FORMAT else None
            if manifest is not None:
                _check_digest(data)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise EmbeddingsError(f"{path} is damaged", got=error, cure=_REMAKE) from error
        if manifest is None:
            raise EmbeddingsError(
                f"{folder} has a layout newer than this matryo reads",
                got=f"format {layout}, supported up to {FORMAT}",
                cure="pip install --upgrade matryo",
            )
        return manifest


class Description(TypedDict, total=False):
    """Optional description of the vectors to write."""

    nesting: Nesting | Iterable[int] | None
    """The dims at which the vectors are meant to be used: a Nesting or a list. By default the full dim only."""
    model: str | Mapping[str, Any] | None
    """The model that made the vectors: a name, or a JSON object with a "name" and further facts."""
    normalized: bool | None
    """True: the vectors must have norm 1, which is checked. False: not checked. None: measured."""
    dataset: str
    split: str
    classes: Sequence[str] | None
    """The class names, in the order of the labels."""
    superclasses: Sequence[str] | None
    superclass_of: Sequence[int] | None
    """The index into ``superclasses`` of each class, −1 for a class that has none."""
    content: str
    """A digest that identifies the items."""


def describe(dim: int, dtype: str = "float32", **description: Unpack[Description]) -> Manifest:
    """Return the manifest of vectors to be written; :class:`Description` documents the fields.

    It is read back here as it will be from the folder, so that none is written that could not be opened.
    """
    manifest = _described(dim, dtype, **description)
    final = replace(manifest, normalized=bool(manifest.normalized), count=1, files={FILES[0]: FileRecord(1, "")})
    try:
        same = _parse(json.loads(json.dumps(final.to_json(), ensure_ascii=False).encode())) == final
    except (TypeError, ValueError, RecursionError):   # such as a string that UTF-8 cannot encode
        same = False
    if not same:
        raise EmbeddingsError(
            "a description must be read back as it was written",
            got=f"{description!r:.120}",
            cure="use plain JSON values, and strings of valid Unicode",
        )
    return manifest


def _described(dim: int, dtype: str = "float32", **description: Unpack[Description]) -> Manifest:
    if not isinstance(dim, (int, np.integer)) or isinstance(dim, bool) or dim < 1:
        raise EmbeddingsError("vectors must have at least one column", got=dim, cure="use the dim of the encoder")
    check_dtype(dtype)
    given: dict[str, Any] = {**description}
    # By default only the full dim: nothing is known about the prefixes.
    nesting = given.pop("nesting", None)
    nesting = as_nesting([int(dim)] if nesting is None else nesting)
    nesting.check_fits(dim)
    given = {name: _as_stored(name, value) for name, value in given.items()}
    manifest = Manifest(dim=int(dim), dtype=dtype, nesting=nesting, count=0, files={}, **given)
    _check_superclasses(manifest)
    return manifest


def check_dtype(dtype: Any) -> None:
    """Raise unless vectors can be stored in ``dtype``."""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise EmbeddingsError("dtype must be float32 or float16", got=reprlib.repr(dtype), cure="use float32")


def as_plain(name: str, value: Any) -> Any:
    """Return ``value`` as JSON restores it; raise unless that is the same value."""
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        plain = json.loads(json.dumps(value, allow_nan=False))
        if plain == value:
            return plain
    raise EmbeddingsError(
        f"{name} must be a string or an object of plain JSON values",
        got=reprlib.repr(value),
        cure="use strings as keys, and strings, finite numbers, lists, true, false or null as values",
    )


def _as_stored(name: str, value: Any) -> Any:
    """Return a field of the description as the manifest holds it; raise unless it has its documented type."""
    if name == "model" and (value is None or isinstance(value, (str, Mapping))):
        return as_plain(name, value or "")
    if name == "normalized" and (value is None or isinstance(value, (bool, np.bool_))):
        return None if value is None else bool(value)
    if name in ("dataset", "split", "content") and isinstance(value, str):
        return str(value)
    if name in ("classes", "superclasses", "superclass_of"):
        kind, convert = (Integral, int) if name == "superclass_of" else (str, str)
        if value is None:
            return ()
        axes = getattr(value, "ndim", 1)   # an array without axes cannot be iterated
        if axes and isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
            items = tuple(value)
            if all(isinstance(item, kind) and not isinstance(item, bool) for item in items):
                return tuple(map(convert, items))
    kinds = {"model": "a string or an object of plain JSON values", "normalized": "True, False or None",
             "superclass_of": "a list of integers", "classes": "a list of strings",
             "superclasses": "a list of strings"}  # fmt: skip
    if name not in _STORED and name != "model":
        raise TypeError(f"unknown field {name!r} of a description")
    raise EmbeddingsError(
        f"{name} must be {kinds.get(name, 'a string')}", got=reprlib.repr(value), cure="correct it, or leave it out"
    )


def _check_superclasses(manifest: Manifest) -> None:
    of, count = manifest.superclass_of, len(manifest.superclasses)
    if len(of) != (len(manifest.classes) if count else 0) or any(not -1 <= i < count for i in of):
        raise EmbeddingsError(
            "superclass_of must give each class the index of its superclass, or −1 for none",
            got=f"{len(manifest.classes)} classes, {count} superclasses, {len(of)} entries in superclass_of",
            cure="pass classes, superclasses and superclass_of together, or drop the last two",
        )


def _check_digest(data: dict[str, Any]) -> None:
    rest = {name: value for name, value in data.items() if name != "sha256"}
    if "sha256" in data and data["sha256"] != json_digest(rest):
        raise ValueError("other bytes than were written")
    # Without a checksum, an unknown field may be the damaged name of the checksum. With one, it is a later version's.
    if "sha256" not in data and (unknown := rest.keys() - {"format", *(entry.name for entry in fields(Manifest))}):
        raise ValueError(f"unknown field {min(unknown)!r}")


def _parse(data: dict[str, Any]) -> Manifest:
    nesting = _typed(data, "nesting", dict)
    model = data["model"] if isinstance(data.get("model"), str) else _typed(data, "model", dict)
    data = {"content": "", **data}   # absent from early folders of this layout
    about: Any = {name: _typed(data, name, kind) for name, kind in _STORED.items()}
    manifest = _described(
        _typed(data, "dim", int),
        _typed(data, "dtype", str),
        nesting=Nesting(nesting["dims"], nesting["weights"]),
        model=model,
        **about,
    )
    files = {name: _record(name, entry) for name, entry in _typed(data, "files", dict).items()}
    count = _typed(data, "count", int)
    if count < 1 or FILES[0] not in files:
        raise ValueError(f"it must list {FILES[0]} and at least one vector")
    return replace(manifest, count=count, files=files)


def _record(name: str, entry: Any) -> FileRecord:
    if name not in FILES:   # also prevents a malicious manifest from pointing to other files
        raise ValueError(f"unknown file {name!r}")
    return FileRecord(_typed(entry, "size", int), _typed(entry, "sha256", str))


def _typed(data: Any, name: str, kind: type[Value]) -> Value:
    if not isinstance(data, dict):
        raise TypeError("it must be a JSON object")
    if name not in data:
        raise ValueError(f"{name} is missing")
    value = data[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} must not be {value!r:.60}")
    return value
