"""The origin of the vectors in a store: the model that made them, and the sources they were read from.

>>> import tempfile
>>> from matryo.retrieve.store import Store
>>> with Store.create(f"{tempfile.mkdtemp()}/mine", [2, 4], model={"name": "cats", "run": "runs/cats"}) as store:
...     store.model["name"]
'cats'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matryo.arguments import checked
from matryo.embeddings.manifest import as_plain
from matryo.retrieve.store.session import Session
from matryo.retrieve.store.sql import origin

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Origin", "how_to_encode", "title_of"]


class Origin(Session):
    """A session that knows where its vectors come from."""

    @property
    def model(self) -> str | dict[str, Any]:
        """The model that made the vectors: a name, or an object with a "name" and further facts; "" if unknown.

        ``matryo index`` adds the "run": the path of the run folder, with which ``matryo search`` encodes queries.
        """
        return self._read_records(lambda: origin.read_model(self._database))

    @checked
    def set_model(self, model: str | Mapping[str, Any]) -> None:
        """Record, durably, which model made the vectors; no vector is changed."""
        plain = as_plain("model", model)
        with self._changing(), self._committing():
            origin.write_model(self._database, plain)

    def sources(self) -> dict[str, dict[str, Any]]:
        """The sources that ``matryo index`` has added completely and numbered: their path, size and rows, by digest."""
        return self._read_records(lambda: origin.read_sources(self._database))

    @checked
    def add_source(self, digest: str, facts: Mapping[str, Any]) -> None:
        """Record, durably, that all rows of a source were added."""
        with self._changing(), self._committing():
            origin.write_source(self._database, digest, facts)

    @property
    def state(self) -> str:
        """A digest of the rows, the settings and the guides; it changes with every change to them."""
        return self._read_records(lambda: origin.state_digest(self._database))


def title_of(model: str | Mapping[str, Any]) -> str:
    """The name of a model; "" if it has none."""
    return model if isinstance(model, str) else str(model.get("name", ""))


def how_to_encode(model: str | Mapping[str, Any], text: str) -> str:
    """The advice for a caller who passes ``text`` where a vector is needed.

    >>> how_to_encode({"name": "cats", "run": "runs/cats"}, "a cat")
    'encode the queries first: matryo.load("runs/cats").encode(["a cat"])'
    >>> how_to_encode("text-model-3", "a cat")
    'encode the queries first, with text-model-3, which made the vectors'
    """
    run = model.get("run") if not isinstance(model, str) else None
    if run is None and title_of(model):
        return f"encode the queries first, with {title_of(model)}, which made the vectors"
    example = f"{text:.40}…" if len(text) > 40 else text
    return f'encode the queries first: matryo.load("{run or "runs/mine"}").encode(["{example}"])'
