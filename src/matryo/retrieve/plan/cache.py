"""A cache of the planner's choices: planning an unchanged index for the same queries and target gives a stored choice.

The choices are files in ``plans/`` of the index folder, which may be deleted at any time.

>>> import tempfile
>>> from matryo.retrieve.plan.choice import Point
>>> from matryo.retrieve.plan.plan import Plan
>>> folder, key = Path(tempfile.mkdtemp()), plan_key("a state", None, recall=0.99, k=10)
>>> print(load_choice(folder, key))
None
>>> exact = Point(Plan.single(64), 1.0, 1.0, True, 0.8, 25.6e6, 6.4)
>>> choice = Choice(exact.plan, (exact,), target=0.99, k=10, tuned_on=125, tested_on=375)
>>> store_choice(folder, key, choice)
>>> load_choice(folder, key) == choice
True
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo import __version__
from matryo.arrays import as_array
from matryo.compiled import isa
from matryo.errors import MatryoError
from matryo.files import json_digest, parse_json, write_json
from matryo.retrieve.plan.choice import Choice

if TYPE_CHECKING:
    from matryo.retrieve.vectors.types import Array

__all__ = ["load_choice", "plan_key", "store_choice"]

PLANS = "plans"
MOST = 48
"""The most choices that are kept; the oldest ones are deleted."""
_FORMAT = 2   # increases when the planner of one version chooses differently


def plan_key(state: str, queries: Array | None, **settings: Any) -> str:
    """A digest of everything that determines a choice.

    ``state`` is that of the index, see :attr:`Index.state`; ``queries`` and ``settings`` are arguments of the planner.
    The machine counts too, because latency is measured on it.
    """
    content = ""
    if queries is not None:
        array = as_array(queries, "queries")
        about = f"{array.dtype.str} {array.shape}"
        content = hashlib.sha256(about.encode() + b"\0" + array.tobytes()).hexdigest()
    facts = {"state": state, "queries": content, "settings": settings, "machine": platform.node(), "isa": isa()}
    return json_digest({"format": _FORMAT, "version": __version__, **facts})


def load_choice(folder: Path, key: str) -> Choice | None:
    """The choice stored under ``key`` in an index folder; None if there is none, or it is damaged."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, MatryoError):
        stored = parse_json(_file(folder, key).read_bytes())
        if stored["sha256"] == json_digest(stored["choice"]):
            return Choice.from_figures(stored["choice"])
    return None


def store_choice(folder: Path, key: str, choice: Choice) -> None:
    """Store a choice under ``key``, atomically; without permission or space nothing is stored."""
    with contextlib.suppress(OSError, MatryoError):
        file = _file(folder, key)
        file.parent.mkdir(exist_ok=True)
        figures = choice.to_figures()
        write_json(file, {"choice": figures, "sha256": json_digest(figures)})
        for old in sorted(file.parent.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)[:-MOST]:
            old.unlink(missing_ok=True)


def _file(folder: Path, key: str) -> Path:
    return folder / PLANS / f"{key[:32]}.json"
