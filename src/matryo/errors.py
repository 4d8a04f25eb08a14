"""The exceptions of matryo.

::

    MatryoError                     the base class of all
    ├── InputError (ValueError)     an argument violates a rule
    │   ├── NestingError            invalid dims or weights, or dims that do not fit the vectors
    │   ├── RecipeError             an unknown recipe, field or value
    │   ├── DataError               a dataset that is missing, empty or damaged
    │   │   └── ImageError          an image that cannot be decoded
    │   ├── EmbeddingsError         an embeddings folder that is missing, unfinished or damaged
    │   ├── IndexFolderError        an index folder that is missing, unfinished or damaged
    │   └── UnknownId (KeyError)    an id that the index does not have
    ├── EngineError                 a database cannot be reached, or refused a statement
    ├── RunError                    a run folder that cannot be resumed or loaded
    ├── TrainingError               training failed (the loss is not finite, …)
    ├── StorageError (OSError)      a write failed; existing files are intact
    ├── MissingCore (ImportError)   the compiled search core is not installed, or does not load
    └── MissingExtra (ImportError)  an optional dependency is not installed; prints the pip line

Each message states the rule, the value and how to fix it. :class:`ShiftWarning` is the one class of warnings.

>>> raise NestingError("dims must increase", got=(8, 8), cure="list each dim once, smallest first")
Traceback (most recent call last):
...
matryo.errors.NestingError: dims must increase (got (8, 8)): list each dim once, smallest first
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "DataError",
    "EmbeddingsError",
    "EngineError",
    "ImageError",
    "IndexFolderError",
    "InputError",
    "MatryoError",
    "MissingCore",
    "MissingExtra",
    "NestingError",
    "RecipeError",
    "RunError",
    "ShiftWarning",
    "StorageError",
    "TrainingError",
    "UnknownId",
]

_NOTHING = object()
_LONGEST = 4000   # characters of a message
_LONGEST_VALUE = 600   # and of the value in it
# Control characters, which could move the cursor of a terminal, and lone surrogates, which cannot be printed.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: object, longest: int = _LONGEST) -> str:
    r"""``text`` on one line: line breaks become spaces, other control characters escapes, long text is shortened.

    >>> one_line("two\n   lines"), one_line("\x1b[31m"), one_line("0123456789", 5)
    ('two lines', '\\x1b[31m', '012…9')
    """
    line = re.sub(r"\s*[\n\r\t\v\f]\s*", " ", text if isinstance(text, str) else shown(text, 10 * longest, str))
    line = _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), line)
    kept = longest - 1
    return line if len(line) <= longest else f"{line[: kept - kept // 4]}…{line[len(line) - kept // 4 :]}"


def shown(value: object, length: int = 60, form: Callable[[object], str] = repr) -> str:
    """Return the start of ``repr(value)`` for messages, or its type if it has no repr.

    >>> shown("a" * 100, 8)
    "'aaaaaaa"
    """
    try:
        return form(value)[:length]
    except Exception:   # any object may be passed, or lists that are nested too deep
        return f"an object of type {type(value).__name__}"


class MatryoError(Exception):
    """One line: the rule that was violated, the value, and how to fix it."""

    def __init__(self, rule: str, *, got: object = _NOTHING, cure: str = "") -> None:
        value = "" if got is _NOTHING else f" (got {one_line(got, _LONGEST_VALUE)})"
        super().__init__(one_line(f"{rule}{value}" + (f": {cure}" if cure else "")))


class InputError(MatryoError, ValueError):
    """An argument violates a rule."""


class NestingError(InputError):
    """Invalid dims or weights, or dims that do not fit the vectors."""


class RecipeError(InputError):
    """An unknown recipe, field or value."""


class DataError(InputError):
    """A dataset that is missing, empty or damaged."""


class ImageError(DataError):
    """An image that cannot be decoded."""


class EmbeddingsError(InputError):
    """An embeddings folder that is missing, unfinished or damaged."""


class IndexFolderError(InputError):
    """An index folder is missing, unfinished or damaged."""

    @classmethod
    def damaged(cls, path: object, found: object) -> IndexFolderError:
        """The error for a file whose content differs from what was written."""
        return cls(f"{path} is damaged", got=found, cure="restore the index from a backup, or create it again")


class UnknownId(InputError, KeyError):
    """An id that the index does not have."""

    __str__ = Exception.__str__   # KeyError would print the message in quotes


class EngineError(MatryoError):
    """A database cannot be reached, or refused a statement. The message never holds a password."""


class RunError(MatryoError):
    """A run folder that cannot be resumed or loaded."""


class TrainingError(MatryoError):
    """Training failed, for example because the loss is not finite."""


class StorageError(MatryoError, OSError):
    """A write failed; existing files are intact."""


class MissingCore(MatryoError, ImportError):
    """The compiled search core, ``matryo._core``, is not installed or does not load."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "this needs the compiled core of matryo",
            got=reason,
            cure="unset MATRYO_ISA" if "MATRYO_ISA" in reason
            else "install a C++ compiler, then: pip install --force-reinstall --no-deps --no-cache-dir matryo",
        )
        self.reason = reason

    def __reduce__(self) -> tuple[type[MissingCore], tuple[str]]:
        """Support pickling, for errors in worker processes: the constructor takes other arguments than the message."""
        return MissingCore, (self.reason,)


class MissingExtra(MatryoError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}", cure=f"pip install 'matryo[{extra}]'")
        self.package, self.extra = package, extra

    @classmethod
    @contextmanager
    def unless_installed(cls, package: str, extra: str, module: str = "") -> Iterator[None]:
        """Wrap the import of ``package``; other import errors, such as those of an installed package, pass through.

        ``module`` is the name under which it is imported, if different.

        >>> with MissingExtra.unless_installed("no-such-package", "extra"):
        ...     import no_such_package
        Traceback (most recent call last):
        ...
        matryo.errors.MissingExtra: this needs no-such-package: pip install 'matryo[extra]'
        """
        try:
            yield
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing != (module or package.replace("-", "_")):   # a dependency of the package is missing
                raise
            raise cls(package, extra) from error

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        """Support pickling, for errors in worker processes: the constructor takes other arguments than the message."""
        return MissingExtra, (self.package, self.extra)


class ShiftWarning(UserWarning):
    """Searches score differently from the queries that their plan was made for, so its recall may not hold."""
