"""The code of an index that keeps no full vectors: rows are encoded when they come in, and decoded when they go out.

It has the methods of a :class:`matryo.retrieve.store.rotating.rotation.Rotation`, so a store treats both alike: the
rows of its segments are what ``turn`` returns. But ``back`` returns only what the codes have kept of a vector.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError
from matryo.nesting import Nesting
from matryo.retrieve.compress.codes import scoring
from matryo.retrieve.compress.codes.scan import scan_of
from matryo.retrieve.vectors.blocks import checked_norms, tiles
from matryo.retrieve.vectors.queries import as_floats, check_scores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matryo.retrieve.compress import Compression
    from matryo.retrieve.compress.codes.scan import Scan
    from matryo.retrieve.engines.request import Request
    from matryo.retrieve.guides.guide import Search
    from matryo.retrieve.vectors.types import Array, Doubles, Floats, Indices


@dataclass(frozen=True, eq=False)
class Coding:
    """A compression under the name by which commits refer to it."""

    name: str
    compression: Compression

    @classmethod
    def of(cls, compression: Compression) -> Coding:
        """``compression`` under a new name."""
        return cls(secrets.token_hex(8), compression)

    def turn(self, vectors: Array) -> Array:
        """Return the codes of vectors [n, d], uint8 [n, bytes]."""
        own, metric = self.compression, self.compression.metric
        codes = np.empty((len(vectors), own.bytes_per_vector), np.uint8)
        for part in tiles(len(vectors), own.dim):
            rows = np.asarray(vectors[part], np.float32)
            norms = checked_norms(rows, Nesting([own.dim]), "vectors", part.start)
            if metric == "cosine" and not norms.all():
                got = f"row {part.start + int(np.argmin(norms))} of zeros"
                raise EmbeddingsError("vectors must have a direction", got=got, cure="drop it, or encode it again")
            codes[part] = own.fitted.codec.encode(own.fitted.coordinates(scoring.prepared(rows, metric)))
        return codes

    def back(self, codes: Array) -> Floats:
        """Return the vectors [n, d] that codes stand for; under cosine they have norm 1."""
        out = np.empty((len(codes), self.compression.dim), np.float32)
        for part in tiles(len(codes), self.compression.dim):
            out[part] = self.compression.decode(np.asarray(codes[part], np.uint8))
        return out

    def turn_queries(self, queries: Array) -> Floats:
        """Return checked queries as scans take them."""
        own = self.compression
        vectors = as_floats(queries, own.dim)
        check_scores(vectors, Nesting([own.dim]), own.metric)   # type: ignore[arg-type]
        return scoring.prepared(vectors, own.metric)

    def lost(self, vectors: Array, codes: Array) -> tuple[float, float]:
        """Return Σ ‖x − x̂‖² and Σ ‖x‖² of vectors and their codes; under cosine, of vectors of norm 1."""
        own = self.compression
        rows = scoring.prepared(np.asarray(vectors, np.float32), own.metric)
        return scoring.lost(own.fitted, own.metric, rows, codes), float(np.square(rows, dtype=np.float64).sum())

    def scan(self, codes: Array) -> Scan:
        """Prepare the scan of stored rows."""
        return scan_of(self.compression.fitted, self.compression.metric, codes)

    @staticmethod
    def wrote(text: str) -> bool:
        """Whether a JSON text is that of :meth:`to_bytes`."""
        return "code" in json.loads(text)

    def to_bytes(self) -> tuple[str, bytes]:
        """The compression as JSON text and the bytes of its arrays."""
        from safetensors.numpy import save

        from matryo.retrieve.compress.folder import as_json, as_tensors

        return json.dumps(as_json(self.compression)), save(as_tensors(self.compression))

    @classmethod
    def from_bytes(cls, name: str, text: str, tensors: bytes) -> Coding:
        """Rebuild the code from :meth:`to_bytes`."""
        from safetensors.numpy import load

        from matryo.retrieve.compress.folder import rebuilt

        return cls(name, rebuilt(json.loads(text), load(tensors)))


def search_with(scan: Scan) -> Search:
    """Return the search of a part of an index by its codes."""

    def search(request: Request, k: int) -> tuple[Indices, Doubles]:
        rows, scores = scan.search(request.queries, k, request.allowed, request.threads)
        return rows, np.asarray(scores, np.float64)

    return search


def outlined(compression: Compression, measured: Mapping[str, Any] | None = None) -> str:
    """Return in one line what the codes keep; ``measured`` is the recall among all vectors of an index."""
    facts, fitted = compression.provenance, compression.fitted
    size, dims = compression.bytes_per_vector, fitted.codec.dim
    line = f"{compression.code} codes of {size} bytes ({dims} dims, {fitted.rotation})"
    if measured:
        return (f"{line}; recall@{measured['k']} {measured['recall']:.1%}, at least {measured['lower']:.1%} with "
                f"{measured['confidence']:.0%} confidence, on {measured['queries']:,} queries and all "
                f"{measured['rows']:,} vectors added first")  # fmt: skip
    taken = next((entry for entry in compression.table if entry.taken), None)
    if taken is None:
        lost = facts.get("lost")
        share = "" if lost is None else f" {lost:.1%} of the squared norm is lost;"
        return f"{line};{share} recall was not measured"
    what = "recall" if facts.get("quality") == "recall" else "nDCG"
    return (f"{line}; {what}@{facts.get('k')} {taken.quality:.1%}, at least {taken.lower:.1%} with "
            f"{facts.get('confidence'):.0%} confidence, on {facts.get('tests'):,} queries and "
            f"{facts.get('database'):,} vectors")  # fmt: skip


__all__ = ["Coding", "outlined", "search_with"]
