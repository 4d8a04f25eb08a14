"""Filters on the payloads of a store: the rows that match, from columns that are read once."""

from __future__ import annotations

import difflib
from functools import partial
from typing import TYPE_CHECKING, Any

from matryo.errors import InputError
from matryo.retrieve.store.filters.language import Exists, Filter, key_of
from matryo.retrieve.store.filters.reading import names_at, read_columns
from matryo.retrieve.store.origin import Origin
from matryo.retrieve.store.sql import records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matryo.retrieve.store.snapshot import Snapshot


class Filtered(Origin):
    """A session whose rows can be filtered by their payloads."""

    def where(self, where: Mapping[str, Any], *, check: bool = False) -> Snapshot:
        """The current rows whose payload matches ``where``, a dict as in :mod:`matryo.retrieve.store.filters.language`.

        The first filter on a field reads the column of its values, which takes about a second per million rows. With
        ``check``, comparing a field that no payload has is an error that suggests a similar one.
        """
        key = key_of(where)
        with self._guard:
            snapshot = self.snapshot()
            if key is None:
                return self._matching(snapshot, where, check)
            return snapshot.filtered.get((key, check), lambda: self._matching(snapshot, where, check))

    def _matching(self, snapshot: Snapshot, where: Mapping[str, Any], check: bool) -> Snapshot:
        filter = Filter.of(where)
        if snapshot.lacks(filter.fields):
            snapshot = self._read(partial(self._with_columns, filter.fields))
        for field in filter.compared if check and snapshot.segments else ():
            if not snapshot.matching(Exists(field)).count:
                raise self._read(partial(self._unknown_field, field))
        return snapshot.matching(filter.condition)

    def _with_columns(self, fields: Sequence[str], snapshot: Snapshot) -> Snapshot:
        for segment in snapshot.segments:
            read_columns(self._database, segment.parts, segment.rows, fields)
        return snapshot

    def fields(self) -> list[str]:
        """The names of all payload fields, in order of appearance."""
        return self._read(lambda _: records.field_names(self._database))

    def _unknown_field(self, field: str, _: Snapshot) -> InputError:
        """The error for a field that no payload has, with the most similar existing field."""
        names, before = field.split("."), list[str]()
        existing = names_at(self._database, before)
        while len(names) > 1 and names[0] in existing:
            before.append(names.pop(0))
            existing = names_at(self._database, before)
        near = difflib.get_close_matches(names[0], existing, 1)
        cure = f"did you mean {'.'.join([*before, *near])}" if near else f"the fields are {', '.join(existing)}"
        if not existing:
            cure = "its vectors have no such payload: pass payload=… to add or upsert"
        return InputError("where compares a field that no payload has", got=repr(field), cure=cure)
