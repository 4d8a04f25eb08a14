"""Retrofit: a map that makes existing vectors nested, chosen on held-out queries and never worse than PCA.

>>> rng = np.random.default_rng(0)
>>> spread = rng.normal(size=(3000, 64)) * np.linspace(2, 0.1, 64)
>>> vectors = spread @ np.linalg.qr(rng.normal(size=(64, 64)))[0]      # no column matters more than another
>>> retrofit = Retrofit.fit(vectors, nesting=[8, 16, 32, 64])
>>> retrofit.rung, retrofit.transform(vectors).shape
('pca', (3000, 64))
>>> taken = retrofit.table[1]
>>> taken.dim, taken.quality["pca"] > taken.quality["identity"] + 0.1
(16, True)
>>> bool(np.allclose(retrofit.inverse(retrofit.transform(vectors)), vectors, atol=1e-5))
True
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import as_number, checked
from matryo.embeddings.manifest import as_plain
from matryo.embeddings.rows import as_vectors
from matryo.errors import EmbeddingsError, InputError
from matryo.nesting import Nesting, as_nesting, truncate
from matryo.retrofit import rungs
from matryo.retrofit.choice import SIMPLE, Taken
from matryo.retrofit.fitting import Fit, Options, share_kept, whole_nesting
from matryo.retrofit.held_out import Rung
from matryo.retrofit.moments import Moments
from matryo.retrofit.reading import batches_of
from matryo.tables import Block, Metric, percent, render

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from matryo.arrays import Floats

@dataclass(frozen=True, eq=False)
class Retrofit:
    """A fitted map of vectors with ``dim`` columns; make one with :meth:`fit` or :meth:`load`."""

    rungs: Mapping[str, Rung]
    """The maps that are in use, by name: the one for all dims, and those taken at single dims."""
    rung: str
    """The name of the map for all dims, which :meth:`transform` applies."""
    table: tuple[Taken, ...]
    """For each dim below the last: the quality of every rung on held-out queries, and the one that was taken."""
    nesting: Nesting
    metric: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """The vectors that the map was fitted to, and the settings of the fit."""
    moments: Moments | None = None
    """The statistics of the vectors, for :meth:`update`."""

    @classmethod
    @checked
    def fit(
        cls, vectors: Any, queries: Any = None, relevance: Any = None, labels: Any = None,
        nesting: Nesting | Iterable[int] | None = None, *, trained: Nesting | Iterable[int] | None = None,
        metric: str = "cosine", learn: bool = False, adapt: bool = False, k: int = 10, shortlist: int = 100,
        confidence: float = 0.95, model: Any = None, seed: int = 0, progress: bool = True,
    ) -> Retrofit:  # fmt: skip
        """Fit every rung of the ladder to ``vectors``, and choose between them on held-out queries.

        ``vectors`` may be an array (also memory-mapped), a tensor, lists, a table, embeddings, an index, a source of
        :func:`matryo.retrieve.sources.open_source`, or an iterator of batches. They are read once, in bounded memory.
        ``queries`` are vectors that will be searched with, if they differ from the database; ``relevance`` lists the
        relevant row numbers of each query; ``labels`` has a class per vector, −1 or None where it is unknown.
        ``nesting`` are the dims to serve, by default powers of two; ``trained`` those that the vectors were trained
        for. ``learn`` also trains a rotation with torch, ``adapt`` an adaptor: it is no rotation, and is taken at
        single dims only (:meth:`at`), if it is proved better than every rotation there. Without relevance and labels,
        the quality is the share of the true ``k`` nearest among the ``shortlist`` nearest by the first m dims.
        """
        if metric not in ("cosine", "ip", "l2"):
            raise InputError("metric must be cosine, ip or l2", got=repr(metric), cure="cosine suits most embeddings")
        as_number(confidence, "confidence", 0.5, 0.9999, cure="pass confidence=0.95")
        for name, value in (("k", k), ("shortlist", shortlist)):
            if value < 1:
                raise InputError(f"{name} must be at least 1", got=value, cure=f"pass {name}=10")
        own = getattr(vectors, "manifest", None)   # embeddings record the dims that they were trained for
        trained = own.nesting if trained is None and own is not None and len(own.nesting) > 1 else trained
        options = Options(
            None if nesting is None else as_nesting(nesting), None if trained is None else as_nesting(trained),
            metric, k, shortlist, learn, adapt, confidence, seed, progress,  # type: ignore[arg-type]
        )  # fmt: skip
        model = getattr(own, "model", "") or getattr(vectors, "model", "") if model is None else model
        fitted = Fit(options).run(vectors, queries, relevance, labels)
        return cls._of(fitted, as_plain("model", model or ""))

    @classmethod
    def _of(cls, fitted: Fit, model: Any) -> Retrofit:
        options, names = fitted.options, {fitted.whole, *(taken.rung for taken in fitted.table)}
        held = getattr(fitted, "held", None)
        provenance = {
            "model": model, "rows": fitted.moments.count, "seen": fitted.reservoir.seen,
            "zeros": fitted.zeros, "quality": fitted.quality,
            "k": options.k if held is None else held.k,
            "shortlist": options.shortlist if held is None else held.shortlist,
            "tests": 0 if held is None else held.count, "database": 0 if held is None else len(held.database),
            "confidence": options.confidence, "seed": options.seed, "learn": options.learn, "adapt": options.adapt,
            "trained": None if options.trained is None else list(options.trained.dims),
        }  # fmt: skip
        used = {name: rung for name, rung in fitted.rungs.items() if name in names}
        return cls(used, fitted.whole, fitted.table, fitted.nesting, options.metric, provenance, fitted.moments)

    # ── the map ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def dim(self) -> int:
        """The number of columns, before and after."""
        return len(self._map.axes)

    @property
    def axes(self) -> Floats:
        """The orthogonal matrix [d, d], float32: the outputs are ``(x − mean) @ axes``."""
        return np.asarray(self._map.axes, np.float32)

    @property
    def mean(self) -> Floats | None:
        """The mean [d] that is subtracted first; None for a map that keeps every full-dim score."""
        return None if self._map.mean is None else np.asarray(self._map.mean, np.float32)

    @property
    def keeps_scores(self) -> bool:
        """Whether no full-dim inner product, distance or cosine changes."""
        return self._map.mean is None and self.is_rotation

    @property
    def is_rotation(self) -> bool:
        """Whether the map is a rotation, perhaps around a mean; an adaptor is not, and has no inverse."""
        return self._map.correction is None

    @property
    def energy(self) -> dict[int, float]:
        """The share of the squared norm that the first m outputs kept of the fitted vectors, by dim."""
        stored = self.provenance.get("energy")
        if stored is not None or self.moments is None:
            return {int(m): float(share) for m, share in (stored or {}).items()}
        matrix = self.moments.second if self._map.mean is None else self.moments.covariance
        return share_kept(matrix, self._map.axes, self.nesting.dims)

    @property
    def _map(self) -> Rung:
        return self.rungs[self.rung]

    @checked
    def transform(self, x: Any, dim: int | None = None) -> Floats:
        """Return the vectors ``x`` [n, d] mapped, as float32 [n, ``dim`` or d]; a single vector may be one-dimensional.

        Prefixes are the vectors of fewer dims. With ``dim``, only these columns are computed; they are scaled to norm 1
        again if the metric is cosine.
        """
        rows, single = self._rows(x)
        if dim is not None and not 1 <= dim <= self.dim:
            raise InputError(f"dim must be from 1 to {self.dim}", got=dim, cure=f"use dim={self.dim}")
        mapped = self._map.apply(rows, dim, normalize=self.metric == "cosine")
        if dim is not None and self.metric == "cosine":
            mapped = truncate(mapped, dim)
        return mapped[0] if single else mapped

    @checked
    def inverse(self, z: Any) -> Floats:
        """Return vectors as they were before :meth:`transform`; after a map around a mean with cosine, of norm 1."""
        rows, single = self._rows(z)
        if not self.is_rotation:
            raise InputError("an adaptor has no inverse", got=self.rung, cure="fit without adapt=True")
        found = rows @ self.axes.T
        if self.mean is not None:
            found += self.mean
        return found[0] if single else found

    @checked
    def at(self, dim: int) -> Retrofit:
        """Return the map that was taken at ``dim``: the best there, perhaps not at other dims."""
        taken = next((entry for entry in self.table if entry.dim == dim), None)
        if taken is None and dim != self.dim:
            dims = ", ".join(str(entry.dim) for entry in self.table)
            raise InputError(f"dim must be one of {dims}", got=dim, cure=f"fit with nesting=[{dim}, {self.dim}]")
        return self if taken is None else replace(self, rung=taken.rung)

    def _rows(self, x: Any) -> tuple[Floats, bool]:
        from matryo.arrays import as_array

        array = as_array(x, "vectors", EmbeddingsError)
        rows = as_vectors(array[None] if array.ndim == 1 else array)
        if rows.shape[1] != self.dim:
            raise EmbeddingsError(
                f"this map was fitted on vectors with {self.dim} columns",
                got=rows.shape[1],
                cure="fit a map on vectors of the model that made these",
            )
        return rows, array.ndim == 1

    # ── more vectors ──────────────────────────────────────────────────────────────────────────────────────────

    @checked
    def update(self, vectors: Any) -> Retrofit:
        """Return the map fitted on these vectors, too, from the stored statistics; the choice of rungs stays."""
        fixed = sorted(set(self.rungs) - {*SIMPLE, "blocks"})
        if self.moments is None or fixed:
            got = f"rungs {', '.join(fixed)}" if fixed else "no statistics"
            raise InputError("only a map of PCA can be updated", got=got, cure="fit a new map on all vectors")
        merged = Moments.of_arrays(self.moments.arrays())
        for batch in batches_of(vectors):
            alive = batch[batch.any(axis=1)]
            if alive.shape[1] == self.dim:
                alive = truncate(alive, self.dim) if self.metric == "cosine" else alive
            new = Moments(alive.shape[1])
            new.add(alive)
            merged.merge(new)
        trained = self.provenance.get("trained")
        made = {
            "pca": lambda: Rung("pca", rungs.leading(merged.second)),
            "centred": lambda: Rung("centred", rungs.leading(merged.covariance), merged.mean),
            "identity": lambda: self.rungs["identity"],
            "blocks": lambda: Rung("blocks", rungs.within_blocks(
                merged.second, whole_nesting(Nesting(trained or [self.dim]), self.dim))),
        }  # fmt: skip
        provenance = {name: value for name, value in self.provenance.items() if name != "energy"}
        provenance |= {"rows": merged.count, "fitted_rows": self.provenance.get("fitted_rows", self.provenance["rows"])}
        used = {name: made[name]() for name in self.rungs}
        return replace(self, rungs=used, provenance=provenance, moments=merged)

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    @checked
    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the folder ``path``: retrofit.safetensors with the matrices, retrofit.json with the rest."""
        from matryo.retrofit.folder import save

        save(self, path, force=force)

    @classmethod
    @checked
    def load(cls, path: str | Path) -> Retrofit:
        """Read a folder that :meth:`save` wrote, and verify its checksums."""
        from matryo.retrofit.folder import load

        return load(path)

    @checked
    def fold_into(self, model: str | Path | None, out: str | Path, *, dim: int | None = None) -> None:
        """Write ``out``: a ``model`` that gives mapped vectors, or the map itself, as in `matryo.retrofit.folding`."""
        from matryo.retrofit.folding import fold

        fold(self, model, out, dim)

    # ── description ───────────────────────────────────────────────────────────────────────────────────────────

    def __repr__(self) -> str:
        return f"Retrofit({self.rung}, {self.dim} dims, {self.provenance.get('rows', 0):,} rows)"

    def __str__(self) -> str:
        """The table of the choice."""
        first = f"{self.rung} for all dims, fitted on {self.provenance.get('rows', 0):,} vectors"
        if not self.table:
            return f"{first}; nothing was measured, because no row could be held out"
        names = list(self.table[0].quality)
        rows = {entry.dim: entry for entry in self.table}
        metrics = [Metric(name, {dim: entry.quality[name] for dim, entry in rows.items()}) for name in names]
        places = {dim: float(names.index(entry.rung)) for dim, entry in rows.items()}
        metrics.append(Metric("taken", places, lambda place: "–" if place is None else names[int(place)]))
        if any(entry.rung not in SIMPLE for entry in self.table):
            proved = {dim: entry for dim, entry in rows.items() if entry.rung not in SIMPLE}
            metrics.append(Metric("gain", {dim: entry.gain for dim, entry in proved.items()}, percent))
            metrics.append(Metric("lower", {dim: entry.lower for dim, entry in proved.items()}, percent))
        lines = [first, render([Block("", "", self._measured(), metrics)], width=120)]
        whys: dict[str, list[int]] = {}
        for entry in self.table:
            whys.setdefault(f"{entry.rung}: {entry.why}", []).append(entry.dim)
        return "\n".join([*lines, *(f"at {', '.join(map(str, dims))}: {why}" for why, dims in whys.items())])

    def _measured(self) -> str:
        facts = self.provenance
        words = {
            "recall": f"true {facts.get('k')} nearest among the {facts.get('shortlist')} nearest by m dims, %",
            "labels": f"precision@{facts.get('k')} by labels, %",
            "ndcg": f"nDCG@{facts.get('k')}, %",
        }
        return f"{words[str(facts.get('quality'))]}; {facts.get('tests'):,} held-out queries"
