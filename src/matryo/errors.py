"""Every error matryo raises on purpose, as one tree.

::

    MatryoError                     anything below; catch this to catch them all
    ├── InputError (ValueError)     an argument breaks a rule
    │   ├── NestingError            dims or weights that are no nesting, or do not fit the vectors
    │   ├── RecipeError             an unknown recipe, field or value
    │   ├── DataError               a dataset that is missing, empty or damaged
    │   │   └── ImageError          an image that cannot be decoded
    │   ├── EmbeddingsError         an embeddings folder that is missing, unfinished or damaged
    │   ├── IndexFolderError        an index folder that is missing, unfinished or damaged
    │   └── UnknownId (KeyError)    an id that the index does not have
    ├── RunError                    a run folder that cannot be continued or loaded
    ├── TrainingError               training went wrong (the loss is not finite, …)
    ├── StorageError (OSError)      the disk refused a write; nothing that was there is lost
    └── MissingExtra (ImportError)  an optional dependency is not installed; prints the pip line

Each message has one shape: the rule, the value got, the cure.

>>> raise NestingError("dims must increase", got=(8, 8), cure="list each dim once, smallest first")
Traceback (most recent call last):
...
matryo.errors.NestingError: dims must increase (got (8, 8)): list each dim once, smallest first
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "DataError",
    "EmbeddingsError",
    "ImageError",
    "IndexFolderError",
    "InputError",
    "MatryoError",
    "MissingExtra",
    "NestingError",
    "RecipeError",
    "RunError",
    "StorageError",
    "TrainingError",
    "UnknownId",
]

_NOTHING = object()


class MatryoError(Exception):
    """The rule that was broken, the value got and the cure, in one line."""

    def __init__(self, rule: str, *, got: object = _NOTHING, cure: str = "") -> None:
        seen = "" if got is _NOTHING else f" (got {got})"
        super().__init__(f"{rule}{seen}" + (f": {cure}" if cure else ""))


class InputError(MatryoError, ValueError):
    """An argument breaks a rule."""


class NestingError(InputError):
    """Dims or weights that are no nesting, or do not fit the vectors."""


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


class UnknownId(InputError, KeyError):
    """An id that the index does not have."""

    __str__ = Exception.__str__   # KeyError would print the message in quotes


class RunError(MatryoError):
    """A run folder that cannot be continued or loaded."""


class TrainingError(MatryoError):
    """Training went wrong."""


class StorageError(MatryoError, OSError):
    """The disk refused a write; nothing that was there is lost."""


class MissingExtra(MatryoError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}", cure=f"pip install 'matryo[{extra}]'")
        self.package, self.extra = package, extra

    @classmethod
    @contextmanager
    def unless_installed(cls, package: str, extra: str, module: str = "") -> Iterator[None]:
        """Around the import of ``package``: one that is installed, but cannot be imported, says itself why.

        ``module`` is what it is imported as, if that is another name.

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
            if missing != (module or package.replace("-", "_")):   # something that it needs
                raise
            raise cls(package, extra) from error

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        """Worker processes send errors home, and an exception is remade from its arguments."""
        return MissingExtra, (self.package, self.extra)
