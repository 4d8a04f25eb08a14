"""Compression: vectors as codes of a few bytes, with the rotation, dims and bits that keep the most neighbours.

>>> rng = np.random.default_rng(0)
>>> mixed = np.linalg.qr(rng.normal(size=(64, 64)))[0]
>>> vectors = (rng.normal(size=(3000, 64)) * np.geomspace(1, 0.05, 64)) @ mixed
>>> compression = Compression.choose(vectors, bytes_per_vector=16, progress=False)
>>> codes = compression.encode(vectors)
>>> codes.shape, codes.dtype.name, compression.code
((3000, 16), 'uint8', 'product')
>>> rows, scores = compression.search(vectors[:3], codes, k=5)
>>> rows[:, 0].tolist()
[0, 1, 2]
>>> Compression.fit(vectors, dim=32, bits=4).bytes_per_vector
16
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import as_integer, as_number, checked
from matryo.arrays import as_array
from matryo.compiled import default_threads
from matryo.embeddings.rows import as_vectors
from matryo.errors import EmbeddingsError, InputError
from matryo.nesting import truncate
from matryo.retrieve.compress.bases import in_product, in_scalars, turned
from matryo.retrieve.compress.choosing import KINDS, Candidate, all_axes, choose, recipes
from matryo.retrieve.compress.codes import scoring
from matryo.retrieve.compress.codes.fitted import Fitted
from matryo.retrieve.compress.codes.scan import scan_of
from matryo.retrieve.compress.sample import read_sample
from matryo.retrieve.compress.settings import (
    as_kinds,
    as_queries,
    check_map,
    check_model,
    check_settings,
    held_out,
    model_of,
    origin,
)  # fmt: skip
from matryo.retrofit.reading import batches_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from matryo.arrays import Array, Floats, Integers
    from matryo.retrofit import Retrofit


@dataclass(frozen=True, eq=False)
class Compression:
    """A fitted code of vectors; make one with :meth:`choose`, :meth:`fit` or :meth:`load`."""

    fitted: Fitted
    metric: str
    table: tuple[Candidate, ...] = ()
    """The candidates of :meth:`choose`, with what each keeps."""
    why: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    # ── fitting ───────────────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    @checked
    def choose(
        cls, vectors: Any, bytes_per_vector: int = 64, queries: Any = None, relevance: Any = None, *,
        metric: str = "cosine", kinds: Iterable[str] = KINDS, k: int = 10, rerank: bool = False, shortlist: int = 100,
        retrofit: Retrofit | None = None, confidence: float = 0.95, model: Any = None, seed: int = 0,
        progress: bool = True,
    ) -> Compression:  # fmt: skip
        """Find the code of at most ``bytes_per_vector`` bytes that keeps the most for held-out queries.

        ``vectors`` may be whatever :meth:`matryo.Retrofit.fit` takes; they are read once, in bounded memory.
        ``queries`` are vectors that will be searched with, if they differ from the database; ``relevance`` lists the
        relevant row numbers of each query. Without it the true ``k`` nearest are what must be found. With ``rerank``
        the choice is for searches whose best ``shortlist`` rows are ordered again by full vectors. ``kinds`` are the
        codes that may be chosen; those that databases take are ``float16``, ``int8`` and ``bit``.
        """
        check_settings(metric, k, shortlist, bytes_per_vector)
        as_number(confidence, "confidence", 0.5, 0.9999, cure="pass confidence=0.95")
        names = as_kinds(kinds, bytes_per_vector, metric)
        asked, pairs = as_queries(queries, relevance, metric)
        wanted = None if pairs is None else np.concatenate([np.empty(0, np.int64), *pairs])
        sample = read_sample(vectors, metric, wanted=wanted, seed=seed, progress=progress)
        check_map(retrofit, sample.dim, model_of(vectors) if model is None else model)
        rest, trial, own = held_out(sample, asked, pairs, metric, k, max(k, shortlist), seed)
        more = [*(["queries"] if own is not None else []), *(["map"] if retrofit is not None else [])]
        tried = recipes(sample.dim, bytes_per_vector, names, metric, more, fewer=pairs is not None)
        axes = all_axes(tried, rest, retrofit, own)
        candidates = [recipe.fit(rest, axes, metric, seed) for recipe in tried]
        recipe, table, why = choose(tried, candidates, trial, confidence, rerank=rerank)
        fitted = recipe.fit(sample, all_axes([recipe], sample, retrofit, own), metric, seed)   # also to held-out rows
        provenance = origin(vectors, model, sample, seed, fitted, metric) | {
            "budget": bytes_per_vector, "quality": "recall" if pairs is None else "ndcg", "k": trial.k,
            "rerank": rerank, "shortlist": trial.shortlist, "tests": len(trial.queries),
            "database": len(trial.database), "confidence": confidence, "full": float(trial.of_full_vectors().mean()),
        }  # fmt: skip
        return cls(fitted, metric, table, why, provenance)

    @classmethod
    @checked
    def fit(
        cls, vectors: Any, dim: int | None = None, bits: int | None = None, *, bytes_per_vector: int | None = None,
        metric: str = "cosine", rotation: str = "pca", retrofit: Retrofit | None = None, model: Any = None,
        seed: int = 0, progress: bool = True,
    ) -> Compression:  # fmt: skip
        """Fit one code: the first ``dim`` axes in numbers of ``bits``, or ``bytes_per_vector`` bytes of a product code.

        ``rotation`` is ``pca`` or ``identity``, which keeps the columns as they are; ``retrofit`` gives another one.
        """
        check_settings(metric, 1, 1, bytes_per_vector or 1)
        if (bits is None) == (bytes_per_vector is None) or (bits is None and dim is not None):
            rule, cure = "pass bits, or bytes_per_vector for a product code", "bits=4, dim=128"
            raise InputError(rule, got=f"bits={bits}, dim={dim}, bytes_per_vector={bytes_per_vector}", cure=cure)
        if bits not in (None, 1, 4, 8, 16):
            raise InputError("bits must be 1, 4, 8 or 16", got=bits, cure="bits=4")
        if rotation not in ("pca", "identity"):
            raise InputError("rotation must be pca or identity", got=repr(rotation), cure="or pass retrofit=…")
        sample = read_sample(vectors, metric, seed=seed, progress=progress)
        check_map(retrofit, sample.dim, model_of(vectors) if model is None else model)
        if bytes_per_vector is not None:
            name = "centred" if retrofit is None else "map"
            axes = turned(sample, name, retrofit)
            fitted = in_product(sample, axes, name, bytes_per_vector, seed)
        else:
            name, dim = rotation if retrofit is None else "map", sample.dim if dim is None else dim
            as_integer(dim, "dim", 1, sample.dim, cure=f"pass dim={sample.dim}")
            fitted = in_scalars(turned(sample, name, retrofit), name, dim, bits, metric, seed)   # type: ignore[arg-type]
        return cls(fitted, metric, (), "", origin(vectors, model, sample, seed, fitted, metric))

    # ── codes ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def dim(self) -> int:
        """The number of columns of the vectors."""
        return len(self.fitted.axes)

    @property
    def code(self) -> str:
        """``float16``, ``int8``, ``int4``, ``bit`` or ``product``."""
        return self.fitted.codec.name

    @property
    def bytes_per_vector(self) -> int:
        """The bytes of one code."""
        return self.fitted.codec.bytes_per_row

    @checked
    def encode(self, vectors: Any) -> Array:
        """Return the codes of ``vectors``, uint8 [n, bytes]; see :mod:`matryo.retrieve.compress.codes.codecs`."""
        cure = "encode the vectors with the model of the compression"
        check_model(self.provenance.get("model"), model_of(vectors), "this compression", cure)
        parts = [self._encoded(batch) for batch in batches_of(vectors)]
        return np.concatenate(parts)

    @checked
    def decode(self, codes: Any) -> Floats:
        """Return the vectors [n, d] that codes stand for; under cosine they have norm 1."""
        checked_codes = self._codes(codes)
        found = self.fitted.codec.decode(checked_codes) @ self.fitted.axes.T
        if self.fitted.mean is not None:
            found += self.fitted.mean
        return truncate(found, self.dim) if self.metric == "cosine" else np.asarray(found, np.float32)

    @checked
    def transform(self, vectors: Any) -> Floats:
        """Return what is encoded of ``vectors``: their coordinates [n, dims], for databases with types of their own."""
        rows = scoring.prepared(self._rows(vectors), self.metric)
        return self.fitted.coordinates(rows)

    @checked
    def score(self, queries: Any, codes: Any) -> Floats:
        """Return the scores [queries, n] of float queries and codes: cosine, inner product, or −‖q − x̂‖²."""
        prepared = scoring.prepared(self._rows(queries, "queries"), self.metric)
        return scoring.scores(self.fitted, self.metric, prepared, self._codes(codes))

    @checked
    def search(
        self, queries: Any, codes: Any, k: int = 10, *, full: Any = None, shortlist: int = 100,
        threads: int | None = None,
    ) -> tuple[Integers, Floats]:  # fmt: skip
        """Return the best ``k`` rows of each query and their scores, both [queries, k], best first.

        With ``full``, an array [n, d] that may be memory-mapped, the best ``shortlist`` rows by the codes are ordered
        again by their full vectors.
        """
        check_settings(self.metric, k, shortlist, 1)
        prepared, coded = scoring.prepared(self._rows(queries, "queries"), self.metric), self._codes(codes)
        if full is not None and np.shape(full) != (len(coded), self.dim):
            rule = f"full must hold the {len(coded)} vectors of the codes, with {self.dim} columns"
            raise InputError(rule, got=f"shape {np.shape(full)}", cure="pass the array that was encoded")
        first = k if full is None else max(k, shortlist)
        count = default_threads() if threads is None else threads
        scan = scan_of(self.fitted, self.metric, coded)
        rows, scores = scan.search(prepared, min(first, len(coded)), threads=count)
        if full is None:
            return rows, scores
        return scoring.rerank(self.metric, prepared, rows, full, min(k, len(coded)))

    def _encoded(self, batch: Floats) -> Array:
        rows = self._rows(batch)
        if self.metric == "cosine" and not rows.any(axis=1).all():
            got = f"row {int(np.flatnonzero(~rows.any(axis=1))[0])} of zeros"
            raise EmbeddingsError("vectors must have a direction", got=got, cure="drop it, or encode it again")
        return self.fitted.codec.encode(self.fitted.coordinates(scoring.prepared(rows, self.metric)))

    def _rows(self, vectors: Any, name: str = "vectors") -> Floats:
        rows = as_vectors(vectors)
        if rows.shape[1] != self.dim:
            rule = f"this compression was fitted on vectors with {self.dim} columns; {name} must have as many"
            raise EmbeddingsError(rule, got=rows.shape[1], cure="encode them with the model of these vectors")
        return rows

    def _codes(self, codes: Any) -> Array:
        array = as_array(codes, "codes")
        if array.ndim != 2 or array.dtype != np.uint8 or array.shape[1] != self.bytes_per_vector:
            rule = f"codes must be uint8 with {self.bytes_per_vector} bytes per row"
            raise InputError(rule, got=f"{array.dtype} {array.shape}", cure="pass what encode returned")
        return array

    # ── files and description ─────────────────────────────────────────────────────────────────────────────────

    @checked
    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the folder ``path``: compression.safetensors with the arrays, compression.json with the rest."""
        from matryo.retrieve.compress.folder import save

        save(self, path, force=force)

    @classmethod
    @checked
    def load(cls, path: str | Path) -> Compression:
        """Read a folder that :meth:`save` wrote, and verify its checksum."""
        from matryo.retrieve.compress.folder import load

        return load(path)

    def __repr__(self) -> str:
        return f"Compression({self.fitted.rotation} {self.code}, {self.bytes_per_vector} bytes, {self.dim} dims)"

    def __str__(self) -> str:
        """The table of the choice."""
        from matryo.retrieve.compress.text import described

        return described(self)
