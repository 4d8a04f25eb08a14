"""The manifest of an embeddings folder: JSON that describes the vectors, with the size and checksum of each file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from matryo.errors import EmbeddingsError
from matryo.files import parse_json, write_json
from matryo.nesting import Nesting, as_nesting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
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
        write_json(folder / MANIFEST, self.to_json())

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read and check the manifest of ``folder``."""
        try:
            data = parse_json((folder / MANIFEST).read_text(encoding="utf-8"))
            layout = _typed(data, "format", int)
            manifest = _parse(data) if layout <= FORMAT else None
        except (FileNotFoundError, NotADirectoryError) as error:
            raise EmbeddingsError(
                f"embeddings must have a {MANIFEST}", got=folder, cure="check the path, or " + _REMAKE
            ) from error
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise EmbeddingsError(f"{folder / MANIFEST} is damaged", got=error, cure=_REMAKE) from error
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
    """Return the manifest of vectors to be written; :class:`Description` documents the fields."""
    if isinstance(dim, bool) or dim < 1:
        raise EmbeddingsError("vectors must have at least one column", got=dim, cure="use the dim of the encoder")
    if dtype not in DTYPES:
        raise EmbeddingsError("dtype must be float32 or float16", got=repr(dtype), cure="use float32")
    fields: dict[str, Any] = {**description}
    for name, kind in (("classes", str), ("superclasses", str), ("superclass_of", int)):
        fields[name] = tuple(map(kind, fields.get(name) or ()))
    if fields.get("model") is None:
        fields["model"] = ""
    # By default only the full dim: nothing is known about the prefixes.
    nesting = fields.pop("nesting", None)
    nesting = as_nesting([int(dim)] if nesting is None else nesting)
    nesting.check_fits(dim)
    manifest = Manifest(dim=int(dim), dtype=dtype, nesting=nesting, count=0, files={}, **fields)
    _check_superclasses(manifest)
    _check_plain(manifest)
    return manifest


def _check_superclasses(manifest: Manifest) -> None:
    of, count = manifest.superclass_of, len(manifest.superclasses)
    if len(of) != (len(manifest.classes) if count else 0) or any(not -1 <= i < count for i in of):
        raise EmbeddingsError(
            "superclass_of must give each class the index of its superclass, or −1 for none",
            got=f"{len(manifest.classes)} classes, {count} superclasses, {len(of)} entries in superclass_of",
            cure="pass classes, superclasses and superclass_of together, or drop the last two",
        )


def _check_plain(manifest: Manifest) -> None:
    try:
        same = json.loads(json.dumps(manifest.model, allow_nan=False)) == manifest.model
    except (TypeError, ValueError):
        same = False
    if not same:
        raise EmbeddingsError(
            "model must be a string or an object of plain JSON values",
            got=manifest.model,
            cure="use strings as keys, and strings, finite numbers, lists, true, false or null as values",
        )


def _parse(data: dict[str, Any]) -> Manifest:
    nesting = _typed(data, "nesting", dict)
    model = data["model"] if isinstance(data.get("model"), str) else _typed(data, "model", dict)
    data = {"content": "", **data}   # absent from early folders of this layout
    about: Any = {name: _typed(data, name, kind) for name, kind in _STORED.items()}
    manifest = describe(
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
