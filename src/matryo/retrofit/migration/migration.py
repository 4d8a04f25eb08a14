"""Migration: a map of the vectors of an old model into the space of a new one, for an index that is re-encoded.

>>> rng = np.random.default_rng(0)
>>> items = rng.normal(size=(1500, 16))
>>> old = items @ np.linalg.qr(rng.normal(size=(16, 16)))[0]           # the same items by two models
>>> new = items @ rng.normal(size=(16, 24))
>>> migration = Migration.fit(old, new)
>>> migration.bridge.name, migration.transform(old).shape
('low_rank', (1500, 24))
>>> stay, procrustes, low_rank, residual = migration.table
>>> low_rank.recall > 0.9 > procrustes.recall > 0.2
True
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import as_number, checked
from matryo.embeddings.manifest import as_plain
from matryo.embeddings.rows import as_vectors
from matryo.errors import EmbeddingsError, InputError
from matryo.nesting import truncate
from matryo.retrofit.folder import check_format, read_folder, write_folder
from matryo.retrofit.migration.bridges import Bridge, rebuilt
from matryo.retrofit.migration.table import Measured, Pairs, cross_fitted, fitters, measure
from matryo.retrofit.reading import batches_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matryo.arrays import Floats

FORMAT = 1
"""The version of the folder; it increases when older versions of matryo cannot read the new one."""
_FEWEST = 200   # pairs
_TITLES = {"stay": "old model only", "procrustes": "Procrustes", "low_rank": "low rank", "residual": "residual"}


@dataclass(frozen=True, eq=False)
class Migration:
    """A fitted map from an old model to a new one; make one with :meth:`fit` or :meth:`load`."""

    bridge: Bridge
    """The map that was taken."""
    metric: str
    table: tuple[Measured, ...]
    """Recall against a full re-encode: of the old model alone ("stay"), and of each bridge."""
    mixed: Mapping[float, Measured]
    """The recall of the taken bridge while a share of the rows is re-encoded, by that share."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """The models, the number of pairs, and the settings of the fit."""

    @classmethod
    @checked
    def fit(
        cls, old: Any, new: Any, *, metric: str = "cosine", k: int = 10, shortlist: int = 100,
        confidence: float = 0.95, old_model: Any = None, new_model: Any = None, seed: int = 0,
    ) -> Migration:  # fmt: skip
        """Fit every bridge to items that both models have encoded, and take the simplest one that none beats.

        Row i of ``old`` and row i of ``new`` are vectors of one item. A few thousand items suffice. A bridge that is
        richer than Procrustes is taken if the lower confidence bound of its gain is above 0, in the mean of the recall
        in the first ``k`` and in the ``shortlist``. The models are recorded if ``old`` and ``new`` know them, or as
        ``old_model`` and ``new_model``.
        """
        if metric not in ("cosine", "ip", "l2"):
            raise InputError("metric must be cosine, ip or l2", got=repr(metric), cure="cosine suits most embeddings")
        as_number(confidence, "confidence", 0.5, 0.9999, cure="pass confidence=0.95")
        for name, value in (("k", k), ("shortlist", shortlist)):
            if value < 1:
                raise InputError(f"{name} must be at least 1", got=value, cure=f"pass {name}=10")
        models = [_model_of(vectors, given) for vectors, given in ((old, old_model), (new, new_model))]
        left, right, zeros = _as_pairs(old, new)
        rng = np.random.default_rng(seed)
        pairs = Pairs.split(left, right, metric, k, shortlist, rng)   # type: ignore[arg-type]
        ways = fitters(pairs, seed)
        mapped = {name: cross_fitted(pairs, fit, rng) for name, fit in ways.items()}
        taken, table, mixed = measure(pairs, mapped, confidence, rng)
        provenance = {
            "old_model": models[0], "new_model": models[1], "pairs": len(left), "zeros": zeros, "k": pairs.k,
            "shortlist": pairs.shortlist, "tests": len(pairs.queries), "database": len(pairs.rows),
            "confidence": confidence, "seed": seed,
        }  # fmt: skip
        return cls(ways[taken](pairs.old, pairs.new), metric, table, mixed, provenance)

    @property
    def old_dim(self) -> int:
        """The number of columns of the old vectors."""
        return int(self.bridge.weight.shape[0])

    @property
    def new_dim(self) -> int:
        """The number of columns of the new vectors."""
        return int(self.bridge.weight.shape[1])

    @checked
    def transform(self, x: Any) -> Floats:
        """Return old vectors ``x`` [n, old] in the new space, as float32 [n, new]; for cosine, of norm 1."""
        from matryo.arrays import as_array

        array = as_array(x, "vectors", EmbeddingsError)
        rows = as_vectors(array[None] if array.ndim == 1 else array)
        if rows.shape[1] != self.old_dim:
            got = f"{rows.shape[1]}, as the new model has" if rows.shape[1] == self.new_dim else rows.shape[1]
            rule = f"this migration takes vectors of the old model, with {self.old_dim} columns"
            raise EmbeddingsError(rule, got=got, cure="pass the vectors that the old model made")
        if self.metric == "cosine":
            rows = truncate(rows, rows.shape[1])
        mapped = self.bridge.apply(rows)
        if self.metric == "cosine":
            mapped = truncate(mapped, self.new_dim)
            mapped[~rows.any(axis=1)] = 0   # a vector without a direction stays one
        return mapped[0] if array.ndim == 1 else mapped

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    @checked
    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the folder ``path``: migration.safetensors with the matrices, migration.json with the rest."""
        write_folder(path, "migration", self.bridge.tensors(), self.to_dict(), force=force)

    @classmethod
    @checked
    def load(cls, path: str | Path) -> Migration:
        """Read a folder that :meth:`save` wrote, and verify its checksum."""
        return read_folder(path, "migration", cls._rebuilt)

    @classmethod
    def _rebuilt(cls, about: dict[str, Any], tensors: dict[str, Any]) -> Migration:
        check_format(about, FORMAT)
        table = tuple(Measured(**entry) for entry in about["table"])
        mixed = {float(share): Measured(**entry) for share, entry in about["mixed"].items()}
        return cls(rebuilt(about["bridge"], tensors), about["metric"], table, mixed, about["provenance"])

    def to_dict(self) -> dict[str, Any]:
        """Everything but the matrices, for JSON."""
        return {
            "format": FORMAT, "bridge": self.bridge.name, "metric": self.metric, "old_dim": self.old_dim,
            "new_dim": self.new_dim, "table": [asdict(entry) for entry in self.table],
            "mixed": {str(share): asdict(entry) for share, entry in self.mixed.items()},
            "provenance": dict(self.provenance),
        }  # fmt: skip

    # ── description ───────────────────────────────────────────────────────────────────────────────────────────

    def __repr__(self) -> str:
        return f"Migration({self.bridge.name}, {self.old_dim} → {self.new_dim} dims)"

    def __str__(self) -> str:
        """The recall table."""
        facts = self.provenance
        k, short = f"in the first {facts.get('k')}", f"in the first {facts.get('shortlist')}"
        taken = self.bridge.name
        lines = [(_TITLES[entry.name] + " (taken)" * (entry.name == taken), entry) for entry in self.table]
        lines += [(f"{share:.0%} re-encoded", entry) for share, entry in self.mixed.items()]
        width = max(len(title) for title, _ in lines)
        body = [f"{title:<{width}}  {100 * entry.recall:>{len(k)}.1f}  {100 * entry.shortlist:>{len(short)}.1f}"
                for title, entry in lines]  # fmt: skip
        return "\n".join([
            f"{self.bridge.name}, {self.old_dim} → {self.new_dim} dims, fitted on {facts.get('pairs', 0):,} items",
            f"share of the {facts.get('k')} nearest after a full re-encode that is found, %; "
            f"{facts.get('tests', 0):,} queries, {facts.get('database', 0):,} rows",
            f"{'':<{width}}  {k}  {short}", *body, *self._advice(),
        ])  # fmt: skip

    def _advice(self) -> list[str]:
        """A line that says when mapped rows find less than the old model does alone."""
        found = {entry.name: entry.recall for entry in self.table}
        if found.get("stay", 0) <= found[self.bridge.name]:
            return []
        better = [share for share, entry in sorted(self.mixed.items()) if entry.recall > found["stay"]]
        until = f"until {better[0]:.0%} of the rows are re-encoded" if better else "until most rows are re-encoded"
        return [f"the old model finds more by itself: search the old index with it {until}"]


