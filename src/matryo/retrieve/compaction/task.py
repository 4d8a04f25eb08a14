"""The task of the child process of a compaction, as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field

from matryo.retrieve.store.segments.segment import Limits


@dataclass(frozen=True)
class Task:
    """Copy the live rows of the segments ``names`` of the index ``folder`` to a new scratch index, and guide them."""

    folder: str
    scratch: str
    names: tuple[str, ...]
    limits: Limits
    share: float
    """The share of one core that the process may use, above 0 and up to 1."""
    parent: int = field(default_factory=os.getpid)
    """The process of the writer; without it, the work is lost."""

    def to_json(self) -> str:
        """The task as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Rebuild the task from :meth:`to_json`."""
        data = json.loads(text)
        return cls(**{**data, "names": tuple(data["names"]), "limits": Limits(**data["limits"])})
