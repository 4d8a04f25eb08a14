"""Read the small files that describe a dataset: JSON, and lists of class names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matryo.errors import DataError
from matryo.files import parse_json

if TYPE_CHECKING:
    from pathlib import Path

_KINDS: dict[type, str] = {dict: "an object, {…}", list: "a list, […]"}


def read_json(path: Path, kind: type, default: Any) -> Any:
    """Return the contents of the JSON file at ``path``, of type ``kind``; ``default`` if there is no such file."""
    if not path.exists():
        return default
    try:
        value = parse_json(path.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError) as error:
        raise DataError(f"{path.name} must be JSON", got=error, cure="correct it or remove it") from error
    if not isinstance(value, kind):
        raise DataError(
            f"{path.name} must hold {_KINDS[kind]}",
            got=type(value).__name__,
            cure="correct it or remove it",
        )
    return value


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, stripped, without blank lines."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path.name} must be UTF-8 text", got=error, cure="save it as UTF-8") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def strings(values: Any, source: str) -> tuple[str, ...]:
    """Return ``values`` as a tuple of strings; ``source`` is used in errors."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{source} must be a list of strings", got=repr(values)[:60], cure="write one string per class")
    return tuple(values)