def _model_of(vectors: Any, given: Any) -> Any:
    own = getattr(getattr(vectors, "manifest", None), "model", "") or getattr(vectors, "model", "")
    return as_plain("model", (own if given is None else given) or "")


def _as_pairs(old: Any, new: Any) -> tuple[Floats, Floats, int]:
    """The vectors of items that have a direction in both, and the number of the others."""
    left, right = (np.concatenate(list(batches_of(vectors))) for vectors in (old, new))
    if len(left) != len(right):
        raise InputError(
            "old and new must hold the same items in the same order",
            got=f"{len(left)} and {len(right)} rows",
            cure="encode the items of one list with both models",
        )
    alive = np.flatnonzero(left.any(axis=1) & right.any(axis=1))
    zeros = len(left) - len(alive)
    if len(alive) < _FEWEST:
        got = f"{len(alive)}" + (f", and {zeros} of zeros" if zeros else "")
        raise InputError(f"a migration needs at least {_FEWEST} items", got=got,
                         cure="encode more of them with both models; a few thousand are good")  # fmt: skip
    for name, vectors in (("old", left), ("new", right)):
        if float(vectors.var(axis=0).sum()) <= 1e-9 * float(np.square(vectors).sum(axis=1).mean()):
            raise InputError(f"the {name} vectors must differ", got="equal ones", cure="check how they were encoded")
    return left[alive], right[alive], zeros
